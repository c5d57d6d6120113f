"""A real Prometheus takes the metrics of every process, by the configuration that we ship."""

import asyncio
import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from deploy.local.ports import HOST
from deploy.local.process import Process
from deploy.local.waiting import until
from tests.acceptance.shop import SERVERS, WORKERS, Shop

SCRAPED_WITHIN_S = 90.0
PROMETHEUS = shutil.which("prometheus")


def targets(address: str) -> list[dict[str, Any]]:
    """What Prometheus says about each target; none while it does not answer."""
    try:
        with urlopen(f"http://{address}/api/v1/targets", timeout=5) as reply:
            return list(json.load(reply)["data"]["activeTargets"])
    except (URLError, ConnectionError):
        return []


def prometheus(config: Path, address: str, directory: Path) -> Process:
    assert PROMETHEUS is not None
    return Process(
        "prometheus",
        [
            PROMETHEUS,
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'series'}",
            f"--web.listen-address={address}",
        ],
        log=directory / "prometheus.log",
        directory=directory,
    )


@pytest.mark.skipif(
    PROMETHEUS is None and not os.environ.get("CI"),
    reason="no prometheus on this machine: apt-get install prometheus",
)
async def test_prometheus_scrapes_every_process_without_an_error(
    shop: Shop, tmp_path: Path
) -> None:
    product = await shop.on_sale(10)
    await shop.caller.deduct(product, 1)
    with socket.create_server((HOST, 0)) as listener:
        address = f"{HOST}:{listener.getsockname()[1]}"
    scraper = prometheus(shop.stack.write_prometheus_config(), address, tmp_path)
    await scraper.start()
    seen: list[dict[str, Any]] = []

    async def all_scraped() -> bool:
        seen[:] = await asyncio.to_thread(targets, address)
        return len(seen) == len(SERVERS) + len(WORKERS) and all(
            target["health"] != "unknown" for target in seen
        )

    try:
        await until(all_scraped, what="Prometheus has scraped all", within_s=SCRAPED_WITHIN_S)
    finally:
        scraper.kill()
    assert {(target["health"], target["lastError"]) for target in seen} == {("up", "")}
