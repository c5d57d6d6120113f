"""What the client calls things and what the contract calls them is the same."""

from dataclasses import fields

import pytest
from google.protobuf import symbol_database
from grpc_health.v1 import health_pb2

from inventory.client import (
    Cluster,
    Deduction,
    Event,
    EventKind,
    Hold,
    HoldPage,
    InvalidRequest,
    LoadedProduct,
    NewProduct,
    Order,
    OrderLine,
    OrderResult,
    OrderState,
    Outcome,
    Partition,
    Product,
    ProductPage,
    ProductStatus,
    Reservation,
    Resolution,
    ServiceFault,
    ShardStock,
    Stock,
    rpcs,
)
from inventory.client.audits import (
    Audit,
    Repair,
    RepairSide,
    ShardDrift,
    UnitBalance,
    audit_of,
    balance_of,
    drift_of,
    repair_of,
)
from inventory.client.journal import (
    DeadLetter,
    DeadLetterPage,
    TimelineEntry,
    TimelinePage,
    dead_letter_of,
    dead_letter_page_of,
    timeline_entry_of,
    timeline_page_of,
)
from inventory.client.messages import build
from inventory.client.orders import event_of, hold_of, hold_page_of, order_of
from inventory.client.records import cluster_of, loaded_of, product_of, resolved_of, stock_of
from inventory.client.rpcs import Rpc
from inventory.v1 import admin_pb2, inventory_pb2

RPCS = [value for value in vars(rpcs).values() if isinstance(value, Rpc)]


@pytest.mark.parametrize(
    ("record", "message", "own"),
    [
        (Stock, inventory_pb2.Stock, set()),
        (ShardStock, inventory_pb2.ShardStock, set()),
        (Product, admin_pb2.Product, set()),
        (NewProduct, admin_pb2.PutProductRequest, set()),
        (ProductPage, admin_pb2.ListProductsResponse, set()),
        (LoadedProduct, admin_pb2.LoadedProduct, set()),
        (Partition, admin_pb2.Partition, set()),
        (Cluster, admin_pb2.GetClusterResponse, set()),
        (Deduction, inventory_pb2.DeductResponse, {"request_id", "message"}),
        (Order, inventory_pb2.Order, set()),
        (OrderLine, inventory_pb2.OrderLine, set()),
        (OrderResult, inventory_pb2.ReserveResponse, {"order_id", "message"}),
        (Reservation, inventory_pb2.ReserveRequest, set()),
        (Event, inventory_pb2.WatchEventsResponse, set()),
        (Hold, admin_pb2.Hold, set()),
        (HoldPage, admin_pb2.ListHoldsResponse, set()),
        (DeadLetter, admin_pb2.DeadLetter, set()),
        (DeadLetterPage, admin_pb2.ListDeadLettersResponse, set()),
        (TimelineEntry, admin_pb2.TimelineEntry, set()),
        (TimelinePage, admin_pb2.GetTimelineResponse, set()),
        (Audit, admin_pb2.AuditResponse, set()),
        (Repair, admin_pb2.RepairResponse, set()),
        (ShardDrift, admin_pb2.ShardDrift, set()),
        (UnitBalance, admin_pb2.UnitBalance, set()),
    ],
)
def test_a_record_has_the_fields_of_its_message(record, message, own):
    assert {field.name for field in fields(record)} - own == set(message.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (stock_of, inventory_pb2.Stock),
        (product_of, admin_pb2.Product),
        (loaded_of, admin_pb2.LoadedProduct),
        (cluster_of, admin_pb2.GetClusterResponse),
        (order_of, inventory_pb2.Order),
        (event_of, inventory_pb2.WatchEventsResponse),
        (hold_of, admin_pb2.Hold),
        (hold_page_of, admin_pb2.ListHoldsResponse),
        (dead_letter_of, admin_pb2.DeadLetter),
        (dead_letter_page_of, admin_pb2.ListDeadLettersResponse),
        (timeline_entry_of, admin_pb2.TimelineEntry),
        (timeline_page_of, admin_pb2.GetTimelineResponse),
        (audit_of, admin_pb2.AuditResponse),
        (drift_of, admin_pb2.ShardDrift),
        (balance_of, admin_pb2.UnitBalance),
    ],
)
def test_every_number_of_a_message_arrives_in_its_own_field(read, message):
    filled = message()
    numbers = [
        field.name
        for field in message.DESCRIPTOR.fields
        if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64) and not field.is_repeated
    ]
    for number, name in enumerate(numbers, start=1):
        setattr(filled, name, number)
    assert [getattr(read(filled), name) for name in numbers] == list(range(1, len(numbers) + 1))


def test_counts_that_the_journal_does_not_know_are_none_and_no_zeros():
    unknown = timeline_entry_of(admin_pb2.TimelineEntry())
    assert (unknown.available_before, unknown.available_after) == (None, None)
    nothing = timeline_entry_of(admin_pb2.TimelineEntry(available_before=0, available_after=0))
    assert (nothing.available_before, nothing.available_after) == (0, 0)


@pytest.mark.parametrize("word", [0, 99])
def test_a_resolution_of_a_newer_service_is_not_guessed_at(word):
    with pytest.raises(ServiceFault):
        resolved_of(inventory_pb2.ResolveRequestResponse(resolution=word))


def test_nested_records_arrive_in_their_order():
    shards = [inventory_pb2.ShardStock(shard=n, available=n * 2) for n in range(3)]
    stock = stock_of(inventory_pb2.Stock(shards=shards))
    assert [(each.shard, each.available) for each in stock.shards] == [(0, 0), (1, 2), (2, 4)]


def test_every_outcome_but_unavailable_keeps_its_name():
    theirs = {name.removeprefix("OUTCOME_") for name, _ in inventory_pb2.Outcome.items()}
    ours = {outcome.name for outcome in Outcome}
    assert ours - theirs == {"NOT_EXECUTED", "UNKNOWN"}
    assert theirs - ours == {"UNSPECIFIED", "UNAVAILABLE"}


def test_every_status_state_kind_and_resolution_keeps_its_name():
    statuses = {f"PRODUCT_STATUS_{each.name}" for each in ProductStatus}
    assert statuses == set(inventory_pb2.ProductStatus.keys())
    assert {f"ORDER_STATE_{each.name}" for each in OrderState} == set(
        inventory_pb2.OrderState.keys()
    )
    assert {f"EVENT_KIND_{each.name}" for each in EventKind} == set(inventory_pb2.EventKind.keys())
    theirs = inventory_pb2.ResolveRequestResponse.Resolution.keys()
    assert {f"RESOLUTION_{each.name}" for each in Resolution} == {*theirs} - {
        "RESOLUTION_UNSPECIFIED"
    }


@pytest.mark.parametrize("state", OrderState)
def test_every_state_of_an_order_arrives(state):
    message = inventory_pb2.Order(state=f"ORDER_STATE_{state.name}", retaken=True)
    assert (order_of(message).state, order_of(message).retaken) == (state, True)


@pytest.mark.parametrize("kind", EventKind)
def test_every_kind_of_event_arrives_with_its_cursor(kind):
    message = inventory_pb2.WatchEventsResponse(kind=f"EVENT_KIND_{kind.name}", cursor="7")
    assert (event_of(message).kind, event_of(message).cursor) == (kind, "7")


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.path)
def test_a_call_is_one_of_the_contract(rpc):
    _, service_name, method_name = rpc.path.split("/")
    assert health_pb2.DESCRIPTOR
    service = symbol_database.Default().pool.FindServiceByName(service_name)
    method = service.methods_by_name[method_name]
    assert method.input_type is rpc.request.DESCRIPTOR
    assert method.output_type is rpc.response.DESCRIPTOR


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
def test_a_number_that_its_field_has_no_room_for_is_an_invalid_request(value: int) -> None:
    with pytest.raises(InvalidRequest, match="out of range"):
        build(inventory_pb2.GetStockRequest, product_id=value)


def test_an_audit_and_a_repair_tell_of_their_drifts_and_a_side_that_is_new_is_not_guessed_at():
    drifts = [
        admin_pb2.ShardDrift(partition=n, first_event_id=f"1-{n}", side=side)
        for n, side in enumerate((admin_pb2.REPAIR_SIDE_LIVE, admin_pb2.REPAIR_SIDE_LEDGER, 99))
    ]
    audit = audit_of(admin_pb2.AuditResponse(drifts=drifts, live={"available": 3}))
    repair = repair_of(admin_pb2.RepairResponse(drifts=drifts, applied=True))
    assert (repair.drifts, repair.applied) == (audit.drifts, True)
    assert [drift.side for drift in audit.drifts] == [
        RepairSide.LIVE,
        RepairSide.LEDGER,
        RepairSide.UNSPECIFIED,
    ]
    assert [drift.first_event_id for drift in audit.drifts] == ["1-0", "1-1", "1-2"]
    assert audit.live.available == 3


def test_a_value_of_another_type_is_named_like_any_that_is_wrong() -> None:
    with pytest.raises(InvalidRequest, match=r"^order_id: 'o-1' is of a type") as caught:
        build(inventory_pb2.ReserveRequest, user_id=7, order_id="o-1")
    assert caught.value.reason == "INVALID_TYPE"
