"""Puts come after their takes, in whichever order the streams tell of them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from ledger.merge import Chunk, cut, merge, received
from ledger.transfer_sums import Pair, Sums
from sharding.errors import StockUnavailableError
from sharding.events import BEFORE_ALL, EventId
from sharding.outcomes import Reason
from sharding.partitions import Checkpoint, Entry, PartitionHead, StreamState
from tests.ledger.streams import FakeStream
from worker.causality import PATIENCE_S, Causality
from worker.metrics import WorkerMetrics
from worker.share import Share

PRODUCT = 1
DONOR, RECEIVER, OTHER = 0, 1, 2
PAIR = Pair(PRODUCT, DONOR, RECEIVER, 1)


class Ledger:
    """What the ledger and the live stock say of the donor."""

    def __init__(self) -> None:
        self.sums: dict[Pair, Sums] = {}
        self.applied: dict[int, EventId] = {}
        self.last: dict[int, EventId] = {}
        self.away: set[int] = set()
        self.now_s = 0.0

    async def of(self, wanted: Collection[Any]) -> Mapping[Any, Any]:
        """Checkpoints of partitions, or sums of pairs."""
        found: dict[Any, Any] = {}
        for each in wanted:
            if isinstance(each, Pair):
                found[each] = self.sums.get(each, Sums(0, 0, is_doubtful=False))
            else:
                found[each] = Checkpoint(self.applied.get(each, BEFORE_ALL), "")
        return found

    async def head(self, partition: int) -> PartitionHead:
        if partition in self.away:
            raise StockUnavailableError(Reason.NOT_EXECUTED, f"p{partition}")
        last = self.last.get(partition, BEFORE_ALL)
        return PartitionHead(
            is_open=True,
            reason="",
            generation=last.generation,
            number=last.number,
            partitions=3,
            streams=[StreamState(last, None, is_behind=False)],
        )


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def causality(ledger: Ledger) -> Causality:
    share = Share(WorkerMetrics(CollectorRegistry()), trim_lag_s=60, partitions=3)
    both = cast(Any, ledger)
    return Causality(share, both, both, both, clock=lambda: ledger.now_s)


def chunk(partition: int, *entries: Entry) -> Chunk:
    first = entries[0].id
    start = EventId(first.generation, first.number - 1)
    return Chunk(partition, start, [received(entry) for entry in entries])


def said(chunks: Sequence[Chunk]) -> list[tuple[int, str]]:
    """Partition and kind of each entry, in their order."""
    return [
        (each.partition, delivery.event.kind.value)
        for each in chunks
        for delivery in each.deliveries
        if delivery.event
    ]


async def test_without_puts_everything_stays_as_it_was(causality: Causality) -> None:
    stream = FakeStream(DONOR)
    chunks = [chunk(DONOR, stream.load(PRODUCT, 9), stream.take(PRODUCT, 4, peer=1, transfer=1))]
    assert await causality.ordered(chunks) == chunks


async def test_a_chain_of_transfers_is_brought_into_its_order(causality: Causality) -> None:
    first, second, third = (FakeStream(each) for each in (DONOR, RECEIVER, OTHER))
    loaded = first.load(PRODUCT, 9)
    chunks = [
        chunk(
            OTHER,
            third.layout(PRODUCT, 2, joins=True),
            third.put(PRODUCT, 4, peer=RECEIVER, transfer=1),
        ),
        chunk(
            RECEIVER,
            second.put(PRODUCT, 5, peer=DONOR, transfer=1),
            second.take(PRODUCT, 4, peer=OTHER, transfer=1),
        ),
        chunk(DONOR, loaded, first.take(PRODUCT, 5, peer=RECEIVER, transfer=1)),
    ]
    ordered = await causality.ordered(chunks)
    assert said(ordered) == [
        (OTHER, "layout"),
        (DONOR, "load"),
        (DONOR, "take"),
        (RECEIVER, "put"),
        (RECEIVER, "take"),
        (OTHER, "put"),
    ]
    for rows in (1, 2, 3, 100):
        for batch in cut(ordered, rows):
            merge(batch)
            assert len({each.partition for each in batch}) == len(batch)
    whole = {each.partition: each for batch in cut(ordered, 100) for each in batch}
    assert {each.partition: each for each in chunks} == whole


async def test_a_put_waits_for_a_take_that_comes_in_the_next_round(
    causality: Causality, ledger: Ledger
) -> None:
    receiver = FakeStream(RECEIVER)
    put = chunk(
        RECEIVER,
        receiver.layout(PRODUCT, 2, joins=True),
        receiver.put(PRODUCT, 5, peer=DONOR, transfer=1),
        receiver.mark(PRODUCT),
    )
    ledger.last[DONOR] = EventId(1, 8)
    assert said(await causality.ordered([put])) == [(RECEIVER, "layout")]
    ledger.sums[PAIR] = Sums(5, 0, is_doubtful=False)
    rest = Chunk(RECEIVER, EventId(1, 1), put.deliveries[1:])
    ordered = await causality.ordered([rest])
    assert said(ordered) == [(RECEIVER, "put"), (RECEIVER, "mark")]
    assert not any(each.came_twice for piece in ordered for each in piece.deliveries)


@pytest.mark.parametrize(
    ("given", "doubtful", "came_twice"), [(0, False, 5), (3, False, 2), (0, True, 0)]
)
async def test_a_take_that_the_donors_stream_does_not_have_is_lost(
    causality: Causality, ledger: Ledger, given: int, doubtful: bool, came_twice: int
) -> None:
    """But for a donor of which an event is set aside: that may be the take."""
    receiver = FakeStream(RECEIVER)
    put = chunk(RECEIVER, receiver.put(PRODUCT, 5, peer=DONOR, transfer=1))
    ledger.last[DONOR] = EventId(1, 8)
    ledger.sums[PAIR] = Sums(given, 0, is_doubtful=doubtful)
    for applied in (EventId(1, 7), EventId(1, 7), EventId(1, 8)):
        assert await causality.ordered([put]) == []
        ledger.applied[DONOR] = applied
    if doubtful:
        ledger.now_s += PATIENCE_S
    (piece,) = await causality.ordered([put])
    assert [each.came_twice for each in piece.deliveries] == [came_twice]
    forgone = merge([piece]).forgone
    assert [opening.units for opening in forgone.values()] == [came_twice] * bool(came_twice)


async def test_a_donor_that_is_away_is_not_waited_for_for_ever(
    causality: Causality, ledger: Ledger
) -> None:
    receiver = FakeStream(RECEIVER)
    put = chunk(RECEIVER, receiver.put(PRODUCT, 5, peer=DONOR, transfer=1))
    ledger.away = {DONOR}
    assert await causality.ordered([put]) == []
    ledger.now_s += PATIENCE_S / 2
    assert await causality.ordered([put]) == []
    ledger.now_s += PATIENCE_S / 2
    (piece,) = await causality.ordered([put])
    assert [each.came_twice for each in piece.deliveries] == [0]
