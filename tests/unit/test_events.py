"""Reading the streams: what scripts write is understood, anything else is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgpack import packb

from sharding.events import (
    Decision,
    End,
    Event,
    EventId,
    Kind,
    MalformedEventError,
    Sale,
    decode,
)
from sharding.orders import OrderState
from sharding.outcomes import Deduction
from sharding.packing import pack

ID = EventId(1, 7)
SHARD = {
    b"v": b"1",
    b"at": b"1700000000000",
    b"product": b"1001",
    b"epoch": b"1",
    b"available": b"8",
    b"held": b"0",
    b"sold": b"2",
    b"loaded": b"10",
}
REQUESTS = [Deduction("a", 1001, 2, 7, 9), Deduction("b", 1001, 5), Deduction("c", 1001, 1)]
DEDUCT = SHARD | {b"kind": b"deduct", b"requests": pack(REQUESTS), b"statuses": b"DIR"}
LINES = ["order 5 5", 2, "7", "H 5 60000 1001:2:-", "a", 1, "0", "0", "retake 6 6", 3, "8", "L"]
ORDERS = SHARD | {
    b"kind": b"orders",
    b"ends": b"order 5 5:C:2:7,retake 6 6:F:3:0",
    b"decisions": b"5:E:7,6:F:0",
}
MARK = SHARD | {b"kind": b"mark", b"damaged": b""}
REPAIR = SHARD | {
    b"kind": b"repair",
    b"drift": b"7",
    b"live": b"-1 0 0 0",
    b"ledger": b"0 0 0 0",
    b"actor": b"ann",
    b"reason": b"counted",
}
RESTOCK = SHARD | {b"kind": b"restock", b"request": b"in-1", b"quantity": b"5", b"reason": b""}


def test_only_accepted_requests_of_a_list_are_sales() -> None:
    event = decode(ID, DEDUCT)
    assert event.sales == (Sale("a", 2, user_id=7, order_id=9, available_after=8),)
    assert (event.kind, event.product_id, event.counts) == (Kind.DEDUCT, 1001, (8, 0, 2, 10))


def test_units_that_are_held_are_told_apart_from_sold_ones() -> None:
    event = decode(ID, DEDUCT | {b"requests": packb(LINES), b"statuses": b"HDH"})
    assert event.holds == (Sale("order 5 5", 2, 7, 5, 12), Sale("retake 6 6", 3, 8, 6, 8))
    assert event.sales == (Sale("a", 1, 0, 0, 11),)
    assert decode(ID, DEDUCT | {b"requests": packb(LINES[:4]), b"statuses": b"D"}).sales == (
        Sale("order 5 5", 2, 7, 5, 8),
    )


def test_ends_of_holds_and_decisions_of_orders_are_read() -> None:
    event = decode(ID, ORDERS)
    assert event.ends == (
        End("order 5 5", 5, 7, 2, True, OrderState.CONFIRMED, available_after=5),
        End("retake 6 6", 6, 0, 3, False, OrderState.REFUND_REQUIRED, available_after=8),
    )
    assert event.decisions == (
        Decision(5, 7, OrderState.EXPIRED),
        Decision(6, 0, OrderState.REFUND_REQUIRED),
    )
    empty = decode(ID, ORDERS | {b"ends": b"", b"decisions": b""})
    assert (empty.ends, empty.decisions, empty.counts) == ((), (), (8, 0, 2, 10))


def test_identifiers_of_63_bits_survive() -> None:
    largest = 2**63 - 1
    packed = pack([Deduction("a", 1001, 1, largest, largest)])
    event = decode(ID, DEDUCT | {b"requests": packed, b"statuses": b"D"})
    assert event.sales == (Sale("a", 1, largest, largest, 8),)


def test_who_asked_for_a_correction_is_read_where_it_is_told() -> None:
    assert decode(ID, RESTOCK).actor == ""
    assert decode(ID, RESTOCK | {b"actor": "Zoë".encode()}).actor == "Zoë"


def test_units_that_left_at_another_shard_make_loaded_negative() -> None:
    event = decode(ID, RESTOCK | {b"loaded": b"-40"})
    assert event.counts is not None
    assert event.counts.loaded == -40


def test_a_marker_tells_of_counts_that_no_script_has_written() -> None:
    event = decode(ID, MARK | {b"available": b"-5", b"damaged": b"available held"})
    assert (event.kind, event.damaged) == (Kind.MARK, "available held")
    assert event.counts == (-5, 0, 2, 10)


def test_a_repair_says_what_it_changed_on_either_side() -> None:
    event = decode(ID, REPAIR | {b"ledger": b"1 0 -2 3"})
    assert event.repair == (7, (-1, 0, 0, 0), (1, 0, -2, 3), "ann")
    assert event.reason == "counted"


def without(fields: dict[bytes, bytes], name: bytes) -> dict[bytes, bytes]:
    return {key: value for key, value in fields.items() if key != name}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "no field v"),
        (DEDUCT | {b"v": b"2"}, "unknown version"),
        (DEDUCT | {b"kind": b"sell"}, "unknown kind"),
        (DEDUCT | {b"kind": b"\xff"}, "unknown kind"),
        (without(DEDUCT, b"product"), "no field product"),
        (DEDUCT | {b"at": b"253402300800000"}, "at out of bounds"),
        (DEDUCT | {b"product": b"0"}, "product out of bounds"),
        (RESTOCK | {b"actor": b"x" * 65}, "actor has 65 characters"),
        (DEDUCT | {b"available": b"-1"}, "available is not a whole number"),
        (DEDUCT | {b"sold": b"1e3"}, "sold is not a whole number"),
        (RESTOCK | {b"quantity": b"abc"}, "quantity is not a whole number"),
        (RESTOCK | {b"quantity": b"-1"}, "quantity is not a whole number"),
        (RESTOCK | {b"quantity": b"1099511627776"}, "quantity out of bounds"),
        (SHARD | {b"kind": b"buffer", b"quantity": b"0"}, "quantity out of bounds"),
        (RESTOCK | {b"request": b"x" * 65}, "request has 65 characters"),
        (RESTOCK | {b"reason": b"\xff\xfe"}, "reason is not UTF-8"),
        (DEDUCT | {b"statuses": b"D"}, "differ in number"),
        (DEDUCT | {b"requests": b"\xc1"}, "cannot be unpacked"),
        (DEDUCT | {b"requests": packb({"a": 1})}, "not a list"),
        (DEDUCT | {b"requests": packb(["a", -2, "0", "0"]), b"statuses": b"D"}, "quantity"),
        (DEDUCT | {b"requests": packb(["", 2, "0", "0"]), b"statuses": b"D"}, "request id"),
        (DEDUCT | {b"requests": packb(["a", 2, 0, "0"]), b"statuses": b"D"}, "user or order"),
        (DEDUCT | {b"v": b"x" * 1_000_000}, "not a whole number"),
        (DEDUCT | {b"requests": packb(["order x", 1, "0", ""]), b"statuses": b"H"}, "request id"),
        (DEDUCT | {b"requests": packb(["my order", 1, "0", ""]), b"statuses": b"D"}, "request id"),
        (without(ORDERS, b"ends"), "no field ends"),
        (ORDERS | {b"ends": b"order 5 5:H:2:7"}, "no end of a hold"),
        (ORDERS | {b"ends": b"order 5:C:2:7"}, "no end of a hold"),
        (ORDERS | {b"ends": b"a:C:2:7"}, "no end of a hold"),
        (ORDERS | {b"ends": b"order 9223372036854775808 5:C:2:7"}, "out of bounds"),
        (ORDERS | {b"decisions": b"5:Q:7"}, "no decision"),
        (without(MARK, b"damaged"), "no field damaged"),
        (REPAIR | {b"available": b"-5"}, "available is not a whole number"),
        (REPAIR | {b"drift": b"0"}, "drift out of bounds"),
        (REPAIR | {b"live": b"1 2 3"}, "live has 5 characters"),
        (REPAIR | {b"ledger": b"1 2 3 x"}, "ledger is not four whole numbers"),
        (REPAIR | {b"actor": b"a" * 65}, "actor has 65 characters"),
    ],
)
def test_an_entry_that_no_script_writes_is_named(fields: dict[bytes, bytes], why: str) -> None:
    with pytest.raises(MalformedEventError, match=why) as failure:
        decode(ID, fields)
    assert len(str(failure.value)) < 200


_NAMES = st.sampled_from(
    [*DEDUCT, *RESTOCK, *ORDERS, *MARK, *REPAIR, b"peer", b"transfer", b"state", b"layout"]
)


@given(st.dictionaries(_NAMES, st.binary(max_size=40)), st.sampled_from(list(Kind)))
def test_rubbish_is_either_an_event_or_malformed(rubbish: dict[bytes, bytes], kind: Kind) -> None:
    fields = DEDUCT | RESTOCK | ORDERS | MARK | REPAIR | rubbish | {b"kind": kind.value.encode()}
    try:
        event = decode(ID, fields)
    except MalformedEventError:
        return
    assert isinstance(event, Event)
    assert event.kind is kind


def test_ids_order_by_generation_and_then_by_number() -> None:
    assert EventId.parse(b"2-1") > EventId.parse("1-99") > EventId(1, 9)
    assert str(EventId(3, 14)) == "3-14"
