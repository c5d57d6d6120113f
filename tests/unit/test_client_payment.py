"""The account of a simulated sale with payment; the sale itself is held in test_cli_orders.py."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from inventory.client import AsyncInventoryClient, RetryPolicy
from inventory.payment import PaidSale, payment_imbalances_of, simulate_payment
from tests.unit.client_service import Fault, Health, Inventory, Product, serving
from tests.unit.test_client_simulation import AFTER, BEFORE

ONE_TRY = RetryPolicy(tries_max=1)


@pytest.fixture
def inventory() -> Inventory:
    own = Inventory()
    own.products[1] = Product(total=100, available=100)
    return own


@pytest.fixture
def target(inventory: Inventory) -> Iterator[str]:
    with serving(inventory, Health()) as address:
        yield address


def test_a_paid_sale_that_adds_up_has_no_imbalance():
    assert list(payment_imbalances_of(BEFORE, AFTER, units_sold=3, unknown=0)) == []


@pytest.mark.parametrize(
    ("after", "units_sold", "unknown", "said"),
    [
        (replace(AFTER, held=2, available=2), 3, 0, "2 units are still held, before it were 1"),
        (AFTER, 4, 0, "sold after is 3"),
        (AFTER, 3, 1, "1 requests are still without an answer"),
    ],
)
def test_each_kind_of_imbalance_is_said(after, units_sold, unknown, said):
    (sentence,) = payment_imbalances_of(BEFORE, after, units_sold=units_sold, unknown=unknown)
    assert said in sentence


async def test_lost_replies_end_in_balance_all_the_same(target, inventory):
    inventory.order_faults.extend([Fault(acts_first=True)] * 10)
    sale = PaidSale(product_id=1, buyers=20, concurrency=4, quantity=2, ttl_s=1, seed=1)
    async with AsyncInventoryClient(target, policy=ONE_TRY) as client:
        report = await simulate_payment(client, sale)
    assert report.balanced
    assert (report.unknown, report.failed) == (0, 0)
    assert report.held < 20


async def test_equal_seeds_choose_equal_buyers(target):
    sale = PaidSale(product_id=1, buyers=30, cancel=0.4, vanish=0, late=0, ttl_s=60, seed=7)
    async with AsyncInventoryClient(target) as client:
        first = await simulate_payment(client, sale)
        again = await simulate_payment(client, sale)
    assert first.conduct == again.conduct
    assert 0 < first.conduct["cancels"] < 30


@pytest.mark.parametrize(
    "fields",
    [{"buyers": 0}, {"ttl_s": 0}, {"cancel": 0.5, "vanish": 0.4, "late": 0.2}, {"late": -0.1}],
)
def test_a_sale_out_of_bounds_is_none(fields):
    with pytest.raises(ValueError, match=r"at least 1|shares"):
        PaidSale(**{"product_id": 1, "buyers": 1, **fields})
