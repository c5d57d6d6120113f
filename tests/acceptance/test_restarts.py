"""Processes that are stopped or killed while buyers buy: nobody sees it, and nothing is lost."""

import signal

import pytest

from inventory.client import Outcome
from server.__main__ import STOP_SLACK_S
from server.settings import ServerSettings
from tests.acceptance.load import load
from tests.acceptance.shop import SERVERS, Shop, ended

PLENTY = 1_000_000
ENDS_WITHIN_S = 10.0
DRAINED_WITHIN_S = ServerSettings().drain_notice_s + ServerSettings().drain_s_max + STOP_SLACK_S


async def test_servers_that_are_stopped_in_turn_fail_no_call(shop: Shop) -> None:
    product = await shop.on_sale(PLENTY)
    async with load(shop.caller, product) as buyers:
        for number in SERVERS:
            server = shop.stack.servers[number]
            server.terminate()
            assert await ended(server, within_s=DRAINED_WITHIN_S) == 0
            await buyers.flows()
            await server.start()
    assert buyers.outcomes.keys() == {Outcome.DEDUCTED}
    await shop.assert_balanced(product, accepted=buyers.accepted)


async def test_a_killed_server_loses_nothing_and_fails_no_call(shop: Shop) -> None:
    product = await shop.on_sale(PLENTY)
    server = shop.stack.servers[0]
    async with load(shop.caller, product) as buyers:
        server.kill()
        await buyers.flows()
        await server.start()
    assert buyers.outcomes.keys() == {Outcome.DEDUCTED}
    await shop.assert_balanced(product, accepted=buyers.accepted)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_worker_that_ends_leaves_no_event_behind(
    shop: Shop, number: signal.Signals
) -> None:
    product = await shop.on_sale(PLENTY)
    worker = shop.stack.workers[0]
    async with load(shop.caller, product) as buyers:
        worker.signal(number)
        await ended(worker, within_s=ENDS_WITHIN_S)
    await shop.assert_balanced(product, accepted=buyers.accepted)
    await worker.start()
