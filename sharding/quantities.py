"""Bounds of what callers may send; the contract in protos/ states the same numbers."""

QUANTITY_MAX = 1_000_000
ADJUSTMENT_MAX = 1_000_000_000
TOTAL_MAX = 1_000_000_000_000
BATCH_ITEMS_MAX = 2_000
REQUEST_ID_CHARS_MAX = 64
REASON_CHARS_MAX = 200
NAME_CHARS_MAX = 200
