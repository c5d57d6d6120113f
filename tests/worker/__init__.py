"""The worker on a real MySQL and, where it matters, a real Redis Cluster."""
