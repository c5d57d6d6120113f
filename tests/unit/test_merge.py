"""Merging events for the ledger: adding up, cutting, setting aside."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.batch import EffectKey, NewLayout, Opening, SecondEffect, ShardKey, TransferKey, Undone
from ledger.literals import journal_rows
from sharding.events import BEFORE_ALL, EventId, Kind
from sharding.partitions import Entry
from tests.ledger.streams import FakeStream, chunk_of, flat
from worker.applier import _parts
from worker.merge import Chunk, cut, merge, received

PRODUCTS = (11, 12)

step = st.tuples(
    st.sampled_from(
        ["deduct", "restock", "remove", "take", "put", "ack", "undo", "layout", "opened", "rubbish"]
    ),
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
        case "ack":
            return stream.ack(product_id, peer=1, transfer=1)
        case "undo" if stream.counts[product_id]["sold"] >= units:
            return stream.undo(product_id, units, name, EventId(1, 1))
        case "layout":
            return stream.layout(product_id, units)
        case "opened" | "undo":
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


def test_a_second_effect_counts_for_its_shard_alone_and_is_to_be_undone() -> None:
    stream = FakeStream(0)
    entries = [
        stream.load(11, 10),
        stream.deduct(11, [("a", 1), ("b", 2)]),
        stream.deduct(11, [("a", 3)]),
        stream.deduct(11, [("a", 1), ("c", 1)]),
    ]
    batch = merge([chunk_of(0, BEFORE_ALL, entries)], {EffectKey(11, "b", "deduct")})
    assert [sale.request_id for effects in batch.effects for sale in effects.sales] == ["a", "c"]
    assert batch.seconds == [
        SecondEffect(11, 0, 1, entries[1].id, "b", 2),
        SecondEffect(11, 0, 1, entries[2].id, "a", 3),
        SecondEffect(11, 0, 1, entries[3].id, "a", 1),
    ]
    assert (batch.products[11].sold, batch.shards[ShardKey(11, 0)].sold) == (2, 8)
    assert batch.letters == []


def test_second_effects_that_no_script_brings_back_are_set_aside() -> None:
    stream = FakeStream(0)
    entries = [
        stream.load(11, 10),
        stream.deduct(11, [("a", 1), ("a", 1)]),
        stream.adjust(Kind.RESTOCK, 11, 5, "b"),
    ]
    batch = merge([chunk_of(0, BEFORE_ALL, entries)], {EffectKey(11, "b", "restock")})
    assert [letter.reason for letter in batch.letters] == [
        "duplicate_effect deduct of 1 units",
        "duplicate_effect restock of 5 units",
    ]
    assert (batch.rows, batch.seconds, batch.products[11].total) == (1, [], 0)


def test_units_of_a_second_effect_that_came_back_change_their_shard_alone() -> None:
    stream = FakeStream(0)
    entries = [stream.load(11, 10), stream.deduct(11, [("a", 3)])]
    entries.append(stream.undo(11, 3, "a", entries[1].id))
    batch = merge([chunk_of(0, BEFORE_ALL, entries)], {EffectKey(11, "a", "deduct")})
    shard = batch.shards[ShardKey(11, 0)]
    assert (shard.available, shard.sold, shard.counts) == (10, 0, (10, 0, 0, 10))
    assert batch.undone == [Undone(11, 0, entries[1].id, "a", entries[2].id)]
    assert (batch.rows, batch.products) == (0, {})


def test_a_shard_that_joins_a_layout_starts_with_nothing_and_one_that_has_a_part_keeps_it() -> None:
    stream = FakeStream(0)
    joining = [stream.load(11, 10), stream.close(11), stream.layout(11, 7, joins=True, epoch=2)]
    batch = merge([chunk_of(0, BEFORE_ALL, joining)])
    shard = batch.shards[ShardKey(11, 0)]
    assert (shard.reset, shard.epoch, shard.layout_version, shard.state) == (True, 2, 7, "open")
    assert (shard.available, shard.loaded, shard.counts) == (0, 0, (0, 0, 0, 0))
    start = stream.position
    batch = merge([chunk_of(0, start, [stream.layout(11, 8, epoch=2)])])
    shard = batch.shards[ShardKey(11, 0)]
    assert (shard.reset, shard.layout_version, batch.rows) == (False, 8, 0)


def test_the_latest_layout_of_a_batch_is_the_products_and_each_has_a_journal_row() -> None:
    first, second = FakeStream(0), FakeStream(1)
    later = second.reshard(11, 9, 24, "6 12", "r" * 200)
    chunks = [
        chunk_of(1, BEFORE_ALL, [later, second.reshard(11, 9, 24, "6 12")]),
        chunk_of(0, BEFORE_ALL, [first.reshard(11, 8, 12, "6")]),
    ]
    assert merge(chunks).layouts == {11: NewLayout(9, 24, "6 12")}
    batch = merge(chunks, set())
    assert batch.layouts == {11: NewLayout(9, 24, "6 12")}
    rows = [row for effects in batch.effects for row in journal_rows(effects)]
    assert len(rows) == 2
    assert rows[0].startswith("(11,'layout 9','layout',8,0,0,0,1,1,1,'rrr")
    assert "'12 shards'" in rows[1]
    assert (batch.letters, batch.seconds, batch.products, batch.shards) == ([], [], {}, {})
    assert batch.product_ids == [11]


def test_a_transfer_leaves_a_trace_only_where_it_crosses_batches() -> None:
    stream = FakeStream(3)
    start = [stream.load(11, 10), stream.take(11, 4, peer=5, transfer=1)]
    within = [stream.take(11, 2, peer=6, transfer=1), stream.ack(11, peer=6, transfer=1)]
    batch = merge([chunk_of(3, BEFORE_ALL, start + within)])
    assert batch.opened == {TransferKey(11, 3, 5, 1): Opening(1, 4, start[1].id)}
    assert batch.ended == []
    position = stream.position
    ends = [stream.ack(11, peer=5, transfer=1), stream.take(11, 1, peer=5, transfer=2)]
    batch = merge([chunk_of(3, position, ends)])
    assert batch.ended == [TransferKey(11, 3, 5, 1)]
    assert batch.opened == {TransferKey(11, 3, 5, 2): Opening(1, 1, ends[1].id)}


def test_a_tombstone_is_kept_and_changes_nothing() -> None:
    stream = FakeStream(0)
    entries = [stream.load(11, 10), stream.tombstone(11, "never")]
    batch = merge([chunk_of(0, BEFORE_ALL, entries)])
    shard = batch.shards[ShardKey(11, 0)]
    assert (shard.available, shard.last_event) == (10, entries[1].id)
    assert (batch.rows, len(batch.raw)) == (0, 2)


def test_a_refused_change_of_layout_leaves_a_letter_and_nothing_else() -> None:
    stream = FakeStream(0)
    (milder,) = _parts([chunk_of(0, BEFORE_ALL, [stream.reshard(11, 9, 24)])], "unknown_product 11")
    batch = merge(milder)
    assert (batch.layouts, batch.shards, batch.rows, len(batch.letters)) == ({}, {}, 0, 1)


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
