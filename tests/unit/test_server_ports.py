"""Ports are checked and held before anything starts."""

import socket
from contextlib import closing

import pytest

from server.ports import PortError, free_ports, hold_shared_port


def listener(port: int = 0, *, shared: bool = False) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    found.bind(("127.0.0.1", port))
    found.listen()
    return found


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@pytest.mark.parametrize("shared", [False, True])
def test_a_port_that_somebody_listens_on_is_refused(shared: bool) -> None:
    """Also one that would let us in: a part of the calls would go to the other server."""
    with closing(listener(shared=shared)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortError, match=f":{port}.*INVENTORY_GRPC_ADDRESS"):
            hold_shared_port(f"127.0.0.1:{port}")


def test_a_held_port_is_open_to_children_only() -> None:
    held = hold_shared_port("127.0.0.1:0")
    port = port_of(held.address)
    with held.holder:
        listener(port, shared=True).close()
        with pytest.raises(OSError, match="in use"):
            listener(port)
        with pytest.raises(PortError):
            hold_shared_port(held.address)


def test_port_zero_becomes_a_port_and_the_next_ones_differ() -> None:
    ports = {port_of(address) for address in free_ports("127.0.0.1:0", 5)}
    assert len(ports) == 5
    assert 0 not in ports


def test_metrics_ports_follow_each_other() -> None:
    with closing(listener()) as probe:
        port = probe.getsockname()[1]
    assert free_ports(f"127.0.0.1:{port}", 1) == [f"127.0.0.1:{port}"]


def test_a_metrics_port_in_use_is_refused_by_name() -> None:
    with closing(listener()) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortError, match=r"INVENTORY_METRICS_ADDRESS.*in use"):
            free_ports(f"127.0.0.1:{port - 1}", 2)


def test_ports_end_at_65535() -> None:
    with pytest.raises(PortError):
        free_ports("127.0.0.1:65535", 2)


def test_an_unknown_host_is_refused() -> None:
    with pytest.raises(PortError, match=r"no-such-host\.invalid"):
        hold_shared_port("no-such-host.invalid:1")
