"""The whole service under load while parts of it break: `python -m tests.chaos`."""
