"""The buffer is released while buyers buy: every reading of the stock has every unit in one place."""

import asyncio

import pytest

from deploy.local.waiting import until
from inventory.client import (
    AsyncInventoryClient,
    BufferRelease,
    InvalidRequest,
    InventoryError,
    NotEnoughStock,
    RequestMismatch,
    Stock,
)
from tests.acceptance.load import load
from tests.acceptance.shop import Shop

UNITS, BUFFER = 20_000, 5_000


async def watch(client: AsyncInventoryClient, product: int, seen: list[Stock]) -> None:
    while True:
        seen.append(await client.get_stock(product))


async def test_each_release_counts_once_and_no_reading_loses_or_doubles_a_unit(shop: Shop) -> None:
    product = await shop.on_sale(UNITS, buffer_percent=25)
    readings: list[Stock] = []
    async with load(shop.caller, product) as buyers:
        watching = [asyncio.create_task(watch(each, product, readings)) for each in shop.clients]
        for number, units in enumerate((100, 1_400, 0)):
            releases = await asyncio.gather(
                *(
                    each.release_buffer(product, units, request_id=f"b{number}", actor="me")
                    for each in (*shop.clients, *shop.clients)
                )
            )
            assert {each.quantity for each in releases} == {units or BUFFER - 1_500}
            assert sorted(each.replayed for each in releases) == [False, True, True, True]
            await buyers.flows()

        async def all_came() -> bool:
            return readings[-1].buffer == 0

        await until(all_came, what="the buffer is on sale", within_s=20.0)
        for each in watching:
            each.cancel()
    exact = [stock for stock in readings if not stock.inexact]
    assert {(stock.total, stock.accounted) for stock in exact} == {(UNITS, UNITS)}
    assert len({stock.buffer for stock in exact}) > 2
    await shop.assert_balanced(product, accepted=buyers.accepted)


async def test_what_cannot_be_released_is_named(shop: Shop) -> None:
    product, release = await shop.on_sale(100, buffer_percent=40), shop.caller.release_buffer
    assert await release(product, 10, request_id="b") == BufferRelease(quantity=10, replayed=False)
    with pytest.raises(NotEnoughStock):
        await release(product, 31)
    with pytest.raises(RequestMismatch):
        await release(product, 11, request_id="b")
    with pytest.raises(RequestMismatch):
        await shop.caller.restock(product, 10, request_id="b")
    for wrong in ({"request_id": "a b"}, {"reason": "x" * 201}, {"actor": "x" * 65}):
        with pytest.raises(InvalidRequest):
            await release(product, 1, **wrong)
    await shop.caller.close_product(product)
    with pytest.raises(InventoryError) as closed:
        await release(product, 1)
    assert closed.value.reason == "NOT_OPEN"
    assert (await shop.caller.get_product(product)).available_stock == 100
