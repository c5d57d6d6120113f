"""Ports, checked and held before any child starts. Imports nothing of gRPC."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from sharding.settings import parse_address

PORT_MAX = 65_535


class PortError(Exception):
    """An address that cannot be listened on; the text is one line for the operator."""


@dataclass(frozen=True, slots=True)
class HeldPort:
    """A port that belongs to this process although its children listen on it."""

    address: str
    """host:port, the port as it was resolved."""
    holder: socket.socket


def hold_shared_port(address: str) -> HeldPort:
    """Make sure that nobody listens on an address, then keep it for sockets with SO_REUSEPORT.

    Without the first step a second server on the same port would silently take a part of the calls.
    """
    host, port = parse_address(address)
    if port:
        _bound(host, port, setting="GRPC_ADDRESS").close()
    holder = _bound(host, port, setting="GRPC_ADDRESS", shared=True)
    return HeldPort(_address_of(holder), holder)


def free_ports(address: str, count: int) -> Sequence[str]:
    """`count` addresses that can be listened on: consecutive ports, or any free ones for port 0."""
    host, port = parse_address(address)
    with ExitStack() as probes:
        return [
            _address_of(
                probes.enter_context(
                    _bound(host, port + i if port else 0, setting="METRICS_ADDRESS")
                )
            )
            for i in range(count)
        ]


def _bound(host: str, port: int, *, setting: str, shared: bool = False) -> socket.socket:
    if port > PORT_MAX:
        raise PortError(f"there is no port {port} (INVENTORY_{setting})")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _port_error(host, port, setting, error) from error
    try:
        # REUSEADDR lets connections linger that an earlier server has closed. A holder does not listen
        # and would let in, with it, whoever sets it, too: the next server's probe, for one.
        option = socket.SO_REUSEPORT if shared else socket.SO_REUSEADDR
        bound.setsockopt(socket.SOL_SOCKET, option, 1)
        bound.bind(where)
    except OSError as error:
        bound.close()
        raise _port_error(host, port, setting, error) from error
    return bound


def _port_error(host: str, port: int, setting: str, error: OSError) -> PortError:
    return PortError(f"cannot listen on {host}:{port} (INVENTORY_{setting}): {error.strerror}")


def _address_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
