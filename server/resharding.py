"""A product's shard count while it is on sale: decided in the ledger, brought about by the workers."""

import asyncio
from contextlib import suppress

from ledger.errors import LedgerUnavailableError
from ledger.layouts import Aim, Cause, ChangeState, Layouts
from ledger.servers import PerServer
from server.errors import RefusedError, unavailable

LOOK_S = 0.05
"""Time between two looks at how far a worker has come with a change."""
_IN_FORCE = frozenset((ChangeState.ACTIVE, ChangeState.DONE))


class Resharding:
    """Asks for changes and waits for them."""

    def __init__(self, layouts: PerServer[Layouts], *, partitions: int) -> None:
        self._layouts = layouts
        self._partitions = partitions

    async def set_shards(self, product_id: int, shards: int, *, wait_s: float) -> int:
        """Pin a product to so many shards, 0: to none; returns the layout that is in force then.

        RefusedError RESHARD_PENDING if `wait_s` is too short, or the change was rolled back.
        """
        until_s = asyncio.get_running_loop().time() + wait_s
        aim = await self._layouts.of(product_id).want(
            product_id, shards, Cause.OPERATOR, partitions=self._partitions
        )
        if not aim.in_force:
            try:
                await self._brought_about(product_id, aim, until_s=until_s)
            except LedgerUnavailableError as error:
                raise _pending() from error
        return aim.version

    async def _brought_about(self, product_id: int, aim: Aim, *, until_s: float) -> None:
        state: ChangeState | None = ChangeState.WANTED
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                while state is ChangeState.WANTED:
                    await asyncio.sleep(LOOK_S)
                    state = await self._layouts.of(product_id).state(product_id, aim.version)
        if state not in _IN_FORCE:
            raise _pending() if state is ChangeState.WANTED else _rolled_back()


def _pending() -> RefusedError:
    return unavailable(
        "RESHARD_PENDING",
        "the shard count is being changed; call SetShards again until it has been",
    )


def _rolled_back() -> RefusedError:
    return unavailable(
        "RESHARD_PENDING",
        "the change could not be made because a part of the live stock does not answer; it is tried "
        "again within half a minute, or some seconds after another call",
    )
