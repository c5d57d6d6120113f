"""`python -m server`: checks settings and ports, then keeps one serving process per core running."""

import asyncio
import os
import ssl
import sys
from pathlib import Path

from ledger.settings import SettingsError, read_settings, take_no_arguments
from server.logs import configure_logs
from server.ports import PortError, free_ports, hold_shared_port
from server.settings import ServerSettings
from server.supervisor import (
    INTERRUPTED,
    SETUP_ERROR,
    ChildPlan,
    SetupError,
    Supervisor,
    child_command,
)

STOP_SLACK_S = 3
"""What a child may take beyond its own limits, to close connections."""


def main() -> int:
    """Run until SIGTERM or SIGINT; returns the exit status."""
    take_no_arguments("python -m server", "Serves the gRPC interface until SIGTERM or SIGINT.")
    try:
        asyncio.run(_supervise(read_settings(ServerSettings)))
    except (SettingsError, PortError, SetupError) as error:
        return _setup_failed(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


async def _supervise(settings: ServerSettings) -> None:
    log = configure_logs(process="server")
    _check_tls(settings)
    port = hold_shared_port(settings.grpc_address)
    metrics = free_ports(settings.metrics_address, settings.server_processes)
    with port.holder:
        plans = [_plan(index, port.address, address) for index, address in enumerate(metrics)]
        log.info(
            "starting",
            grpc=port.address,
            metrics=list(metrics),
            tls=bool(settings.grpc_tls_cert_file),
            pid=os.getpid(),
        )
        stop_s_max = settings.drain_notice_s + settings.drain_s_max + STOP_SLACK_S
        await Supervisor(plans, log, stop_s_max=stop_s_max).run()
    log.info("stopped")


def _plan(index: int, grpc: str, metrics: str) -> ChildPlan:
    return ChildPlan(
        index,
        child_command("server.serve", "--child", str(index), "--grpc", grpc, "--metrics", metrics),
    )


def _check_tls(settings: ServerSettings) -> None:
    cert, key = settings.grpc_tls_cert_file, settings.grpc_tls_key_file
    ca = settings.grpc_tls_ca_file
    if bool(cert) != bool(key) or (ca and not cert):
        raise SetupError(
            "INVENTORY_GRPC_TLS_CERT_FILE and …_KEY_FILE go together, …_CA_FILE with both"
        )
    for path in filter(None, (cert, key, ca)):
        if not Path(path).is_file():
            raise SetupError(f"there is no file {path} (INVENTORY_GRPC_TLS_…)")
    if not cert:
        return
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    wrong = f"{cert} and {key} are no certificate and its key without a password"
    try:
        context.load_cert_chain(cert, key, password=lambda: b"")  # never asks a terminal
        if ca:
            wrong = f"{ca} has no certificates of authorities"
            context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        raise SetupError(f"{wrong} (INVENTORY_GRPC_TLS_…): {error}") from None


def _setup_failed(text: str) -> int:
    print(f"inventory server: {text}", file=sys.stderr)  # noqa: T201 - for the person who started it
    return SETUP_ERROR


if __name__ == "__main__":
    sys.exit(main())
