"""`inventoryctl` against a real server in this process."""

import json
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator

import grpc
import pytest

from inventory.cli.__main__ import run, shared_first
from inventory.cli.exits import EXPLAINED, Exit, exit_of
from inventory.cli.migrate import GROUP
from inventory.cli.output import print_stock
from inventory.client import errors
from inventory.client.errors import InventoryError
from inventory.client.records import stock_of
from inventory.v1 import admin_pb2, inventory_pb2
from tests.unit.client_service import Fault, Health, Inventory, Product, answers, serving

UNREACHABLE = "127.0.0.1:1"


@pytest.fixture
def inventory() -> Inventory:
    own = Inventory()
    own.products[1001] = Product(total=100, available=100)
    own.cluster.partitions.extend(admin_pb2.Partition(partition=n, open=True) for n in range(3))
    return own


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def ctl(inventory: Inventory, health: Health, monkeypatch) -> Iterator["Shell"]:
    with serving(inventory, health) as address:
        monkeypatch.setenv("INVENTORY_TARGET", address)
        yield Shell()


class Shell:
    def __call__(self, line: str) -> int:
        return run(line.split())

    @staticmethod
    def json(capsys, line: str) -> tuple[int, dict]:
        """Exit code and object of a command with --json; nothing else may be printed."""
        code = run([*line.split(), "--json"])
        printed = capsys.readouterr()
        assert printed.err == ""
        assert printed.out.count("\n") == 1
        return code, json.loads(printed.out)


def names(message) -> set[str]:
    return set(message.DESCRIPTOR.fields_by_name)


def test_a_deduction_prints_the_fields_of_its_message(ctl, capsys):
    code, printed = ctl.json(capsys, "deduct 1001 2 --request-id r1 --user 7 --order 8")
    assert code == Exit.OK
    assert set(printed) == names(inventory_pb2.DeductResponse) | {"request_id"}
    assert printed["outcome"] == "OUTCOME_DEDUCTED"
    assert printed["shard_available"] == 98
    assert printed["request_id"] == "r1"


def test_the_options_of_a_deduction_reach_the_service(ctl, inventory):
    ctl("deduct 1001 2 --request-id r1 --user 7 --order 8 --attempt 3")
    (request,) = inventory.requests
    assert (request.product_id, request.quantity, request.request_id) == (1001, 2, "r1")
    assert (request.user_id, request.order_id, request.attempt) == (7, 8, 3)


def test_a_repeat_is_a_replay(ctl, capsys, inventory):
    ctl("deduct 1001 2 --request-id r1")
    capsys.readouterr()
    code, printed = ctl.json(capsys, "deduct 1001 2 --request-id r1")
    assert code == Exit.OK
    assert printed["replayed"] is True
    assert inventory.products[1001].sold == 2


def test_a_shortage_is_printed_and_ends_with_its_own_code(ctl, capsys):
    code, printed = ctl.json(capsys, "deduct 1001 101")
    assert code == Exit.REFUSED
    assert printed["outcome"] == "OUTCOME_INSUFFICIENT_STOCK"


def test_stock_is_printed_flat_with_its_shards(ctl, capsys):
    code, printed = ctl.json(capsys, "stock 1001")
    assert code == Exit.OK
    assert set(printed) == names(inventory_pb2.Stock)
    assert set(printed["shards"][0]) == names(inventory_pb2.ShardStock)
    assert (printed["total"], printed["status"]) == (100, "PRODUCT_STATUS_OPEN")


@pytest.mark.parametrize("line", ["product show 1001", "product close 1001"])
def test_a_product_is_printed_flat(ctl, capsys, line):
    code, printed = ctl.json(capsys, line)
    assert code == Exit.OK
    assert set(printed) == names(admin_pb2.Product)


def test_products_are_put_listed_and_loaded(ctl, capsys):
    put = "product put 1002 --name x --total 10000 --shards 6 --buffer-percent 0"
    assert ctl.json(capsys, put)[1]["total_stock"] == 10_000
    _, listed = ctl.json(capsys, "product list")
    assert set(listed) == names(admin_pb2.ListProductsResponse)
    assert [each["product_id"] for each in listed["products"]] == [1001, 1002]
    _, loaded = ctl.json(capsys, "product load 1001 1002")
    assert [each["product_id"] for each in loaded["products"]] == [1001, 1002]
    assert set(loaded["products"][0]) == names(admin_pb2.LoadedProduct)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unread_partitions": [17, 9]}, "partitions 9, 17 do not answer"),
        # Units that shards gave those that are not counted are in neither sum.
        ({"unread_partitions": [9], "total": 7}, "counted so far: available 0"),
        ({"total": 7}, "total 7 IS NOT available 0"),
        ({"shards": []}, "MySQL's counts"),
        ({}, "units moved"),
    ],
)
def test_people_are_told_why_counts_are_inexact(capsys, changes, said):
    shards = [inventory_pb2.ShardStock(partition=1)]
    fields = {"product_id": 7, "shards": shards, "inexact": True, "status": 1, **changes}
    print_stock(stock_of(inventory_pb2.Stock(**fields)))
    assert said in capsys.readouterr().out


def test_a_repeated_restock_is_a_replay(ctl, capsys, inventory):
    line = "product restock 1001 50 --request-id d1 --reason delivery"
    assert ctl.json(capsys, line) == (Exit.OK, {"replayed": False, "request_id": "d1"})
    assert ctl.json(capsys, line) == (Exit.OK, {"replayed": True, "request_id": "d1"})
    assert inventory.products[1001].total == 150


def test_a_repeated_release_of_the_buffer_is_a_replay(ctl, capsys, inventory):
    line = "product release-buffer 1001 --quantity 30 --request-id b1 --reason low --actor me"
    first = {"quantity": 30, "replayed": False, "request_id": "b1"}
    assert ctl.json(capsys, line) == (Exit.OK, first)
    assert ctl.json(capsys, line) == (Exit.OK, first | {"replayed": True})
    assert inventory.products[1001].available == 130
    assert ctl("product release-buffer 1001 --request-id b2") == Exit.OK
    assert "40 units of product 1001 left the buffer (request b2)" in capsys.readouterr().out


@pytest.mark.parametrize(("count", "pinned"), [("12", 12), ("auto", 0), ("0", 0)])
def test_the_shard_count_is_set_or_left_to_the_demand(ctl, capsys, inventory, count, pinned):
    inventory.products[1001].pinned_shards = 6
    code, printed = ctl.json(capsys, f"product shards 1001 {count}")
    assert (code, set(printed)) == (Exit.OK, names(admin_pb2.SetShardsResponse))
    assert inventory.products[1001].pinned_shards == pinned
    assert ctl(f"product shards 1001 {count}") == Exit.OK
    assert ("12 shards" if pinned else "the demand") in capsys.readouterr().out


@pytest.mark.parametrize("count", ["twelve", "1.5", "", "²"])
def test_a_shard_count_that_is_no_number_is_wrong_usage(capsys, count):
    code = run(["product", "shards", "1001", count, "--json"])
    assert (code, json.loads(capsys.readouterr().out)["error"]["reason"]) == (Exit.USAGE, "USAGE")


def test_a_change_of_shards_that_goes_on_has_the_exit_code_of_an_unknown_end(
    ctl, capsys, inventory
):
    inventory.other_faults.append(Fault(reason="RESHARD_PENDING", retry_s=90))
    code, printed = ctl.json(capsys, "product shards 1001 12")
    assert (code, printed["error"]["reason"]) == (Exit.UNKNOWN, "RESHARD_PENDING")


def test_a_request_is_resolved(ctl, capsys):
    ctl("deduct 1001 2 --request-id r1")
    capsys.readouterr()
    code, printed = ctl.json(capsys, "resolve 1001 r1")
    assert (code, set(printed)) == (Exit.OK, names(inventory_pb2.ResolveRequestResponse))
    assert printed == {"resolution": "RESOLUTION_DEDUCTED", "quantity": 2}
    assert ctl("resolve 1001 r2") == Exit.OK
    assert "took nothing" in capsys.readouterr().out


def test_a_removal_of_more_than_there_is_is_a_refusal(ctl, capsys):
    code, printed = ctl.json(capsys, "product remove 1001 101")
    assert code == Exit.REFUSED
    assert printed["error"]["reason"] == "INSUFFICIENT_STOCK"


@pytest.mark.parametrize(
    "line", ["--json stock 1001", "stock --json 1001", "stock 1001 --json", "stock 1001"]
)
def test_shared_options_may_stand_anywhere(ctl, capsys, line):
    assert ctl(line) == Exit.OK
    assert capsys.readouterr().out.startswith("{") is ("--json" in line)


def test_what_follows_two_dashes_is_no_option():
    assert shared_first(["a", "--", "--json"]) == ([], ["a", "--", "--json"])
    assert shared_first(["a", "--target", "h:1"]) == (["--target", "h:1"], ["a"])


def test_an_unknown_product_ends_with_one_object_and_its_code(ctl, capsys):
    code, printed = ctl.json(capsys, "stock 5")
    assert code == Exit.REJECTED
    assert printed["error"]["code"] == "NOT_FOUND"
    assert printed["error"]["reason"] == "UNKNOWN_PRODUCT"


def test_an_unknown_outcome_names_the_request_and_has_a_code_of_its_own(ctl, capsys, inventory):
    inventory.faults.append(Fault(reason="OUTCOME_UNKNOWN", retry_s=60))
    code, printed = ctl.json(capsys, "deduct 1001 1 --request-id r9")
    assert code == Exit.UNKNOWN
    assert printed["error"]["request_id"] == "r9"


def test_what_did_not_happen_is_told_apart_from_what_may_have(ctl, capsys, inventory):
    inventory.faults.append(Fault(reason="LEDGER_BEHIND", retry_s=60))
    code, printed = ctl.json(capsys, "deduct 1001 1")
    assert code == Exit.UNAVAILABLE
    assert printed["error"]["reason"] == "LEDGER_BEHIND"


def test_a_refusal_with_a_reason_is_told_to_people_in_one_line(ctl, capsys, inventory):
    inventory.item_answers["r"].extend(answers((inventory_pb2.OUTCOME_FROZEN, "CLOSED")))
    assert ctl("deduct 1001 1 --request-id r") == Exit.REJECTED
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "CLOSED" in printed.err


@pytest.mark.parametrize("line", ["stock 1001", "product list", "simulate 1001"])
def test_an_unreachable_target_is_one_line_that_says_what_to_do(line, capsys, monkeypatch):
    monkeypatch.setattr("inventory.cli.session.CONNECT_TIMEOUT_S", 0.05)
    monkeypatch.setattr("inventory.cli.simulate.CONNECT_TIMEOUT_S", 0.05)
    assert run([*line.split(), "--target", UNREACHABLE]) == Exit.UNAVAILABLE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert UNREACHABLE in printed.err
    assert "--target" in printed.err


@pytest.mark.parametrize("line", ["frob", "deduct 1001", "deduct x 1", "stock 1 --frob"])
def test_wrong_usage_is_one_object_too(line, capsys):
    code, printed = Shell.json(capsys, line)
    assert code == Exit.USAGE
    assert printed["error"]["reason"] == "USAGE"


def test_every_error_has_an_exit_code_that_is_explained():
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    codes = {exit_of(kind("x", reason="X")) for kind in kinds if issubclass(kind, InventoryError)}
    assert codes == {*Exit} - {Exit.OK, Exit.USAGE, Exit.INTERRUPTED}
    assert all(re.search(rf"\b{code.value} [a-z]", EXPLAINED) for code in Exit)


def test_people_read_the_balance_with_every_term(ctl, capsys):
    ctl("deduct 1001 2")
    capsys.readouterr()
    assert ctl("stock 1001") == Exit.OK
    equation = "total 100 = available 98 + held 0 + in transit 0 + buffer 0 + sold 2"
    assert equation in capsys.readouterr().out


def test_names_are_not_taken_for_markup(ctl, capsys):
    assert ctl("product put 7 --name [bold]x[/] --total 1") == Exit.OK
    assert "[bold]x[/]" in capsys.readouterr().out


def test_a_watch_prints_one_object_a_line(ctl, capsys, monkeypatch):
    changes: list[object] = []

    def until_the_third(value: object) -> None:
        changes.append(value)
        if len(changes) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("inventory.cli.stock.print_json", until_the_third)
    assert ctl("stock 1001 --watch --json") == Exit.INTERRUPTED
    assert len(changes) == 3


def test_a_service_in_good_health_has_no_findings(ctl, capsys):
    code, printed = ctl.json(capsys, "doctor")
    assert (code, printed["healthy"]) == (Exit.OK, True)
    assert {each["check"] for each in printed["findings"]} == {
        "reachable", "serving", "version", "mode", "partitions", "replicas", "nodes", "backlog",
        "schema", "dead letters", "products",
    }  # fmt: skip


def add_flaw(cluster, *, loses_units, what="appendonly", value="no"):
    cluster.node_flaws.add(
        node="r1:7000", what=what, value=value, loses_units=loses_units,
        reason="it comes back empty", remedy="CONFIG SET appendonly yes",
    )  # fmt: skip


@pytest.mark.parametrize("what", ["replicas", "node"])
def test_a_node_that_keeps_partitions_from_selling_is_no_advice(ctl, capsys, inventory, what):
    for number in (0, 2):
        inventory.cluster.partitions[number].node = "r1:7000"
    inventory.cluster.partitions[1].node = "r2:7000"
    add_flaw(inventory.cluster, loses_units=False, what=what)
    code, printed = ctl.json(capsys, "doctor")
    (finding,) = [each for each in printed["findings"] if not each["ok"]]
    assert (code, finding["check"]) == (Exit.REFUSED, "nodes")
    assert "nothing is sold in 0, 2" in finding["detail"]


def test_what_is_degraded_sells_without_a_replica(ctl, capsys, inventory):
    inventory.cluster.partitions[0].node = "r1:7000"
    inventory.cluster.partitions[0].degraded = True
    add_flaw(inventory.cluster, loses_units=False, what="replicas")
    ctl("doctor")
    assert "nothing is sold in" not in capsys.readouterr().out


def test_what_is_merely_unwise_is_shown_with_a_remedy_and_is_no_failure(ctl, capsys, inventory):
    add_flaw(inventory.cluster, loses_units=False)
    code, printed = ctl.json(capsys, "doctor")
    (finding,) = [each for each in printed["findings"] if each["remedy"]]
    assert (code, printed["healthy"]) == (Exit.OK, True)
    assert (finding["check"], finding["remedy"]) == ("nodes", "CONFIG SET appendonly yes")
    ctl("doctor")
    assert "unwise" in capsys.readouterr().out


def test_a_service_that_says_nothing_of_its_nodes_is_not_judged_by_them(ctl, capsys, inventory):
    inventory.cluster.durability = ""
    _, printed = ctl.json(capsys, "doctor")
    assert "nodes" not in {each["check"] for each in printed["findings"]}


@pytest.mark.parametrize(
    ("spoil", "check", "said"),
    [
        (lambda cluster: setattr(cluster.partitions[1], "open", False), "partitions", "UNKNOWN: 1"),
        (lambda cluster: cluster.ClearField("partitions"), "partitions", "none"),
        (lambda cluster: setattr(cluster.partitions[2], "backlog", 99_999), "backlog", "in 2"),
        (
            lambda cluster: setattr(cluster.partitions[1], "degraded", True),
            "replicas",
            "replica: 1",
        ),
        (lambda cluster: add_flaw(cluster, loses_units=True), "nodes", "r1:7000: appendonly is no"),
        (lambda cluster: setattr(cluster, "schema_version", 0), "schema", "no tables"),
        (lambda cluster: setattr(cluster, "mode", "buffer"), "mode", "sold from the ledger"),
        (lambda cluster: setattr(cluster, "mode", "leaving"), "mode", "nothing is sold"),
    ],
)
def test_what_is_wrong_is_found_with_a_remedy(ctl, capsys, inventory, spoil, check, said):
    spoil(inventory.cluster)
    code, printed = ctl.json(capsys, "doctor")
    (finding,) = [each for each in printed["findings"] if not each["ok"]]
    assert code == Exit.REFUSED
    assert finding["check"] == check
    assert said in finding["detail"]
    assert finding["remedy"]


@pytest.mark.parametrize(
    ("spoil", "check", "said"),
    [
        (
            lambda inventory: inventory.journal.set_aside(
                "below_zero 7", partition=3, event_id="1-7"
            ),
            "dead letters",
            "below_zero 7",
        ),
        (
            lambda inventory: setattr(inventory.products[1001], "frozen_reason", "it differs"),
            "products",
            "1 frozen, the first is 1001: it differs",
        ),
    ],
)
def test_what_waits_for_an_operator_is_found(ctl, capsys, inventory, spoil, check, said):
    spoil(inventory)
    code, printed = ctl.json(capsys, "doctor")
    (finding,) = [each for each in printed["findings"] if not each["ok"]]
    assert (code, finding["check"]) == (Exit.REFUSED, check)
    assert said in finding["detail"]
    assert finding["remedy"]


def test_a_service_without_redis_needs_no_partitions(ctl, capsys, inventory):
    inventory.cluster.ClearField("partitions")
    inventory.cluster.mode = "mysql"
    code, printed = ctl.json(capsys, "doctor")
    assert (code, printed["healthy"]) == (Exit.OK, True)


def test_closed_partitions_are_named_by_reason(ctl, capsys, inventory):
    for number, reason in ((0, "FENCED"), (1, "UNREACHABLE"), (2, "FENCED")):
        inventory.cluster.partitions[number].open = False
        inventory.cluster.partitions[number].reason = reason
    ctl("doctor")
    printed = capsys.readouterr().out
    assert "closed, FENCED: 0, 2" in printed
    assert "closed, UNREACHABLE: 1" in printed


def test_a_service_that_does_not_serve_is_found(ctl, capsys, health):
    health.tell(serving=False)
    code, printed = ctl.json(capsys, "doctor")
    assert code == Exit.REFUSED
    assert [each["check"] for each in printed["findings"] if not each["ok"]] == ["serving"]


def test_a_service_out_of_reach_is_a_finding(capsys, monkeypatch):
    monkeypatch.setattr("inventory.cli.session.CONNECT_TIMEOUT_S", 0.05)
    code, printed = Shell.json(capsys, f"doctor --target {UNREACHABLE}")
    assert (code, printed["healthy"]) == (Exit.REFUSED, False)


@pytest.mark.parametrize("batch", ["", "--batch"])
def test_a_sale_is_balanced_and_counts_the_refused_apart(ctl, capsys, inventory, batch):
    code, printed = ctl.json(capsys, f"simulate 1001 --buyers 150 --concurrency 20 {batch}")
    assert code == Exit.OK
    assert (printed["accepted"], printed["refused"], printed["balanced"]) == (100, 50, True)
    assert sum(bar["answers"] for bar in printed["histogram"]) == 150
    assert set(printed["after"]) == names(inventory_pb2.Stock)


def test_a_sale_is_told_to_people_with_both_balances(ctl, capsys):
    assert ctl("simulate 1001 --buyers 30 --duplicates 1") == Exit.OK
    printed = capsys.readouterr().out
    assert "before: total 100 = available 100" in printed
    assert "after:  total 100 = available 70" in printed
    assert "sold before 0 + accepted 30 = 30, sold after 30" in printed
    assert "sent twice 30, answered from memory 30" in printed


def test_a_sale_that_is_off_ends_with_a_code(ctl, capsys, inventory):
    inventory.item_answers.default_factory = _forged
    code, printed = ctl.json(capsys, "simulate 1001 --buyers 10 --concurrency 1")
    assert code == Exit.REFUSED
    assert "sold after is 0" in printed["imbalances"][0]


def _forged() -> deque:
    """Answers that claim to have taken what nobody took."""
    return deque([inventory_pb2.DeductResponse(outcome=inventory_pb2.OUTCOME_DEDUCTED)])


def test_migrate_without_the_service_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr("inventory.cli.migrate.entry_points", lambda **_: ())
    assert run(["migrate"]) == Exit.REJECTED
    assert "inventory-service" in capsys.readouterr().err


@pytest.mark.parametrize("fails", [False, True])
def test_migrate_runs_what_the_service_brings(capsys, monkeypatch, fails):
    class Found:
        @staticmethod
        def load():
            return _migration_that_fails if fails else _migration

    asked = {}
    monkeypatch.setattr(
        "inventory.cli.migrate.entry_points", lambda **which: asked.update(which) or [Found]
    )
    if fails:
        with pytest.raises(SystemExit):
            run(["migrate", "--json"])
        assert "error" in json.loads(capsys.readouterr().out)
    else:
        assert Shell.json(capsys, "migrate") == (Exit.OK, {"output": ["schema is at version 4"]})
    assert asked == {"group": GROUP, "name": "migrate"}


def _migration() -> None:
    sys.stdout.write("schema is at version 4\n")


def _migration_that_fails() -> None:
    sys.stderr.write("migrate: MySQL does not answer\n")
    raise SystemExit(2)


def test_a_pipe_gets_text_without_colour(ctl):
    done = subprocess.run(
        [sys.executable, "-m", "inventory.cli", "stock", "1001"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "\x1b" not in done.stdout
    assert "total 100 =" in done.stdout


def test_a_defect_of_the_service_is_no_stack_trace(ctl, capsys, inventory):
    inventory.other_faults.append(Fault(grpc.StatusCode.INTERNAL, "INTERNAL"))
    assert ctl("stock 1001") == Exit.FAULT
    assert "Traceback" not in capsys.readouterr().err
