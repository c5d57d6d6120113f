"""Selling from MySQL alone."""
