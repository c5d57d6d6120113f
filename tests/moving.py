"""Units that tests move between shards, step by step."""

from sharding.readings import Given, OpenTransfer
from sharding.shards import Shards
from sharding.shortage import in_transit
from sharding.stock import Stock


async def begin(shards: Shards, donor: int, receiver: int, units: int) -> Given:
    """Take units for another shard, and leave them on their way."""
    given = (await shards.read(donor)).given_to(receiver)
    taken = await shards.take(donor, receiver=receiver, before=given, quantity=units)
    assert (taken.word, taken.units) == ("taken", units)
    assert taken.given
    return taken.given


async def move(shards: Shards, donor: int, receiver: int, units: int) -> None:
    """Move units from the first step to the last."""
    given = await begin(shards, donor, receiver, units)
    await shards.put(given)
    await shards.ack(given)


async def open_transfers(stock: Stock, product_id: int) -> set[OpenTransfer]:
    """The transfers of a product that are open now."""
    found = await stock._catalogue.find(product_id)
    assert found is not None
    return set(in_transit(await found.shards.read_all()))
