"""Puts come after their takes, in whichever order the streams tell of them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from ledger.batch import TransferKey
from ledger.merge import Chunk, cut, merge, received
from ledger.transfer_sums import Pair, Sums
from sharding.events import BEFORE_ALL, EventId
from sharding.partitions import Checkpoint, Entry
from tests.ledger.streams import FakeStream
from worker.causality import PATIENCE_S, Causality
from worker.metrics import WorkerMetrics
from worker.share import Share

PRODUCT = 1
DONOR, RECEIVER, OTHER = 0, 1, 2
PAIR = Pair(PRODUCT, DONOR, RECEIVER, 1)


class Ledger:
    """What the ledger says."""

    def __init__(self) -> None:
        self.sums: dict[Pair, Sums] = {}
        self.applied: dict[int, EventId] = {}
        self.asked = 0

    async def of(self, wanted: Collection[Any]) -> Mapping[Any, Any]:
        """Checkpoints of partitions, or sums of pairs."""
        self.asked += bool(wanted)
        found: dict[Any, Any] = {}
        for each in wanted:
            if isinstance(each, Pair):
                found[each] = self.sums.get(each, Sums(0, 0, is_doubtful=False))
            else:
                found[each] = Checkpoint(self.applied.get(each, BEFORE_ALL), "")
        return found


class Bench:
    """One worker, which serves the receiver and the third shard, and a clock."""

    def __init__(self) -> None:
        self.ledger, self.now_s = Ledger(), 0.0
        self.share = Share(WorkerMetrics(CollectorRegistry()), trim_lag_s=60, partitions=3)
        self.share.lease(frozenset({RECEIVER, OTHER}), float("inf"))
        both = cast(Any, self.ledger)
        self._causality = Causality(self.share, both, both, clock=lambda: self.now_s)

    async def ordered(self, *chunks: Chunk) -> list[Chunk]:
        return await self._causality.ordered(chunks)


@pytest.fixture
def bench() -> Bench:
    return Bench()


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


def put_of(units: int, after: EventId, *, transfer: int = 1) -> Chunk:
    """At the receiver, by a take of the donor."""
    stream = FakeStream(RECEIVER)
    return chunk(RECEIVER, stream.put(PRODUCT, units, peer=DONOR, transfer=transfer, after=after))


async def test_without_transfers_everything_stays_as_it_was_and_nobody_is_asked(
    bench: Bench,
) -> None:
    stream = FakeStream(DONOR)
    entries = (stream.load(PRODUCT, 9), stream.take(PRODUCT, 4, peer=RECEIVER, transfer=1))
    chunks = [chunk(DONOR, *entries)]
    assert await bench.ordered(*chunks) == chunks
    assert bench.ledger.asked == 0


async def test_chains_of_transfers_are_brought_into_their_order(bench: Bench) -> None:
    first, second, third = (FakeStream(each) for each in (DONOR, RECEIVER, OTHER))
    loaded = first.load(PRODUCT, 9)
    taken = first.take(PRODUCT, 5, peer=RECEIVER, transfer=1)
    put = second.put(PRODUCT, 5, peer=DONOR, transfer=1, after=taken.id)
    on = second.take(PRODUCT, 4, peer=OTHER, transfer=1)
    joins = third.layout(PRODUCT, 2, joins=True)
    chunks = [
        chunk(OTHER, joins, third.put(PRODUCT, 4, peer=RECEIVER, transfer=1, after=on.id)),
        chunk(RECEIVER, put, on),
        chunk(DONOR, loaded, taken, first.ack(PRODUCT, peer=RECEIVER, transfer=1, after=put.id)),
    ]
    found = await bench.ordered(*chunks)
    steps = said(found)
    assert sorted(steps) == sorted(said(chunks))
    for before, after in [
        ((DONOR, "take"), (RECEIVER, "put")),
        ((RECEIVER, "put"), (RECEIVER, "take")),
        ((RECEIVER, "take"), (OTHER, "put")),
        ((RECEIVER, "put"), (DONOR, "ack")),
    ]:
        assert steps.index(before) < steps.index(after)
    for rows in (1, 2, 3, 100):
        for batch in cut(found, rows):
            merge(batch)
            assert len({each.partition for each in batch}) == len(batch)
    whole = {each.partition: each for batch in cut(found, 100) for each in batch}
    assert {each.partition: each for each in chunks} == whole


async def test_a_put_waits_until_the_other_workers_ledger_has_its_take(bench: Bench) -> None:
    put = put_of(5, EventId(3, 8))
    bench.ledger.applied[DONOR] = EventId(3, 7)
    assert await bench.ordered(put) == []
    bench.ledger.applied[DONOR] = EventId(3, 8)
    assert await bench.ordered(put) == [put]


@pytest.mark.parametrize(
    ("sums", "twice"),
    [
        (Sums(0, 0, is_doubtful=False), 5),
        (Sums(9, 6, is_doubtful=False), 2),
        (Sums(9, 4, is_doubtful=False), 0),
        (Sums(0, 9, is_doubtful=False), 5),
        (Sums(0, 0, is_doubtful=True), 0),
    ],
)
async def test_a_take_that_the_donor_was_opened_without_is_lost_as_far_as_units_tell(
    bench: Bench, sums: Sums, twice: int
) -> None:
    """But for shards of which an event is set aside: that may be the take."""
    bench.ledger.applied[DONOR], bench.ledger.sums[PAIR] = EventId(4, 2), sums
    (piece,) = await bench.ordered(put_of(5, EventId(3, 8), transfer=7))
    assert [each.came_twice for each in piece.deliveries] == [twice]
    forgone = merge([piece]).forgone
    key = TransferKey(PRODUCT, DONOR, RECEIVER, 7)
    assert {key: opening.units for key, opening in forgone.items()} == (
        {key: twice} if twice else {}
    )


@pytest.mark.parametrize(("arrived", "short"), [(0, 5), (5, 0)])
async def test_a_put_that_the_receiver_was_opened_without_is_lost_as_far_as_units_tell(
    bench: Bench, arrived: int, short: int
) -> None:
    donor = FakeStream(DONOR)
    donor.load(PRODUCT, 9)
    ack = donor.ack(PRODUCT, peer=RECEIVER, transfer=1, after=EventId(3, 8))
    bench.share.advance(RECEIVER, Checkpoint(EventId(4, 2), ""))
    bench.ledger.sums[PAIR] = Sums(5, arrived, is_doubtful=False)
    (piece,) = await bench.ordered(chunk(DONOR, ack))
    assert [each.came_short for each in piece.deliveries] == [short]
    assert sum(each.units for each in merge([piece]).regained.values()) == short


async def test_two_lost_takes_of_a_pair_are_each_given_up_once(bench: Bench) -> None:
    bench.ledger.applied[DONOR] = EventId(4, 2)
    bench.ledger.sums[PAIR] = Sums(0, 0, is_doubtful=False)
    stream = FakeStream(RECEIVER)
    puts = [
        stream.put(PRODUCT, units, peer=DONOR, transfer=units, after=EventId(3, 8))
        for units in (2, 3)
    ]
    (piece,) = await bench.ordered(chunk(RECEIVER, *puts))
    assert [each.came_twice for each in piece.deliveries] == [2, 3]


async def test_a_partition_of_which_nothing_comes_is_not_waited_for_for_ever(
    bench: Bench,
) -> None:
    """All that waits for it passes then, and not one after the other; what comes of it counts anew."""
    stream = FakeStream(RECEIVER)
    puts = [
        stream.put(PRODUCT, 1, peer=DONOR, transfer=number, after=EventId(3, 8))
        for number in (1, 2, 3)
    ]
    waiting = chunk(RECEIVER, *puts)
    assert await bench.ordered(waiting) == []
    bench.now_s += PATIENCE_S / 2
    bench.ledger.applied[DONOR] = EventId(3, 1)
    assert await bench.ordered(waiting) == []
    bench.now_s += PATIENCE_S / 2
    assert await bench.ordered(waiting) == []
    bench.now_s += PATIENCE_S / 2
    (piece,) = await bench.ordered(waiting)
    assert [each.came_twice for each in piece.deliveries] == [0, 0, 0]


async def test_what_makes_up_for_a_lost_step_waits_for_nobody(bench: Bench) -> None:
    stream = FakeStream(RECEIVER)
    entry = stream.put(PRODUCT, 5, peer=DONOR, transfer=1, after=EventId(9, 9))
    again = Entry(entry.id, (*entry.fields, b"regained", b"1"))
    assert said(await bench.ordered(chunk(RECEIVER, again))) == [(RECEIVER, "put")]


async def test_units_of_a_later_transfer_that_stood_for_lost_ones_lack_then_themselves(
    bench: Bench,
) -> None:
    """The donor was restored with what it had given, and has given it again before the late put came."""
    bench.ledger.applied[DONOR] = EventId(4, 9)
    bench.ledger.sums[PAIR] = Sums(5, 0, is_doubtful=False)
    stream = FakeStream(RECEIVER)
    late = stream.put(PRODUCT, 5, peer=DONOR, transfer=1, after=EventId(3, 8))
    again = stream.put(PRODUCT, 5, peer=DONOR, transfer=4_000_001, after=EventId(4, 9))
    (piece,) = await bench.ordered(chunk(RECEIVER, late))
    assert [each.came_twice for each in piece.deliveries] == [0]
    bench.ledger.sums[PAIR] = Sums(5, 5, is_doubtful=False)
    (piece,) = await bench.ordered(chunk(RECEIVER, again))
    assert [each.came_twice for each in piece.deliveries] == [5]
