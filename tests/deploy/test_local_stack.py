"""`python -m deploy.local run`, as a script or a person starts it."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio.cluster import ClusterNode, RedisCluster

from deploy.local.errors import StackError
from deploy.local.folder import Folder
from deploy.local.given import given
from deploy.local.ports import HOST, PORTS, Ports, reserve, reserve_any
from deploy.local.stack import LocalStack
from deploy.local.waiting import until
from ledger.engine_claim import Engine
from sharding.cluster import Cluster
from sharding.fitness import Flaw
from sharding.inspection import Inspection
from sharding.metrics import StockMetrics
from sharding.settings import Durability, StockSettings

RUN = (sys.executable, "-m", "deploy.local", "run")
READY_WITHIN_S = 60.0
GONE_WITHIN_S = 15.0


def run_stack(directory: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*RUN, "--dir", str(directory), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def ready_line(stack: subprocess.Popen[str]) -> dict[str, Any]:
    assert stack.stdout is not None
    async with asyncio.timeout(READY_WITHIN_S):
        line = await asyncio.to_thread(stack.stdout.readline)
    assert line, stack.communicate()[1]
    return dict(json.loads(line))


def services_in(directory: Path) -> list[int]:
    """Processes whose working directory is below: Redis and MySQL work where their data is."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdecimal() and (process / "cwd").readlink().is_relative_to(directory):
                found.append(int(process.name))
    return found


async def until_nothing_runs(directory: Path) -> None:
    async def nothing_runs() -> bool:
        return not services_in(directory)

    await until(nothing_runs, what="everything ended", within_s=GONE_WITHIN_S)


async def cluster(addresses: list[str]) -> RedisCluster:
    nodes = [ClusterNode(HOST, int(address.rpartition(":")[2])) for address in addresses]
    return RedisCluster(startup_nodes=nodes, decode_responses=True)


async def flaws_of(addresses: list[str], durability: Durability) -> Sequence[Flaw]:
    """What the service finds wrong with a stack's nodes."""
    settings = StockSettings(redis_nodes=",".join(addresses), durability=durability)
    cluster = await Cluster.connect(settings, StockMetrics(CollectorRegistry()))
    try:
        return await Inspection(cluster).flaws()
    finally:
        await cluster.close()


async def test_the_ready_line_is_documented_and_sigterm_ends_everything(tmp_path: Path) -> None:
    stack = run_stack(tmp_path, "--services-only", "--json", "--mysql-servers", "2")
    try:
        ready = await ready_line(stack)
        assert set(ready) == {"grpc", "metrics", "console", "redis", "mysql", "mysql_servers"}
        assert ready["grpc"] is None
        assert ready["metrics"] == []
        assert len(ready["redis"]) == 6
        assert ready["mysql"].startswith("mysql://inventory:")
        assert ready["mysql"] == ready["mysql_servers"][0] != ready["mysql_servers"][1]
        assert len(services_in(tmp_path)) == 8
        stack.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(stack.wait, GONE_WITHIN_S) == 0
        assert services_in(tmp_path) == []
    finally:
        stack.kill()
        stack.communicate()


async def test_without_redis_mysql_is_all_that_runs(tmp_path: Path) -> None:
    stack = run_stack(tmp_path, "--services-only", "--json", "--engine", "mysql")
    try:
        ready = await ready_line(stack)
        assert ready["redis"] == []
        assert len(services_in(tmp_path)) == 1
        stack.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(stack.wait, GONE_WITHIN_S) == 0
    finally:
        stack.kill()
        stack.communicate()


async def test_killing_the_stack_leaves_no_process(tmp_path: Path) -> None:
    stack = run_stack(tmp_path, "--services-only", "--json", "--durability", "synced")
    try:
        ready = await ready_line(stack)
        assert len(services_in(tmp_path)) == 7
        assert not await flaws_of(ready["redis"], "synced")
    finally:
        stack.kill()
        stack.communicate()
    await until_nothing_runs(tmp_path)


async def test_data_survives_a_restart_on_other_ports(tmp_path: Path) -> None:
    async with LocalStack(tmp_path) as first:
        await first.start_services()
        async with await cluster(first.redis_nodes) as client:
            await client.set("{p00}:kept", "here")
            assert await client.wait(1, 1000, target_nodes=client.get_node_from_key("{p00}")) == 1
        before = first.ports
    with reserve_any(prefer=before):
        async with LocalStack(tmp_path) as second:
            await second.start_services()
            assert second.ports != before
            async with await cluster(second.redis_nodes) as client:
                assert await client.get("{p00}:kept") == "here"


async def test_a_killed_master_is_replaced_and_comes_back_as_a_replica(tmp_path: Path) -> None:
    async with LocalStack(tmp_path) as stack:
        await stack.start_services()
        master, replica = stack.redis[0], stack.redis[3]
        master.process.kill()
        await until(replica.is_master, what="failover", within_s=15)
        await master.process.restart()
        for node in stack.redis:
            await until(node.settled, what=f"{node.address} is settled", within_s=15)
        assert not await master.is_master()


async def test_a_temporary_folder_is_removed_even_when_the_start_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stack = LocalStack(base_port=PORTS)
    with pytest.raises(StackError):
        await stack.start_services()
    assert list(tmp_path.iterdir())
    await stack.stop()
    assert not list(tmp_path.iterdir())


def test_a_used_port_gives_one_clear_line(tmp_path: Path) -> None:
    with reserve_any(prefer=None) as free:
        ports = free.ports
    with socket.create_server((HOST, ports.redis(1))):
        result = subprocess.run(
            [*RUN, "--dir", str(tmp_path), "--base-port", str(ports.base)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == (
        f"deploy.local: port {ports.redis(1)} (Redis node 2) is in use: "
        "stop what listens there or choose another --base-port\n"
    )


def test_two_stacks_never_share_a_block() -> None:
    with (
        reserve_any(prefer=None) as first,
        pytest.raises(StackError, match="in use"),
    ):
        reserve(first.ports.base)


def test_no_port_of_a_block_has_two_uses() -> None:
    ports = [port for port, _ in Ports(20_000).needed()]
    assert len(set(ports)) == len(ports)
    assert all(20_000 <= port < Ports(20_000).reservation for port in ports)


def test_a_folder_has_one_stack_at_a_time(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with pytest.raises(StackError, match="used by another stack"):
        Folder(tmp_path)
    folder.close()
    Folder(tmp_path).close()


@pytest.mark.parametrize("memory", ["", "[]", "{}", '{"base_port": "x", "password": ""}'])
def test_a_damaged_memory_of_a_folder_is_one_clear_line(tmp_path: Path, memory: str) -> None:
    (tmp_path / "stack.json").write_text(memory)
    with pytest.raises(StackError, match=r"stack\.json is damaged: .*--dir"):
        Folder(tmp_path)


def test_without_a_worker_nothing_starts_that_could_never_sell(tmp_path: Path) -> None:
    result = subprocess.run(
        [*RUN, "--dir", str(tmp_path), "--workers", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "--workers: at least 1" in result.stderr
    assert not list(tmp_path.iterdir())


def test_what_runs_takes_settings_that_are_not_the_stacks_own() -> None:
    found = given(
        {
            "HOME": "/root",
            "INVENTORY_RECORD_CAP": "7",
            "INVENTORY_TARGET": "a:1",
            "INVENTORY_ENGINE": "mysql",
            "INVENTORY_MYSQL_URLS": "mysql://elsewhere",
            "INVENTORY_GRPC_TLS_KEY_FILE": "key",
        }
    )
    assert found.taken == {"INVENTORY_RECORD_CAP": "7"}
    assert found.ignored == {
        "INVENTORY_ENGINE": "use --engine",
        "INVENTORY_MYSQL_URLS": "this stack has its own Redis and MySQL",
        "INVENTORY_GRPC_TLS_KEY_FILE": "this stack has no TLS",
    }


def test_a_stack_has_the_settings_that_it_is_given_and_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LocalStack, "redis_nodes", ["127.0.0.1:1"])
    monkeypatch.setattr(LocalStack, "mysql_urls", ["mysql://nobody@127.0.0.1:1/nothing"])
    given_settings = {"INVENTORY_RECORD_CAP": "7", "INVENTORY_MYSQL_URLS": "mysql://elsewhere"}
    environment = LocalStack(settings=given_settings).environment()
    assert environment["INVENTORY_RECORD_CAP"] == "7"
    assert environment["INVENTORY_MYSQL_URLS"] == "mysql://nobody@127.0.0.1:1/nothing"


def test_a_stack_takes_no_settings_from_the_one_who_starts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("INVENTORY_PARTITIONS", "24")
    monkeypatch.setattr(LocalStack, "redis_nodes", ["127.0.0.1:1"])
    monkeypatch.setattr(LocalStack, "mysql_urls", ["mysql://nobody@127.0.0.1:1/nothing"])
    of_redis, of_mysql = [
        {name for name in LocalStack(engine=engine).environment() if name.startswith("INVENTORY_")}
        for engine in Engine
    ]
    assert of_redis == {
        "INVENTORY_REDIS_NODES",
        "INVENTORY_MYSQL_URLS",
        "INVENTORY_DURABILITY",
    }
    assert of_mysql == {"INVENTORY_ENGINE", "INVENTORY_MYSQL_URLS"}
