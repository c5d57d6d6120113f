"""Merging events for the ledger: adding up, cutting, setting aside."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.batch import (
    EffectKey,
    Hold,
    HoldKey,
    Moved,
    NewLayout,
    Pair,
    Refusal,
    SecondEffect,
    ShardKey,
    TransferNote,
    TransferSide,
)
from ledger.literals import journal_rows
from ledger.merge import Chunk, cut, merge, received
from ledger.products import JournalKind
from ledger.service_events import Notice, ServiceEventKind
from sharding.events import BEFORE_ALL, EventId, Kind
from sharding.orders import OrderState, request_id_of
from sharding.partitions import Entry
from tests.ledger.streams import FakeStream, chunk_of, flat
from worker.applier import _parts

PRODUCTS = (11, 12)

step = st.tuples(
    st.sampled_from(
        [
            *("deduct", "restock", "remove", "take", "put", "ack", "undo", "layout", "opened"),
            *("hold", "confirm", "release", "rubbish"),
        ]
    ),
    st.integers(min_value=0, max_value=2),
    st.sampled_from(PRODUCTS),
    st.integers(min_value=1, max_value=4),
)


def entry_of(stream: FakeStream, what: str, product_id: int, units: int, name: str) -> Entry:
    match what:
        case "deduct":
            return stream.deduct(product_id, [(f"{name}-{i}", 1) for i in range(units)])
        case "hold" | "confirm" | "release":
            return order_entry_of(stream, what, product_id, units, int(name[1:]))
        case "take":
            return stream.take(product_id, units, peer=1)
        case "put":
            return stream.put(product_id, units, peer=1)
        case "ack":
            return stream.ack(product_id, peer=1)
        case "undo" if stream.counts[product_id]["sold"] >= units:
            return stream.undo(product_id, units, name, EventId(1, 1))
        case "layout":
            return stream.layout(product_id, units)
        case "opened" | "undo":
            return stream.opened()
        case "rubbish":
            return stream.entry(flat(x=units))
    return stream.adjust(Kind(what), product_id, units, name)


def order_entry_of(
    stream: FakeStream, what: str, product_id: int, units: int, order_id: int
) -> Entry:
    line = [(request_id_of(order_id, product_id), units)]
    if what == "hold":
        return stream.hold(product_id, line)
    if stream.counts[product_id]["held"] < units:
        return stream.opened()
    why = OrderState.CONFIRMED if what == "confirm" else OrderState.EXPIRED
    return stream.end(product_id, line, why, [order_id])


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
        found["notices"] += len(batch.notices)
        found["holds"] += len(batch.held) - len(batch.freed)
        for product_id, change in batch.products.items():
            found[product_id, "available"] += change.available
            found[product_id, "held"] += change.held
            found[product_id, "sold"] += change.sold
            found[product_id, "total"] += change.total
        for key, shard in batch.shards.items():
            for name in ("available", "held", "sold", "loaded", "in_transit"):
                found[key, name] += getattr(shard, name)
    return found


def test_units_of_the_buffer_change_their_shard_alone() -> None:
    stream = FakeStream(0)
    entries = [stream.load(11, 100), stream.buffer(11, 40)]
    batch = merge([chunk_of(0, BEFORE_ALL, entries)])
    shard = batch.shards[ShardKey(11, 0)]
    assert (shard.available, shard.loaded) == (140, 140)
    assert shard.counts == (140, 0, 0, 140)
    assert (batch.products, batch.rows) == ({}, 0)  # a release has changed the product's row itself


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
        assert change.total == change.available + change.held + change.sold


@given(st.lists(step, max_size=40))
def test_what_products_hold_is_what_their_shards_hold(
    steps: list[tuple[str, int, int, int]],
) -> None:
    batch = merge(chunks_of(steps))
    for product_id, change in batch.products.items():
        shards = [each for key, each in batch.shards.items() if key.product_id == product_id]
        assert change.held == sum(shard.held for shard in shards)


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
    (undone,) = batch.undone
    assert undone[:7] == (11, 0, entries[1].id, "a", entries[2].id, 3, 10)
    assert (batch.effects, batch.products, batch.rows) == ([], {}, 1)


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
    assert rows[0].startswith("(11,'layout 9','layout',8,0,0,0,NULL,1,1,1,'rrr")
    assert "'12 shards'" in rows[1]
    assert (batch.letters, batch.seconds, batch.products, batch.shards) == ([], [], {}, {})
    assert batch.product_ids == [11]


def test_a_transfer_leaves_a_trace_only_where_it_crosses_batches() -> None:
    stream = FakeStream(3)
    start = [stream.load(11, 10), stream.take(11, 4, peer=5)]
    within = [stream.take(11, 2, peer=6), stream.ack(11, peer=6)]
    batch = merge([chunk_of(3, BEFORE_ALL, start + within)])
    assert (batch.opened, batch.ended) == ({Pair(11, 3, 5): Moved(1, 4)}, {})
    position = stream.position
    ends = [stream.ack(11, peer=5), stream.take(11, 1, peer=5)]
    batch = merge([chunk_of(3, position, ends)])
    assert (batch.opened, batch.ended) == (
        {Pair(11, 3, 5): Moved(1, 5)},
        {Pair(11, 3, 5): Moved(1, 4)},
    )


def test_a_shard_that_owes_units_stays_noted_until_it_has_given_them_up() -> None:
    stream = FakeStream(3)
    entries = [stream.load(11, 4), stream.ack(11, peer=5, arrived=6, paid=4)]
    batch = merge([chunk_of(3, BEFORE_ALL, entries)])
    change = batch.shards[ShardKey(11, 3)]
    assert (change.available, change.in_transit, change.parted) == (0, 4, BEFORE_ALL)
    assert (batch.opened, batch.ended) == ({Pair(11, 3, 5): Moved(1, 4)}, {})
    assert batch.transfers == {TransferSide(3, 11, 5, is_out=True): TransferNote(1, 4, 6)}
    more = [stream.adjust(Kind.RESTOCK, 11, 9, "r"), stream.ack(11, peer=5, arrived=6, paid=2)]
    batch = merge([chunk_of(3, entries[-1].id, more)])
    assert (batch.opened, batch.ended) == ({}, {Pair(11, 3, 5): Moved(1, 6)})


def test_steps_of_transfers_that_earlier_versions_wrote_count_and_leave_no_sums() -> None:
    stream = FakeStream(3)
    counts = b"product 11 epoch 1 available 0 held 0 sold 0 loaded 0".split()
    entries = [stream.load(11, 0)] + [
        stream.entry(tuple(b"v 1 at 5 kind".split() + told.split() + counts))
        for told in (b"put quantity 4 peer 5 transfer 2", b"ack peer 5 transfer 2")
    ]
    batch = merge([chunk_of(3, BEFORE_ALL, entries)])
    assert batch.letters == []
    assert batch.shards[ShardKey(11, 3)].available == 4
    assert (batch.transfers, batch.opened, batch.ended) == ({}, {}, {})


def test_a_tombstone_is_kept_and_changes_nothing() -> None:
    stream = FakeStream(0)
    entries = [stream.load(11, 10), stream.tombstone(11, "never")]
    batch = merge([chunk_of(0, BEFORE_ALL, entries)])
    shard = batch.shards[ShardKey(11, 0)]
    assert (shard.available, shard.last_event) == (10, entries[1].id)
    assert (batch.rows, len(batch.raw)) == (0, 2)
    assert batch.refusals == [Refusal(11, "never", "never")]


def test_what_is_refused_for_good_is_noted_unless_nobody_could_sell_it() -> None:
    stream = FakeStream(0)
    line = request_id_of(9, 11)
    entries = [
        stream.load(11, 10),
        stream.deduct(11, [("sold", 1)], refused=[("late", 20), (line, 30)]),
        stream.deduct(11, [], refused=[("later", 40)]),
        stream.tombstone(11, "elsewhere", tombstone="b"),
        stream.tombstone(11, line),
    ]
    chunk = chunk_of(0, BEFORE_ALL, entries)
    batch = merge([chunk])
    assert batch.refusals == [
        Refusal(11, "late", "refused", 20, user_id=7),
        Refusal(11, "later", "refused", 40, user_id=7),
    ]
    assert batch.products[11].sold == 1
    assert [delivery.rows for delivery in chunk.deliveries] == [1, 3, 1, 1, 1]


def test_a_refused_change_of_layout_leaves_a_letter_and_nothing_else() -> None:
    stream = FakeStream(0)
    (milder,) = _parts([chunk_of(0, BEFORE_ALL, [stream.reshard(11, 9, 24)])], "unknown_product 11")
    batch = merge(milder)
    assert (batch.layouts, batch.shards, batch.rows, len(batch.letters)) == ({}, {}, 0, 1)


def test_held_units_leave_what_is_available_and_are_told_apart_from_sold_ones() -> None:
    stream = FakeStream(3)
    entries = [stream.load(11, 10), stream.deduct(11, [("a", 1)], holds=[("order 5 5", 4)])]
    batch = merge([chunk_of(3, BEFORE_ALL, entries)])
    change, shard = batch.products[11], batch.shards[ShardKey(11, 3)]
    assert (change.available, change.held, change.sold, change.total) == (-5, 4, 1, 0)
    assert (shard.available, shard.held, shard.sold) == (5, 4, 1)
    assert [effects.kind for effects in batch.effects] == [JournalKind.DEDUCT, JournalKind.RESERVE]
    (row,) = journal_rows(batch.effects[1])
    assert row.startswith("(11,'order 5 5','reserve',1,5,7,-4,5,3,1,2,''")
    (hold,) = batch.held.items()
    assert hold[0] == HoldKey(11, 3, "order 5 5")
    assert hold[1]._replace(at_ms=0) == Hold(order_id=5, user_id=7, quantity=4, at_ms=0)
    assert chunk_of(3, BEFORE_ALL, entries).deliveries[1].rows == 2


@pytest.mark.parametrize(
    ("why", "counts", "row"),
    [
        (OrderState.CONFIRMED, (0, -4, 4), "'confirm',2,5,7,-4,6,3,1,3,''"),
        (OrderState.RETAKEN, (0, -4, 4), "'confirm',2,5,7,-4,6,3,1,3,'retaken'"),
        (OrderState.RELEASED, (4, -4, 0), "'release',3,5,7,4,10,3,1,3,'released'"),
        (OrderState.EXPIRED, (4, -4, 0), "'release',3,5,7,4,10,3,1,3,'expired'"),
        (OrderState.REFUSED, (4, -4, 0), "'release',3,5,7,4,10,3,1,3,'refused'"),
        (OrderState.REFUND_REQUIRED, (4, -4, 0), "'release',3,5,7,4,10,3,1,3,'refund required'"),
    ],
)
def test_the_end_of_a_hold_sells_its_units_or_brings_them_back_and_says_why(
    why: OrderState, counts: tuple[int, int, int], row: str
) -> None:
    stream = FakeStream(3)
    stream.load(11, 10)
    stream.hold(11, [("order 5 5", 4)])
    batch = merge([chunk_of(3, stream.position, [stream.end(11, [("order 5 5", 4)], why)])])
    change, shard = batch.products[11], batch.shards[ShardKey(11, 3)]
    assert (change.available, change.held, change.sold) == counts
    assert (shard.available, shard.held, shard.sold) == counts
    (written,) = [text for effects in batch.effects for text in journal_rows(effects)]
    assert written.startswith(f"(11,'order 5 5',{row}")
    assert (batch.held, batch.freed) == ({}, [HoldKey(11, 3, "order 5 5")])
    assert batch.notices == []


def test_a_hold_that_begins_and_ends_within_a_batch_leaves_no_trace() -> None:
    stream = FakeStream(0)
    entries = [
        stream.load(11, 10),
        stream.hold(11, [("order 5 5", 4), ("order 6 6", 1)]),
        stream.end(11, [("order 5 5", 4)], OrderState.RELEASED),
        stream.hold(11, [("retake 5 5", 4)]),
    ]
    batch = merge([chunk_of(0, BEFORE_ALL, entries)])
    assert [key.request_id for key in batch.held] == ["order 6 6", "retake 5 5"]
    assert batch.freed == []


def test_second_holds_and_second_ends_are_set_aside_while_their_shard_follows() -> None:
    stream = FakeStream(0)
    entries = [
        stream.load(11, 10),
        stream.hold(11, [("order 5 5", 2), ("order 6 6", 1)]),
        stream.end(11, [("order 5 5", 2), ("order 6 6", 1)], OrderState.RELEASED),
    ]
    taken = {EffectKey(11, "order 5 5", "reserve"), EffectKey(11, "order 5 5", "release")}
    batch = merge([chunk_of(0, BEFORE_ALL, entries)], taken)
    assert [(letter.request_id, letter.reason) for letter in batch.letters] == [
        ("order 5 5", "duplicate_effect reserve of 2 units"),
        ("order 5 5", "duplicate_effect release of 2 units"),
    ]
    assert (batch.rows, batch.products[11].held, batch.seconds) == (2, 0, [])
    shard = batch.shards[ShardKey(11, 0)]
    assert (shard.available, shard.held, shard.counts) == (10, 0, (10, 0, 0, 10))


@pytest.mark.parametrize("first", ["confirm", "release"])
@pytest.mark.parametrize("is_known", [True, False])
def test_an_end_of_a_hold_that_ended_the_other_way_before_is_set_aside_while_its_shard_follows(
    first: str, is_known: bool
) -> None:
    """`is_known`: the journal has the first end; else both are in the batch."""
    ways = {"confirm": OrderState.CONFIRMED, "release": OrderState.EXPIRED}
    (second,) = ways.keys() - {first}
    stream, line = FakeStream(0), [("order 5 5", 4)]
    begin = [stream.load(11, 10), stream.hold(11, line), stream.end(11, line, ways[first])]
    again = [stream.hold(11, line), stream.end(11, line, ways[second])]
    if is_known:
        taken = {EffectKey(11, "order 5 5", kind) for kind in ("reserve", first)}
        batch = merge([chunk_of(0, begin[-1].id, again)], taken)
        assert batch.products == {}
    else:
        batch = merge([chunk_of(0, BEFORE_ALL, begin + again)], set())
        sold = 4 if first == "confirm" else 0
        change = batch.products[11]
        assert (change.available, change.held, change.sold) == (-sold, 0, sold)
    assert [(letter.request_id, letter.reason) for letter in batch.letters] == [
        ("order 5 5", "duplicate_effect reserve of 4 units"),
        ("order 5 5", f"duplicate_effect {second} of 4 units"),
    ]
    shard = batch.shards[ShardKey(11, 0)]
    assert shard.counts == tuple(stream.counts[11].values())
    assert shard.held == 0


def test_a_second_sale_to_an_order_is_set_aside_and_not_undone() -> None:
    stream = FakeStream(0)
    entries = [stream.load(11, 10), stream.deduct(11, [("order 5 5", 3)])]
    batch = merge([chunk_of(0, BEFORE_ALL, entries)], {EffectKey(11, "order 5 5", "deduct")})
    assert (batch.seconds, batch.products) == ([], {})
    assert [letter.reason for letter in batch.letters] == ["duplicate_effect deduct of 3 units"]


def test_callers_are_told_of_orders_that_expired_or_must_be_refunded_and_of_no_others() -> None:
    stream = FakeStream(0)
    entries = [
        stream.load(11, 10),
        stream.hold(11, [(request_id_of(n, 11), 1) for n in range(1, 6)]),
    ]
    states = (*"CRAKH", OrderState.EXPIRED, OrderState.REFUND_REQUIRED)
    entries += [
        stream.end(11, (), OrderState(state), [number]) for number, state in enumerate(states, 1)
    ]
    batch = merge([chunk_of(0, BEFORE_ALL, entries)], {EffectKey(11, "order 9 11", "refund")})
    assert [notice._replace(at_ms=0) for notice in batch.notices] == [
        Notice(ServiceEventKind.ORDER_EXPIRED, 11, order_id=6, user_id=7),
        Notice(ServiceEventKind.REFUND_REQUIRED, 11, order_id=7, user_id=7),
    ]
    assert all(notice.at_ms > 0 for notice in batch.notices)
    refund = batch.effects[-1]
    assert (refund.kind, refund.keys()) == (
        JournalKind.REFUND,
        [EffectKey(11, "order 7 11", "refund")],
    )
    assert batch.products[11].held == 5


def test_an_order_that_ended_is_told_of_although_its_event_is_set_aside() -> None:
    stream = FakeStream(0)
    stream.load(11, 10)
    stream.hold(11, [("order 5 5", 4)])
    end = stream.end(11, [("order 5 5", 4)], OrderState.EXPIRED, [5])
    (milder,) = _parts([chunk_of(0, EventId(1, 2), [end])], "below_zero really")
    batch = merge(milder)
    assert [notice.order_id for notice in batch.notices] == [5]
    assert (batch.rows, batch.products) == (0, {})
    assert (batch.shards[ShardKey(11, 0)].held, len(batch.freed)) == (-4, 1)


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
