"""Live stock in Redis Cluster: the kernel that the server, the ledger and the worker build on."""
