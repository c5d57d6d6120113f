"""Counts are told of the shards that answer, once the others have been waited for."""

import asyncio

import pytest

from server import stocks
from server.stocks import PatientReader
from sharding.errors import StockUnavailableError
from sharding.outcomes import ProductStock, Reason, State

ALL = ProductStock(1, State.OPEN, False, 1, 1, 0, 0, (), 6, exact=True)
PRESENT = ALL._replace(exact=False, unread=(9,))


class Shards:
    """A product whose shards are read as `all_say`; None: one of them never answers."""

    def __init__(self, all_say: ProductStock | StockUnavailableError | None) -> None:
        self._all_say = all_say

    async def read(self, _product_id: int) -> ProductStock | None:
        if self._all_say is None:
            await asyncio.Event().wait()
        if isinstance(self._all_say, StockUnavailableError):
            raise self._all_say
        return self._all_say

    async def read_present(self, _product_id: int) -> ProductStock | None:
        return PRESENT


def unavailable(reason: Reason) -> StockUnavailableError:
    return StockUnavailableError(reason, "p09")


@pytest.mark.parametrize(
    ("all_say", "told"),
    [
        (ALL, ALL),
        (None, PRESENT),
        (unavailable(Reason.NOT_EXECUTED), PRESENT),
        (unavailable(Reason.OUTCOME_UNKNOWN), PRESENT),
        (unavailable(Reason.PARTITION_FENCED), PRESENT),
    ],
)
async def test_who_does_not_answer_is_waited_for_and_then_left_out(
    all_say: ProductStock | StockUnavailableError | None,
    told: ProductStock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stocks, "ALL_SHARDS_S", 60 if all_say is ALL else 0.01)
    assert await PatientReader(Shards(all_say)).read(1) == told


@pytest.mark.parametrize("reason", [Reason.SHARD_CORRUPT, Reason.LAYOUT_CHANGING])
async def test_what_makes_no_sense_is_no_absence(reason: Reason) -> None:
    with pytest.raises(StockUnavailableError, match=reason):
        await PatientReader(Shards(unavailable(reason))).read(1)
