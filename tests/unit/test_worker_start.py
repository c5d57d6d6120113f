"""A worker that cannot start says why in one line, in the words of the server."""

import os
import socket
import subprocess
import sys


def test_a_metrics_port_that_is_taken_is_named_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = subprocess.run(
            [sys.executable, "-m", "worker"],
            env={**os.environ, "INVENTORY_METRICS_ADDRESS": address},
            capture_output=True,
            text=True,
            check=False,
        )
    assert result.returncode == 2
    assert result.stderr == (
        f"worker: cannot listen on {address} (INVENTORY_METRICS_ADDRESS): Address already in use\n"
    )
