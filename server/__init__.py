"""The inventory over gRPC: requests in, answers of the live stock and of the ledger out."""
