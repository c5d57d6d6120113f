"""Gathers what the oracle judges: asks again, sells the rest, reads every side."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from random import Random

from deploy.demo.history import History
from deploy.demo.purchases import Purchase
from deploy.local.errors import StackError
from inventory.client import AsyncInventoryClient, Deduction, DeductItem, Outcome, Stock
from tests.acceptance.orders import read_journal, until_nothing_is_held
from tests.chaos.history import Record
from tests.chaos.load import PASSING, Buyers
from tests.chaos.oracle import Evidence, OrderLines
from tests.chaos.stack import DEADLINE_S, Stage

ASKED_AT_ONCE = 32
REPEATED_MAX = 100
"""Of those who know that they were accepted, so many ask again."""
PIECES = 7
QUANTITY_MAX = 1_000_000
NOTHING_HELD_WITHIN_S = 40.0
ORDER_ROUNDS_MAX = 50
REPEATED = 2

_rest_ids = count(1)


async def settle(stage: Stage, buyers: Buyers, *, loaded: int) -> Evidence:
    """All there is to know after a fault that was healed; sells all that is left."""
    shop, record, product_id = stage.shop, buyers.record, buyers.product_id
    await _decide_orders(buyers)
    before = (await shop.drained(product_id))[1]
    asked = await _ask_again(stage, record, product_id)
    if buyers.order_products:
        with suppress(StackError):  # of what is held for ever the oracle speaks
            await until_nothing_is_held(shop, buyers.order_products, within_s=NOTHING_HELD_WITHIN_S)
    stock, ledger = await shop.drained(product_id)
    rest = await _sell_rest(stage, stock)
    last_stock, last_ledger = await shop.drained(product_id)
    products = [product_id, *buyers.order_products]
    return Evidence(
        record=record,
        loaded=loaded,
        deadline_s=DEADLINE_S,
        known_before=before.deductions,
        asked_again=asked,
        stock=stock,
        ledger=ledger,
        rest=rest,
        last_stock=last_stock,
        last_ledger=last_ledger,
        dead_letters=(await read_journal(shop.stack, product_id)).dead_letters,
        audits=await asyncio.gather(*(shop.caller.audit(each) for each in products)),
        pauses=list(stage.pauses),
        orders=[await _lines(stage, each) for each in buyers.order_products],
    )


async def _decide_orders(buyers: Buyers) -> None:
    """Callers who do not know what became of their order ask until they do."""
    for order_id, tries in list(buyers.record.orders.items()):
        what, outcome = tries[-1].what, tries[-1].outcome
        if outcome not in PASSING and outcome is not Outcome.HELD:
            continue
        what = "release" if what == "reserve" else what
        for number in range(ORDER_ROUNDS_MAX):
            if await buyers.ask_order(order_id, what, number + 1) not in PASSING:
                break
            await asyncio.sleep(0.1)


async def _ask_again(stage: Stage, record: Record, product_id: int) -> list[Deduction]:
    """Everybody without an answer, and some of those who have one."""
    history = record.deductions
    known = sorted(history.accepted)
    repeated = set(stage.choice.sample(known, min(REPEATED_MAX, len(known))))
    asking = [*history.open, *(each for each in history.wanted if each.request_id in repeated)]
    queue = iter(asking)
    found: list[Deduction] = []

    async def ask() -> None:
        for purchase in queue:
            answer = await _insist(stage.choice, stage.shop.clients, product_id, purchase)
            found.append(answer)  # others append meanwhile

    async with asyncio.TaskGroup() as tasks:
        for _ in range(ASKED_AT_ONCE):
            tasks.create_task(ask())
    history.answered(found)
    return found


async def _insist(
    choice: Random, clients: Sequence[AsyncInventoryClient], product_id: int, purchase: Purchase
) -> Deduction:
    item = DeductItem(
        product_id,
        purchase.quantity,
        request_id=purchase.request_id,
        user_id=purchase.user_id,
        attempt=REPEATED,
    )
    return await choice.choice(clients).deduct_item(item)


async def _sell_rest(stage: Stage, stock: Stock) -> History:
    """To buyers of odd sizes, the last of whom comes too late."""
    rest = History()
    left = stock.available
    while left:
        piece = min(left, QUANTITY_MAX, stock.available // PIECES + 1)
        await _sell_piece(stage, stock.product_id, rest, piece)
        left -= piece
    await _sell_piece(stage, stock.product_id, rest, 1)
    return rest


async def _sell_piece(stage: Stage, product_id: int, rest: History, quantity: int) -> None:
    name = f"rest-{next(_rest_ids)}-{stage.choice.getrandbits(32):08x}"
    purchase = Purchase(name, quantity, user_id=0, twice=False, again=False)
    rest.wants(purchase)
    rest.answered([await _insist(stage.choice, stage.shop.clients, product_id, purchase)])


async def _lines(stage: Stage, product_id: int) -> OrderLines:
    stock, ledger = await stage.shop.drained(product_id)
    return OrderLines(await read_journal(stage.stack, product_id), stock, ledger)
