"""Deductions, in each of the ways to share transactions: exact, once, and honest."""

import asyncio
from collections import Counter

import pytest

from ledger.engine.records import Tombstone
from ledger.engine.stock import Manner
from ledger.settings import MysqlUrl
from sharding.outcomes import Answer, Deduction, Outcome, Reason, Resolution, Resolved
from tests.engine.conftest import (
    NewProduct,
    Process,
    accepted,
    ask,
    assert_balanced,
    buying,
    process,
    row_of,
)
from tests.ledger.conftest import fetch, write

MANNERS = pytest.mark.parametrize("manner", list(Manner))
INSUFFICIENT = Answer(Outcome.INSUFFICIENT_STOCK)
MISMATCH = Answer(Outcome.REQUEST_MISMATCH)
CLOSED = Answer(Outcome.FROZEN, reason=Reason.PRODUCT_CLOSED)
TRIES_MAX = 200
LATE = Answer(Outcome.REQUEST_MISMATCH, reason=Reason.RESOLVED_NEVER)


async def persistently(sender: Process, request: Deduction) -> Answer:
    """The answer of somebody who asks again as long as nothing was done."""
    for _ in range(TRIES_MAX):
        (answer,) = await ask(sender, request)
        if answer != Answer(Outcome.UNAVAILABLE, reason=Reason.NOT_EXECUTED):
            return answer
    raise AssertionError(f"{request} is never served")


@MANNERS
async def test_two_processes_sell_every_unit_and_not_one_more(
    engine_url: MysqlUrl, on_sale: NewProduct, manner: Manner
) -> None:
    units, buyers = (300, 600) if manner is Manner.MERGED else (40, 80)
    product_id = await on_sale(units)
    async with (
        process(engine_url, manner=manner) as here,
        process(engine_url, manner=manner) as there,
    ):
        answers = await asyncio.gather(
            *(
                persistently((here, there)[i % 2], request)
                for i, request in enumerate(buying(product_id, buyers))
            )
        )
        assert Counter(answer.outcome for answer in answers) == {
            Outcome.DEDUCTED: units,
            Outcome.INSUFFICIENT_STOCK: buyers - units,
        }
        left = [answer.available for answer in answers if answer.outcome is Outcome.DEDUCTED]
        assert sorted(left) == list(range(units))
        row = await assert_balanced(here, product_id)
    assert (row.available_stock, row.sold_count) == (0, units)


@MANNERS
async def test_one_id_has_one_effect_in_two_processes_and_within_one_call(
    engine_url: MysqlUrl, on_sale: NewProduct, manner: Manner
) -> None:
    product_id = await on_sale(1)
    mine = Deduction("mine", product_id, 1)
    others = buying(product_id, 10)
    async with (
        process(engine_url, manner=manner) as here,
        process(engine_url, manner=manner) as there,
    ):
        (first,) = await ask(here, mine)
        answers = await asyncio.gather(
            *(persistently((here, there)[i % 2], mine) for i in range(20)),
            *(persistently(there, each) for each in others),
        )
        assert first == Answer(Outcome.DEDUCTED, available=0)
        assert answers[:20] == [first._replace(replayed=True)] * 20
        assert answers[20:] == [INSUFFICIENT] * 10
        await assert_balanced(here, product_id)


@MANNERS
async def test_a_new_id_that_comes_many_times_at_once_is_accepted_once(
    engine_url: MysqlUrl, on_sale: NewProduct, manner: Manner
) -> None:
    product_id = await on_sale(5)
    (request,) = buying(product_id, 1, attempt=0)
    async with (
        process(engine_url, manner=manner) as here,
        process(engine_url, manner=manner) as there,
    ):
        answers = await asyncio.gather(
            *(persistently((here, there)[i % 2], request) for i in range(20))
        )
        assert Counter(answer.replayed for answer in answers) == {False: 1, True: 19}
        assert {(answer.outcome, answer.available) for answer in answers} == {(Outcome.DEDUCTED, 4)}
        assert (await assert_balanced(here, product_id)).sold_count == 1


async def test_what_waits_for_one_product_shares_transactions(
    engine_url: MysqlUrl, on_sale: NewProduct
) -> None:
    product_id = await on_sale(1_000)
    async with process(engine_url) as alone:
        await asyncio.gather(*(ask(alone, each) for each in buying(product_id, 500)))
        assert alone.metric("inventory_engine_transaction_requests_count") <= 3


async def test_within_one_call_the_same_id_is_replayed_and_another_content_is_a_mismatch(
    one: Process, on_sale: NewProduct
) -> None:
    product_id, cousin = await on_sale(10), await on_sale(10)
    answers = await ask(
        one,
        Deduction("a", product_id, 2, user_id=7),
        Deduction("a", product_id, 2, user_id=7),
        Deduction("a", product_id, 3, user_id=7),
        Deduction("a", product_id, 2, user_id=8),
        Deduction("a", cousin, 3, user_id=7),
        Deduction("b", product_id, 9),
        Deduction("b", product_id, 8),
    )
    sold = Answer(Outcome.DEDUCTED, available=8)
    assert answers[:4] == [sold, sold._replace(replayed=True), MISMATCH, MISMATCH]
    assert answers[4:] == [
        Answer(Outcome.DEDUCTED, available=7),
        INSUFFICIENT,
        Answer(Outcome.DEDUCTED, available=0),
    ]
    assert (await assert_balanced(one, product_id)).sold_count == 10


@MANNERS
async def test_the_refusal_of_a_retry_is_final_and_that_of_a_first_try_is_not(
    engine_url: MysqlUrl, one: Process, on_sale: NewProduct, manner: Manner
) -> None:
    product_id = await on_sale(1)
    retry = Deduction("retry", product_id, 2, attempt=2)
    first = Deduction("first", product_id, 2, attempt=1)
    async with process(engine_url, manner=manner) as sender:
        assert await ask(sender, retry) + await ask(sender, first) == [INSUFFICIENT] * 2
        assert await ask(sender, retry._replace(quantity=1)) == [MISMATCH]
        added = await one.stock.restock(product_id, request_id="more", quantity=5, reason="")
        assert added == Answer(Outcome.DEDUCTED, available=6)
        assert await ask(sender, retry, first) == [
            INSUFFICIENT._replace(replayed=True),
            Answer(Outcome.DEDUCTED, available=4),
        ]
        assert await one.stock.resolve(product_id, "retry") == Resolved(Resolution.REFUSED)
        assert await one.stock.resolve(product_id, "first") == Resolved(Resolution.DEDUCTED, 2)
        await assert_balanced(sender, product_id)


@MANNERS
@pytest.mark.parametrize("attempt", [0, 1, 2])
async def test_a_late_copy_of_what_was_resolved_as_never_takes_nothing(
    engine_url: MysqlUrl, one: Process, on_sale: NewProduct, manner: Manner, attempt: int
) -> None:
    product_id = await on_sale(5)
    assert await one.stock.resolve(product_id, "lost") == Resolved(Resolution.NEVER)
    assert await one.stock.resolve(product_id, "lost") == Resolved(Resolution.NEVER)
    async with process(engine_url, manner=manner) as sender:
        assert await ask(sender, Deduction("lost", product_id, 1, attempt=attempt)) == [LATE]
    assert (await one.stock.restock(product_id, request_id="lost", quantity=1, reason="")) == (
        MISMATCH
    )
    assert (await assert_balanced(one, product_id)).available_stock == 5


@MANNERS
async def test_a_request_and_its_resolution_at_once_agree(
    engine_url: MysqlUrl, one: Process, on_sale: NewProduct, manner: Manner
) -> None:
    product_id = await on_sale(20)
    requests = buying(product_id, 20)
    async with process(engine_url, manner=manner, connections=24) as sender:
        results = await asyncio.gather(
            *(persistently(sender, each) for each in requests),
            *(one.stock.resolve(product_id, each.request_id) for each in requests),
        )
    ends = {Outcome.DEDUCTED: Resolution.DEDUCTED, Outcome.REQUEST_MISMATCH: Resolution.NEVER}
    for answer, resolved in zip(results[:20], results[20:], strict=True):
        assert isinstance(answer, Answer)
        assert isinstance(resolved, Resolved)
        assert ends[answer.outcome] is resolved.resolution
    await assert_balanced(one, product_id)


async def test_ids_of_corrections_and_of_sales_are_one_space(
    one: Process, on_sale: NewProduct
) -> None:
    product_id = await on_sale(10)
    await ask(one, Deduction("sale", product_id, 1))
    await one.stock.restock(product_id, request_id="delivery", quantity=5, reason="truck")
    assert await ask(one, Deduction("delivery", product_id, 5)) == [MISMATCH]
    for correct in (one.stock.restock, one.stock.remove):
        for request_id in ("sale", "delivery"):
            answer = await correct(product_id, request_id=request_id, quantity=4, reason="")
            assert answer == MISMATCH
    assert await one.stock.resolve(product_id, "delivery") == MISMATCH
    assert (await assert_balanced(one, product_id)).total_stock == 15


@MANNERS
async def test_a_limit_per_user_is_exact_over_processes(
    engine_url: MysqlUrl, on_sale: NewProduct, manner: Manner
) -> None:
    product_id = await on_sale(100, max_per_user=3)
    requests = [each._replace(user_id=7) for each in buying(product_id, 12)]
    async with (
        process(engine_url, manner=manner) as here,
        process(engine_url, manner=manner) as there,
    ):
        answers = await asyncio.gather(
            *(persistently((here, there)[i % 2], each) for i, each in enumerate(requests))
        )
        assert Counter(answer.outcome for answer in answers) == {
            Outcome.DEDUCTED: 3,
            Outcome.USER_LIMIT: 9,
        }
        nameless = await ask(here, *buying(product_id, 1))
        assert nameless == [Answer(Outcome.INVALID, reason=Reason.USER_REQUIRED)]
        replayed = [answer for answer in await ask(here, *requests) if answer.replayed]
        assert accepted(replayed) == 3


async def test_a_limit_begins_anew_with_each_load(one: Process, on_sale: NewProduct) -> None:
    product_id = await on_sale(10, max_per_user=1)
    mine = Deduction("first", product_id, 1, user_id=7)
    assert accepted(await ask(one, mine, mine._replace(request_id="second"))) == 1
    await one.lifecycle.close(product_id, wait_s=1)
    assert await ask(one, mine._replace(request_id="third")) == [CLOSED]
    assert (await ask(one, mine))[0].replayed
    await one.lifecycle.load(product_id, wait_s=1)
    assert accepted(await ask(one, mine._replace(request_id="third"))) == 1


async def test_products_that_are_unknown_or_were_never_loaded_are_named(
    one: Process, on_sale: NewProduct
) -> None:
    known = await on_sale(1)
    await write(
        one.database, "INSERT INTO product_inventory (product_id) VALUES (%s)", known + 10**6
    )
    unknown = Answer(Outcome.UNKNOWN_PRODUCT)
    for product_id in (known + 10**6, known + 10**7):
        assert await ask(one, *buying(product_id, 1)) == [unknown]
        assert await one.stock.resolve(product_id, "x") == unknown
        assert await one.stock.read(product_id) is None


async def test_the_journal_says_what_was_left_and_callers_are_told_of_the_end(
    one: Process, on_sale: NewProduct
) -> None:
    product_id = await on_sale(3, low_stock=2)
    await ask(one, *(each._replace(order_id=5, user_id=6) for each in buying(product_id, 3)))
    await one.stock.restock(product_id, request_id="more", quantity=1, reason="found")
    rows = await fetch(
        one.database,
        "SELECT kind, type, quantity, order_id, user_id, available_after, remark"
        " FROM inventory_log WHERE product_id = %s ORDER BY id",
        product_id,
    )
    told = await fetch(
        one.database,
        "SELECT kind, available FROM service_event WHERE product_id = %s ORDER BY id",
        product_id,
    )
    assert rows == [
        ("deduct", 5, -1, 5, 6, 2, ""),
        ("deduct", 5, -1, 5, 6, 1, ""),
        ("deduct", 5, -1, 5, 6, 0, ""),
        ("restock", 6, 1, 0, 0, 1, "found"),
    ]
    assert told == [("low_stock", 0), ("sold_out", 0), ("back_in_stock", 1)]


async def test_tombstones_are_forgotten_in_their_time(one: Process, on_sale: NewProduct) -> None:
    product_id = await on_sale(1)
    await one.stock.resolve(product_id, "old")
    await one.stock.resolve(product_id, "young")
    await write(
        one.database,
        "UPDATE request_tombstone SET create_time = create_time - INTERVAL 2 DAY"
        " WHERE product_id = %s AND request_id = 'old'",
        product_id,
    )
    await one.expiry.tidy()
    left = await fetch(
        one.database,
        "SELECT request_id, kind FROM request_tombstone WHERE product_id = %s",
        product_id,
    )
    assert left == [("young", Tombstone.NEVER.value)]


async def test_a_row_that_makes_no_sense_is_unavailable_and_other_products_sell(
    one: Process, on_sale: NewProduct
) -> None:
    damaged, sound = await on_sale(5), await on_sale(5)
    await write(
        one.database,
        "ALTER TABLE product_inventory ADD CONSTRAINT damaged CHECK"
        f" (product_id <> {damaged} OR sold_count = 0)",
    )
    try:
        broken, fine = await asyncio.gather(
            ask(one, *buying(damaged, 2)), ask(one, *buying(sound, 2))
        )
    finally:
        await write(one.database, "ALTER TABLE product_inventory DROP CONSTRAINT damaged")
    assert broken == [Answer(Outcome.UNAVAILABLE, reason=Reason.SHARD_CORRUPT)] * 2
    assert accepted(fine) == 2
    assert (await row_of(one, damaged)).sold_count == 0
