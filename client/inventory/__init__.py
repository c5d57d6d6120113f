"""What an order service installs: `inventory.client` and the messages of `inventory.v1`."""
