"""`inventoryctl order …` and `simulate --with-payment`, run in this process against a server in it."""

import pytest

from inventory.cli.exits import Exit
from inventory.client import EventKind
from inventory.v1 import admin_pb2, inventory_pb2
from tests.unit.client_service import Fault, Inventory, Product

# The fixtures of the other commands' tests are these commands', too.
from tests.unit.test_cli import Shell, ctl, health, inventory, names

__all__ = ["ctl", "health", "inventory"]

RESERVE = "order reserve 5 --line 1001:2 --line 1002:3 --user 9 --ttl 60"


@pytest.fixture(autouse=True)
def _second_product(inventory: Inventory) -> None:
    inventory.products[1002] = Product(total=100, available=100)


def test_a_reservation_prints_the_fields_of_its_message(ctl: Shell, capsys, inventory):
    code, printed = ctl.json(capsys, RESERVE)
    assert code == Exit.OK
    assert set(printed) == names(inventory_pb2.ReserveResponse) | {"order_id"}
    assert set(printed["order"]) == names(inventory_pb2.Order)
    assert (printed["outcome"], printed["order"]["state"]) == ("OUTCOME_HELD", "ORDER_STATE_HELD")
    assert printed["order"]["lines"] == [
        {"product_id": 1001, "quantity": 2},
        {"product_id": 1002, "quantity": 3},
    ]
    (request,) = inventory.orders.requests
    assert (request.order_id, request.user_id, request.ttl_s) == (5, 9, 60)


@pytest.mark.parametrize("command", ["reserve", "sell"])
def test_an_order_that_is_short_names_its_lines_and_ends_with_its_own_code(
    ctl: Shell, capsys, command
):
    line = f"order {command} 5 --line 1001:2 --line 1002:101"
    code, printed = ctl.json(capsys, line)
    assert (code, printed["outcome"]) == (Exit.REFUSED, "OUTCOME_INSUFFICIENT_STOCK")
    assert printed["short_lines"] == [{"product_id": 1002, "quantity": 101}]
    assert ctl(line) == Exit.REFUSED
    assert "too few units for 101 of product 1002" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message", "outcome"),
    [
        ("order sell 6 --line 1001:2", inventory_pb2.DeductOrderResponse, "OUTCOME_CONFIRMED"),
        ("order confirm 5", inventory_pb2.ConfirmResponse, "OUTCOME_CONFIRMED"),
        ("order release 5 --product 1001", inventory_pb2.ReleaseResponse, "OUTCOME_RELEASED"),
    ],
)
def test_an_end_prints_the_fields_of_its_message(ctl: Shell, capsys, line, message, outcome):
    ctl(RESERVE)
    capsys.readouterr()
    code, printed = ctl.json(capsys, line)
    assert (code, printed["outcome"]) == (Exit.OK, outcome)
    assert set(printed) == names(message) | {"order_id"}


@pytest.mark.parametrize("line", ["order show 5", "order extend 5 --ttl 90"])
def test_an_order_is_printed_flat(ctl: Shell, capsys, line):
    ctl(RESERVE)
    capsys.readouterr()
    code, printed = ctl.json(capsys, line)
    assert (code, set(printed)) == (Exit.OK, names(inventory_pb2.Order))


def test_people_read_who_holds_what_until_when(ctl: Shell, capsys):
    ctl(RESERVE)
    printed = capsys.readouterr().out
    assert printed.startswith("order 5, user 9: held, 2 of product 1001, 3 of product 1002\n")
    assert printed.count("order 5") == 1
    assert "held until 1970-01-01 00:01:00.000Z" in printed


def test_a_payment_that_came_too_late_is_told_apart(ctl: Shell, capsys, inventory):
    for order_id in (5, 6):
        ctl(f"order reserve {order_id} --line 1001:60")
        inventory.orders.expire(order_id)
    capsys.readouterr()
    assert ctl("order confirm 5") == Exit.OK
    assert "its units were still there" in capsys.readouterr().out
    code, printed = ctl.json(capsys, "order confirm 6")
    assert (code, printed["outcome"]) == (Exit.REFUSED, "OUTCOME_REFUND_REQUIRED")


def test_an_end_that_does_not_fit_is_an_error_that_names_the_order(ctl: Shell, capsys):
    ctl(RESERVE)
    ctl("order release 5")
    capsys.readouterr()
    code, printed = ctl.json(capsys, "order confirm 5")
    assert code == Exit.REJECTED
    assert (printed["error"]["reason"], printed["error"]["order_id"]) == ("ORDER_RELEASED", 5)
    code, printed = ctl.json(capsys, "order show 7")
    assert (code, printed["error"]["reason"]) == (Exit.REJECTED, "UNKNOWN_ORDER")


def test_an_unknown_end_has_a_code_of_its_own(ctl: Shell, capsys, inventory):
    inventory.order_faults.append(Fault(reason="OUTCOME_UNKNOWN", retry_s=60))
    code, printed = ctl.json(capsys, RESERVE)
    assert (code, printed["error"]["order_id"]) == (Exit.UNKNOWN, 5)


def test_holds_are_listed_and_released_by_force(ctl: Shell, capsys):
    ctl(RESERVE)
    capsys.readouterr()
    code, printed = ctl.json(capsys, "order holds --product 1002")
    assert (code, set(printed)) == (Exit.OK, names(admin_pb2.ListHoldsResponse))
    assert [each["quantity"] for each in printed["holds"]] == [3]
    assert set(printed["holds"][0]) == names(admin_pb2.Hold)
    assert ctl("order holds") == Exit.OK
    assert "1002" in capsys.readouterr().out
    code, printed = ctl.json(capsys, "order force-release 5 --reason stuck --actor ops")
    assert (code, printed["state"]) == (Exit.OK, "ORDER_STATE_RELEASED")


def test_a_watch_prints_one_event_a_line(ctl: Shell, capsys, monkeypatch, inventory):
    seen: list = []

    def until_the_second(event: object) -> None:
        seen.append(event)
        if len(seen) == 2:
            raise KeyboardInterrupt

    inventory.orders.happen(inventory_pb2.EVENT_KIND_ORDER_EXPIRED, order_id=5, product_id=1001)
    inventory.orders.happen(inventory_pb2.EVENT_KIND_SOLD_OUT, product_id=1001)
    inventory.orders.happen(inventory_pb2.EVENT_KIND_LOW_STOCK, product_id=1001)
    monkeypatch.setattr("inventory.cli.orders.print_json", until_the_second)
    line = "order watch --cursor 0 --kind order_expired --kind low_stock --json"
    assert ctl(line) == Exit.INTERRUPTED
    assert [each.kind for each in seen] == [EventKind.ORDER_EXPIRED, EventKind.LOW_STOCK]


@pytest.mark.parametrize("line", ["", "--line 1001", "--line 1001:x", "--line :2", "--line 1:2:3"])
def test_a_line_that_is_none_is_wrong_usage(capsys, line):
    code, printed = Shell.json(capsys, f"order reserve 5 {line}")
    assert (code, printed["error"]["reason"]) == (Exit.USAGE, "USAGE")


def test_a_sale_with_payment_is_balanced_when_every_hold_has_ended(ctl: Shell, capsys, inventory):
    line = "simulate 1001 --with-payment --buyers 60 --quantity 2 --ttl 1 --seed 3"
    code, printed = ctl.json(capsys, f"{line} --cancel 0.2 --vanish 0.2 --late 0.2")
    assert (code, printed["balanced"]) == (Exit.OK, True)
    assert printed["held"] + printed["refused"] == 60
    assert printed["after"]["held"] == 0
    assert printed["units_sold"] == inventory.products[1001].sold
    assert all(printed["conduct"].values())
    ended = printed["outcomes"]
    assert ended["confirmed"] == printed["conduct"]["pays"]
    assert ended["released"] == printed["conduct"]["cancels"]
    late = ended.get("retaken", 0) + ended.get("refund_required", 0)
    assert late == printed["conduct"]["pays_late"]


def test_people_read_what_the_buyers_did(ctl: Shell, capsys):
    line = "simulate 1001 --with-payment --buyers 10 --cancel 0.5 --vanish 0 --late 0 --ttl 60"
    assert ctl(line) == Exit.OK
    printed = capsys.readouterr().out
    assert "held 10, refused 0, failed 0" in printed
    assert "sold before 0 + confirmed and retaken" in printed
    assert "balanced" in printed


def test_shares_beyond_one_are_wrong_usage(ctl: Shell, capsys):
    code, printed = ctl.json(capsys, "simulate 1001 --with-payment --cancel 0.6 --vanish 0.6")
    assert (code, printed["error"]["reason"]) == (Exit.USAGE, "USAGE")
