"""Putting a product on sale and taking it off, shard by shard. Every step may be repeated.

Both end only when no process refuses anybody any more by a proof from before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress

from sharding.catalogue import Catalogue
from sharding.cluster import Cluster
from sharding.errors import CloseBusyError, LoadConflictError, StockUnavailableError
from sharding.notes import NOTE_S
from sharding.outcomes import Reason, State
from sharding.plans import Freeze, LoadPlan
from sharding.shards import MissingShardError, Shards
from sharding.shortage import begun_by_donors, in_transit

BeforeOpening = Callable[[], Awaitable[Freeze]]
"""Waits for whatever has to be so before a product is sold, and says whether its sale was stopped."""


class Loading:
    """Loads and closes products."""

    def __init__(self, cluster: Cluster, catalogue: Catalogue) -> None:
        self._cluster = cluster
        self._catalogue = catalogue

    async def load(self, plan: LoadPlan, before_opening: BeforeOpening | None) -> None:
        """Put the units into the shards, then open them.

        A decision to freeze the product that came after the plan cannot have reached shards that did not
        exist; one that comes when all do reaches them by itself. So it is asked for between the two.
        """
        shards = Shards(self._cluster, plan.product_id, plan.layout)
        await together(
            _load_shard(shards, partition, amount, plan)
            for partition, amount in zip(shards.partitions, plan.amounts, strict=True)
        )
        freeze = plan.freeze if before_opening is None else await before_opening()
        if freeze != plan.freeze:
            await together(shards.freeze(partition, freeze) for partition in shards.partitions)
        await together(
            _lead(shards, partition, plan.epoch, State.LOADING, State.OPEN)
            for partition in shards.partitions
        )
        self._catalogue.forget(plan.product_id)
        await asyncio.sleep(NOTE_S)

    async def close(self, product_id: int, epoch: int) -> int:
        """Stop all shards, finish transfers, give the units back; returns how many shards there were."""
        # Another process may have loaded it with other shards since this one looked.
        self._catalogue.forget(product_id)
        product = await self._catalogue.find(product_id)
        if product is None:
            raise LoadConflictError(f"product {product_id} was never loaded")
        if product.listing.epoch != epoch and product.listing.is_copy:
            raise StockUnavailableError(Reason.NOT_EXECUTED, f"product {product_id}: only a copy")
        if product.listing.epoch != epoch:
            raise LoadConflictError(f"product {product_id} is not in epoch {epoch} any more")
        shards = product.shards
        stopped = set(shards.partitions)
        await together(
            _lead(shards, partition, epoch, State.OPEN, State.CLOSING) for partition in stopped
        )
        await together(_stop_retired(shards, p, epoch, stopped) for p in shards.retired)
        await together([_finish_transfers(shards)])
        await together(_close_shard(shards, partition, epoch) for partition in stopped)
        await asyncio.sleep(NOTE_S)
        return len(stopped)


async def together(steps: Iterable[Coroutine[object, object, None]]) -> None:
    """Take steps at several shards at once; all are awaited before the first failure is raised."""
    results = await asyncio.gather(*steps, return_exceptions=True)
    for result in results:
        if isinstance(result, MissingShardError):
            raise StockUnavailableError(Reason.SHARD_CORRUPT, "a shard's key is gone")
        if isinstance(result, BaseException):
            raise result


async def _load_shard(shards: Shards, partition: int, amount: int, plan: LoadPlan) -> None:
    loaded = await shards.load(partition, amount, plan)
    if loaded.word != "done":
        raise LoadConflictError(
            f"product {plan.product_id} cannot be loaded as epoch {plan.epoch}: "
            f"its shard in partition {partition} answers {loaded.word}"
        )
    if loaded.state is State.LOADING and loaded.available != amount:
        raise LoadConflictError(
            f"product {plan.product_id}: its shard in partition {partition} holds "
            f"{loaded.available} units instead of {amount}"
        )


async def _lead(shards: Shards, partition: int, epoch: int, source: State, target: State) -> None:
    state = await shards.change_state(partition, epoch=epoch, source=source, target=target)
    if state == "passed":
        raise LoadConflictError(f"product {shards.product_id} is not in epoch {epoch} any more")


async def _stop_retired(shards: Shards, partition: int, epoch: int, stopped: set[int]) -> None:
    """Note a shard as stopped, unless a change that was taken back never came to it."""
    with suppress(LoadConflictError, MissingShardError):
        await _lead(shards, partition, epoch, State.OPEN, State.CLOSING)
        stopped.add(partition)


async def _finish_transfers(shards: Shards) -> None:
    """Nothing moves any more but what is finished here or elsewhere, so one look finds all of it. What
    has arrived counts as well until its donor knows that: before, that one does not close."""
    readings = await shards.read_all()
    unfinished = (*begun_by_donors(readings), *in_transit(readings))
    for donor, receiver in sorted({(each.donor, each.receiver) for each in unfinished}):
        await shards.finish(donor, receiver)


async def _close_shard(shards: Shards, partition: int, epoch: int) -> None:
    word = await shards.close(partition, epoch=epoch)
    if word == "passed":
        raise LoadConflictError(f"product {shards.product_id} is not in epoch {epoch} any more")
    if word != "done":
        raise CloseBusyError(f"product {shards.product_id}, partition {partition}: {word}")
