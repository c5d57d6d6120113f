"""`inventoryctl`: the inventory from a shell."""
