"""Merging events for the ledger: adding up, cutting, setting aside."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.batch import EffectKey, ShardKey
from sharding.events import BEFORE_ALL, EventId, Kind
from sharding.partitions import Entry
from tests.ledger.streams import FakeStream, chunk_of, flat
from worker.applier import _parts
from worker.merge import Chunk, cut, merge, received

PRODUCTS = (11, 12)

step = st.tuples(
    st.sampled_from(["deduct", "restock", "remove", "take", "put", "opened", "rubbish"]),
    st.integers(min_value=0, max_value=2),
    st.sampled_from(PRODUCTS),
    st.integers(min_value=1, max_value=4),
)


def entry_of(stream: FakeStream, what: str, product_id: int, units: int, name: str) -> Entry:
    match what:
        case "deduct":
            return stream.deduct(product_id, [(f"{name}-{i}", 1) for i in range(units)])
        case "take":
            return stream.take(product_id, units, peer=1, transfer=1)
        case "put":
            return stream.put(product_id, units, peer=1, transfer=1)
        case "opened":
            return stream.opened()
        case "rubbish":
            return stream.entry(flat(x=units))
    return stream.adjust(Kind(what), product_id, units, name)


def chunks_of(steps: Sequence[tuple[str, int, int, int]]) -> list[Chunk]:
    streams = [FakeStream(partition) for partition in range(3)]
    entries: dict[int, list[Entry]] = {}
    for stream in streams:
        entries[stream.partition] = [stream.load(each, 1_000) for each in PRODUCTS]
    for position, (what, partition, product_id, units) in enumerate(steps):
        entry = entry_of(streams[partition], what, product_id, units, f"r{position}")
        entries[partition].append(entry)
    return [chunk_of(partition, BEFORE_ALL, each) for partition, each in entries.items()]


def totals(batches: Sequence[Sequence[Chunk]]) -> Counter[object]:
    """What several batches add to the ledger together."""
    found: Counter[object] = Counter()
    for chunks in batches:
        batch = merge(chunks)
        found["rows"] += batch.rows
        found["letters"] += len(batch.letters)
        found["raw"] += len(batch.raw)
        for product_id, change in batch.products.items():
            found[product_id, "available"] += change.available
            found[product_id, "sold"] += change.sold
            found[product_id, "total"] += change.total
        for key, shard in batch.shards.items():
            for name in ("available", "sold", "loaded", "in_transit"):
                found[key, name] += getattr(shard, name)
    return found


@given(st.lists(step, max_size=40), st.integers(min_value=1, max_value=30))
def test_however_entries_are_cut_the_same_is_added(
    steps: list[tuple[str, int, int, int]], rows_max: int
) -> None:
    chunks = chunks_of(steps)
    pieces = list(cut(chunks, rows_max))
    assert +totals(pieces) == +totals([chunks])
    assert -totals(pieces) == -totals([chunks])


@given(st.lists(step, max_size=40), st.integers(min_value=1, max_value=30))
def test_cuts_keep_the_order_and_join_without_a_gap(
    steps: list[tuple[str, int, int, int]], rows_max: int
) -> None:
    chunks = chunks_of(steps)
    seen: dict[int, EventId] = {}
    entries: dict[int, list[Entry]] = {}
    for piece in cut(chunks, rows_max):
        rows = [delivery.rows for chunk in piece for delivery in chunk.deliveries]
        assert sum(rows[:-1]) < rows_max
        for chunk in piece:
            assert chunk.start == seen.get(chunk.partition, BEFORE_ALL)
            seen[chunk.partition] = chunk.end.id
            entries.setdefault(chunk.partition, []).extend(d.entry for d in chunk.deliveries)
    assert entries == {
        chunk.partition: [delivery.entry for delivery in chunk.deliveries] for chunk in chunks
    }


@given(st.lists(step, max_size=40))
def test_shards_end_as_their_last_entries_say(steps: list[tuple[str, int, int, int]]) -> None:
    batch = merge(chunks_of(steps))
    for change in batch.shards.values():
        counts = (change.available, change.held, change.sold, change.loaded)
        assert counts == tuple(change.counts)
        assert sum(counts[:3]) + change.in_transit == change.loaded


@given(st.lists(step, max_size=40))
def test_units_of_a_product_are_conserved(steps: list[tuple[str, int, int, int]]) -> None:
    for change in merge(chunks_of(steps)).products.values():
        assert change.total == change.available + change.sold


@given(st.lists(step, max_size=25))
def test_halving_a_refused_batch_comes_to_single_events_and_ends(
    steps: list[tuple[str, int, int, int]],
) -> None:
    todo: list[Sequence[Chunk]] = [chunks_of(steps)]
    singles = []
    while todo:
        chunks = todo.pop()
        if sum(len(chunk.deliveries) for chunk in chunks) == 1:
            singles.append(chunks[0].deliveries[0].entry)
        else:
            todo.extend(_parts(chunks, "why"))
    expected = [each.entry for chunk in chunks_of(steps) for each in chunk.deliveries]
    assert sorted(each.id for each in singles) == sorted(each.id for each in expected)


def test_a_refused_event_is_followed_by_its_shard_and_only_then_by_nothing() -> None:
    chunks = chunks_of([("deduct", 0, 11, 3)])
    single = [Chunk(0, EventId(1, 2), chunks[0].deliveries[2:])]
    (milder,) = _parts(single, "below_zero really")
    batch = merge(milder)
    assert (batch.rows, batch.products) == (0, {})
    assert batch.shards[ShardKey(11, 0)].available == -3
    assert [each.reason for each in batch.letters] == ["below_zero really"]
    (mildest,) = _parts(milder, "below_zero still")
    batch = merge(mildest)
    assert (batch.shards, batch.products, batch.rows) == ({}, {}, 0)
    assert [each.reason for each in batch.letters] == ["below_zero really"]


def test_an_effect_that_was_had_before_goes_to_the_dead_letters_alone() -> None:
    stream = FakeStream(0)
    entries = [stream.load(11, 10), stream.deduct(11, [("a", 1), ("b", 2), ("a", 1)])]
    batch = merge([chunk_of(0, BEFORE_ALL, entries)], {EffectKey(11, "b", "deduct")})
    assert [sale.request_id for effects in batch.effects for sale in effects.sales] == ["a"]
    assert [letter.request_id for letter in batch.letters] == ["b", "a"]
    assert (batch.products[11].sold, batch.shards[ShardKey(11, 0)].sold) == (1, 4)


@pytest.mark.parametrize(
    "fields",
    [
        (),
        flat(v=1),
        flat(v=1, kind="deduct", at=10**18, product=1, epoch=1),
        flat(v=1, kind="opened", at=10**18),
        (b"v", b"1", b"kind"),
    ],
    ids=["nothing", "no kind", "incomplete", "year 30000000", "odd"],
)
def test_what_cannot_be_read_is_noted_with_a_reason(fields: tuple[bytes, ...]) -> None:
    delivery = received(Entry(EventId(1, 1), fields))
    assert delivery.event is None
    assert delivery.problem.startswith("malformed ")
