"""One flash sale with accidents, and its balance: `python -m deploy.demo`."""
