"""The example order service against an inventory in this process."""

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from inventory.client import AsyncInventoryClient, OrderLine
from inventory.v1 import inventory_pb2
from tests.unit.client_service import Health, Inventory, Product, serving
from tests.waiting import eventually

EXAMPLE = Path(__file__).parents[2] / "client" / "examples" / "order_service.py"
LINES = [OrderLine(1, 2)]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("order_service", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def inventory() -> Inventory:
    own = Inventory()
    own.products[1] = Product(total=100, available=100)
    return own


@pytest.fixture
def target(inventory: Inventory) -> Iterator[str]:
    with serving(inventory, Health()) as address:
        yield address


@pytest.fixture
async def client(target: str) -> AsyncIterator[AsyncInventoryClient]:
    async with AsyncInventoryClient(target) as own:
        yield own


@pytest.mark.parametrize("end", ["EXPIRED", "RELEASED", "REFUND_REQUIRED"])
async def test_an_order_that_was_over_before_its_answer_came_is_cancelled(
    client: AsyncInventoryClient,
    inventory: Inventory,
    example: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
) -> None:
    monkeypatch.setattr(example.secrets, "randbits", lambda _bits: 4)
    inventory.orders.answers[5].append((end, ""))
    books = example.Books(tmp_path)
    service = example.OrderService(client, books)
    assert await service.order(LINES, user_id=1, ttl_s=3) == 5
    assert books.statuses == {5: example.Status.CANCELLED}


async def test_whoever_was_away_for_too_long_looks_at_its_orders_and_goes_on(
    client: AsyncInventoryClient, inventory: Inventory, example: ModuleType, tmp_path: Path
) -> None:
    books = example.Books(tmp_path)
    service = example.OrderService(client, books)
    over = await service.order(LINES, user_id=1, ttl_s=3)
    held = await service.order(LINES, user_id=2, ttl_s=900)
    books.write(9, example.Status.TO_BE_PAID)  # forgotten by the inventory
    await client.release(over)
    for order_id in (over, 6, 7):
        inventory.orders.happen(inventory_pb2.EVENT_KIND_ORDER_EXPIRED, order_id=order_id)
    inventory.orders.pruned = 2
    books.turn_to("1")
    following = asyncio.create_task(service.follow())
    await eventually(lambda: books.cursor == "3")
    following.cancel()
    await asyncio.wait([following])
    assert books.statuses == {
        over: example.Status.CANCELLED,
        held: example.Status.TO_BE_PAID,
        9: example.Status.CANCELLED,
    }
