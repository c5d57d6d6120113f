"""What serving processes are called where they tell the ledger of themselves."""

import os
import secrets
import socket


def process_name() -> str:
    """Unique among all processes that ever were; at most 64 characters."""
    return f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(4)}"
