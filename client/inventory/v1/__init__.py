"""Generated from protos/inventory/v1 by `make proto`."""
