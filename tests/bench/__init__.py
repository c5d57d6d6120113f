"""What the service does a second on this machine, next to what would be possible."""
