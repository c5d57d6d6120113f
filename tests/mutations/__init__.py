"""Mistakes put into the kernel on purpose, each to be found by a test that is named for it."""
