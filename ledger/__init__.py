"""Durable stock in MySQL: products, the journal, the per-shard ledger and the workers' leases."""
