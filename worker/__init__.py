"""Carries the partitions' events into the ledger, exactly once, and keeps the partitions open."""
