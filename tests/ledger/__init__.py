"""The ledger on a real MySQL or MariaDB."""
