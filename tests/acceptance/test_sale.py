"""Sales through two server processes, counted in Redis and in MySQL."""

import asyncio
from collections import Counter

from inventory.client import Deduction, Outcome
from tests.acceptance.shop import Shop, ids


async def buy(shop: Shop, product_id: int, request_ids: list[str]) -> list[Deduction]:
    """All at once, over both servers in turn; a failed call is an outcome here."""
    return await asyncio.gather(
        *(
            shop.clients[turn % 2].deduct(product_id, 1, request_id=request_id)
            for turn, request_id in enumerate(request_ids)
        )
    )


def accepted(answers: list[Deduction]) -> dict[str, int]:
    return {answer.request_id: 1 for answer in answers if answer.accepted}


async def test_five_thousand_buyers_get_exactly_the_five_hundred_units(shop: Shop) -> None:
    product = await shop.on_sale(500, shards=6)
    answers = await buy(shop, product, [*ids("buyer", 5_000)])
    assert Counter(answer.outcome for answer in answers) == {
        Outcome.DEDUCTED: 500,
        Outcome.INSUFFICIENT_STOCK: 4_500,
    }
    await shop.assert_balanced(product, accepted=accepted(answers))


async def test_one_id_in_fifty_concurrent_calls_has_one_effect(shop: Shop) -> None:
    product = await shop.on_sale(100)
    answers = await buy(shop, product, ["the-same"] * 50)
    assert {answer.outcome for answer in answers} == {Outcome.DEDUCTED}
    assert sum(not answer.replayed for answer in answers) == 1
    assert len({(answer.shard, answer.shard_available) for answer in answers}) == 1
    await shop.assert_balanced(product, accepted={"the-same": 1})


async def test_the_last_unit_is_one_buyers_however_often_that_one_asks(shop: Shop) -> None:
    product = await shop.on_sale(1)
    (first,) = await buy(shop, product, ["mine"])
    both = [name for other in ids("other", 50) for name in ("mine", other)]
    answers = await buy(shop, product, both)
    assert first.accepted
    assert {a.request_id for a in answers if a.outcome is Outcome.DEDUCTED} == {"mine"}
    assert all(answer.accepted for answer in answers if answer.request_id == "mine")
    await shop.assert_balanced(product, accepted={"mine": 1})


async def test_every_request_three_times_at_once_is_accepted_once(shop: Shop) -> None:
    product = await shop.on_sale(300)
    distinct = ids("storm", 200)
    answers = await buy(shop, product, [*distinct, *distinct, *distinct])
    first = [answer.request_id for answer in answers if not answer.replayed]
    assert sorted(first) == sorted(distinct)
    assert {answer.outcome for answer in answers} == {Outcome.DEDUCTED}
    await shop.assert_balanced(product, accepted=dict.fromkeys(distinct, 1))


async def test_single_units_in_six_shards_serve_a_request_of_three(shop: Shop) -> None:
    product = await shop.on_sale(6, shards=6)
    before = await shop.caller.get_stock(product)
    assert [shard.available for shard in before.shards] == [1] * 6
    answer = await shop.caller.deduct(product, 3, request_id="three")
    assert answer.accepted
    await shop.assert_balanced(product, accepted={"three": 3})


async def test_a_refused_request_leaves_what_there_is_to_a_smaller_one(shop: Shop) -> None:
    product = await shop.on_sale(6, shards=6)
    seven = await shop.clients[0].deduct(product, 7, request_id="seven")
    six = await shop.clients[1].deduct(product, 6, request_id="six")
    assert (seven.outcome, six.outcome) == (Outcome.INSUFFICIENT_STOCK, Outcome.DEDUCTED)
    await shop.assert_balanced(product, accepted={"six": 6})
