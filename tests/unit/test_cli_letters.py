"""`inventoryctl deadletter …` and `timeline`, run in this process against a server in it."""

import pytest

from inventory.cli.exits import Exit
from inventory.client import AsyncInventoryClient, PreconditionFailed, UnknownDeadLetter
from inventory.v1 import admin_pb2
from tests.unit.client_service import Health, Inventory, serving

# The fixtures of the other commands' tests are these commands', too.
from tests.unit.test_cli import Shell, ctl, health, inventory, names

__all__ = ["ctl", "health", "inventory"]

WHY = "--actor ann --reason mended"


@pytest.fixture(autouse=True)
def _history(inventory: Inventory) -> None:
    inventory.journal.set_aside("malformed no field v", partition=3, event_id="1-7")
    inventory.journal.set_aside("unknown_product 5", partition=3, event_id="1-8", product_id=5)
    for product_id, order_id in ((1001, 61), (1002, 61), (1001, 0)):
        inventory.journal.happen(
            kind="deduct",
            product_id=product_id,
            order_id=order_id,
            request_id="order" if order_id else "r1",
            quantity=-2,
            event_id="1-9",
        )
    inventory.journal.entries[2].available_before = 2
    inventory.journal.entries[2].available_after = 0


def test_letters_are_listed_by_their_messages_fields(ctl: Shell, capsys):
    code, printed = ctl.json(capsys, "deadletter list")
    assert (code, set(printed)) == (Exit.OK, names(admin_pb2.ListDeadLettersResponse))
    assert set(printed["letters"][0]) == names(admin_pb2.DeadLetter)
    assert [each["id"] for each in printed["letters"]] == [1, 2]


def test_a_letter_is_dealt_with_once_and_is_listed_as_closed(ctl: Shell, capsys):
    assert ctl.json(capsys, f"deadletter retry 2 {WHY}") == (
        Exit.OK,
        {"id": 2, "state": "retried"},
    )
    assert ctl(f"deadletter discard 1 {WHY}") == Exit.OK
    assert capsys.readouterr().out == "dead letter 1: discarded\n"
    assert ctl.json(capsys, "deadletter list")[1]["letters"] == []
    closed = ctl.json(capsys, "deadletter list --all")[1]["letters"]
    assert [(each["state"], each["remark"]) for each in closed] == [
        ("discarded", "ann: mended"),
        ("retried", "ann: mended"),
    ]
    code, printed = ctl.json(capsys, f"deadletter retry 2 {WHY}")
    assert (code, printed["error"]["reason"]) == (Exit.REJECTED, "DEAD_LETTER_CLOSED")
    code, printed = ctl.json(capsys, f"deadletter discard 9 {WHY}")
    assert (code, printed["error"]["reason"]) == (Exit.REJECTED, "DEAD_LETTER_UNKNOWN")


@pytest.mark.parametrize("command", ["retry 1 --actor ann", "discard 1 --reason mended", "retry"])
def test_who_and_why_must_be_said(ctl: Shell, capsys, command):
    code, printed = ctl.json(capsys, f"deadletter {command}")
    assert (code, printed["error"]["reason"]) == (Exit.USAGE, "USAGE")


def test_people_read_why_a_letter_was_set_aside_and_that_there_are_more(ctl: Shell, capsys):
    assert ctl("deadletter list --limit 1") == Exit.OK
    printed = capsys.readouterr().out
    assert "malformed no field v" in printed
    assert "p03 1-7" in printed
    assert "there are more: --after 1" in printed


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ("--product 1001", [3, 1]),
        ("--order 61", [2, 1]),
        ("--order 61 --product 1002", [2]),
        ("--product 1001 --request r1", [3]),
        ("--product 1001 --before 3", [1]),
    ],
)
def test_a_timeline_prints_its_messages_fields(ctl: Shell, capsys, options, ids):
    code, printed = ctl.json(capsys, f"timeline {options}")
    assert (code, set(printed)) == (Exit.OK, names(admin_pb2.GetTimelineResponse))
    assert set(printed["entries"][0]) == names(admin_pb2.TimelineEntry)
    assert [each["id"] for each in printed["entries"]] == ids


def test_counts_that_nobody_knows_are_null_and_blank(ctl: Shell, capsys):
    _, printed = ctl.json(capsys, "timeline --product 1001")
    found = [(each["available_before"], each["available_after"]) for each in printed["entries"]]
    assert found == [(2, 0), (None, None)]
    assert ctl("timeline --product 1001 --limit 1") == Exit.OK
    told = capsys.readouterr().out
    assert "2 > 0" in told
    assert "there are more: --before 3" in told
    assert ctl("timeline --product 1001 --before 3") == Exit.OK
    assert ">" not in capsys.readouterr().out


@pytest.mark.parametrize("options", ["", "--request r1", "--request r1 --order 61"])
def test_a_timeline_of_nothing_in_particular_is_wrong_usage(ctl: Shell, capsys, options):
    code, printed = ctl.json(capsys, f"timeline {options}")
    assert (code, printed["error"]["reason"]) == (Exit.USAGE, "USAGE")


def test_who_corrects_units_is_told_to_the_journal(ctl: Shell, inventory: Inventory):
    assert ctl("product restock 1001 5 --actor ann") == Exit.OK
    assert inventory.journal.entries[-1].actor == "ann"


async def test_the_client_for_asyncio_deals_with_letters_and_reads_timelines(
    inventory: Inventory, health: Health
):
    with serving(inventory, health) as address:
        async with AsyncInventoryClient(address) as client:
            assert len((await client.list_dead_letters(page_size=1)).letters) == 1
            await client.retry_dead_letter(1, reason="mended", actor="ann")
            with pytest.raises(PreconditionFailed) as caught:
                await client.discard_dead_letter(1, reason="mended", actor="ann")
            assert caught.value.reason == "DEAD_LETTER_CLOSED"
            with pytest.raises(UnknownDeadLetter):
                await client.retry_dead_letter(9, reason="mended", actor="ann")
            page = await client.get_timeline(order_id=61, page_size=1)
            assert ([each.id for each in page.entries], page.next_before_id) == ([2], 2)
            assert await client.restock(1001, 1, actor="ann") is False
            assert inventory.journal.entries[-1].actor == "ann"
