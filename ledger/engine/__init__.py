"""Selling from MySQL alone: what sharding/ does on Redis, done in transactions on the products' rows.

`stock.py` and `orders.py` are what a server calls, in place of sharding.stock and sharding.ordering.
"""
