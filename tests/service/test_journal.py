"""The operator's calls on the journal and on dead letters, in this process on a real ledger."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import structlog
from grpc import StatusCode
from grpc_health.v1.health import aio as health
from prometheus_client import CollectorRegistry

from deploy.local.stack import LocalStack
from inventory.v1.admin_pb2 import (
    DiscardDeadLetterRequest,
    GetTimelineRequest,
    ListDeadLettersRequest,
    RetryDeadLetterRequest,
)
from inventory.v1.admin_pb2_grpc import AdminServiceStub
from ledger.checkpoints import Checkpoints
from ledger.database import Database
from ledger.dead_letters import DeadLetters
from ledger.failpoints import Failpoints
from ledger.journal import Journal
from ledger.letter_retries import LetterRetries
from ledger.migrate import migrate
from ledger.products import JournalKind, Products
from ledger.servers import PerServer
from ledger.settings import parse_url
from ledger.timeline import Timeline
from server.calls import Calls
from server.journal import JournalService
from server.listener import ADMIN, grpc_server, listen
from server.metrics import Metrics
from server.settings import ServerSettings
from sharding.events import EventId
from sharding.orders import OrderState
from tests.ledger.conftest import create_database, new_metrics, settings_of
from tests.ledger.streams import FakeStream, chunk_of, flat
from tests.service.conftest import CALL_S, details_of, failure_of
from worker.applier import Applier

PRODUCT, OTHER, STRANGER, PARTITION = 1, 2, 3, 4
WHO = {"actor": "ann", "reason": "mended"}
MALFORMED, OF_STRANGER, CUT = 1, 2, 3
"""Letters by what is wrong with them."""


@pytest.fixture(scope="module")
async def database(services: LocalStack) -> AsyncIterator[Database]:
    """A ledger in which an order of two products was sold, and three entries were set aside."""
    opened = Database(await create_database(parse_url(services.mysql_url)), new_metrics())
    await migrate(opened)
    await Checkpoints(opened).prepare(48)
    for product_id in (PRODUCT, OTHER):
        await Products(opened).put(settings_of(product_id, 100))
    events = FakeStream(PARTITION)
    events.counts[STRANGER] = {"available": 10, "held": 0, "sold": 0, "loaded": 10}
    line = f"order 61 {PRODUCT}"
    entries = [
        *(events.load(each, 100) for each in (PRODUCT, OTHER)),
        *(events.hold(each, [(line, 2)]) for each in (PRODUCT, OTHER)),
        *(events.end(each, [(line, 2)], OrderState.CONFIRMED) for each in (PRODUCT, OTHER)),
        events.entry(flat(x="")),
        events.deduct(STRANGER, [("r1", 1)]),
        events.entry(flat(rubbish=b"\0\xff" * (1 << 20))),
    ]
    applier = Applier(Journal(opened, new_metrics(), Failpoints({})))
    await applier.apply([chunk_of(PARTITION, EventId(0, 0), entries)])
    await Products(opened).adjust_closed(
        JournalKind.RESTOCK, PRODUCT, request_id="in", quantity=5, reason="counted", actor="Zoë"
    )
    yield opened
    await opened.close()


@pytest.fixture
async def admin(database: Database) -> AsyncIterator[Any]:
    calls = Calls(Metrics(CollectorRegistry()), structlog.get_logger())
    service = JournalService(
        PerServer([DeadLetters(database)]),
        PerServer([LetterRetries(database, Failpoints({}))]),
        PerServer([Timeline(database)]),
    )
    calls.serve(ADMIN, service)
    settings = ServerSettings()
    server = grpc_server(settings, calls, health.HealthServicer())
    port = listen(server, "127.0.0.1:0", settings)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield AdminServiceStub(channel)
    await server.stop(0)


async def refusal(call: Any) -> tuple[StatusCode, str]:
    error = await failure_of(call)
    return error.code(), details_of(error).info.reason


def retry(admin: Any, letter: int, **fields: str) -> Any:
    request = RetryDeadLetterRequest(**{"id": letter, **WHO, **fields})
    return admin.RetryDeadLetter(request, timeout=CALL_S)


def discard(admin: Any, letter: int, **fields: str) -> Any:
    request = DiscardDeadLetterRequest(**{"id": letter, **WHO, **fields})
    return admin.DiscardDeadLetter(request, timeout=CALL_S)


async def test_letters_are_listed_page_by_page_with_what_they_are(admin: Any) -> None:
    request = ListDeadLettersRequest(page_size=2)
    first = await admin.ListDeadLetters(request, timeout=CALL_S)
    rest = await admin.ListDeadLetters(
        ListDeadLettersRequest(page_size=2, after_id=first.next_after_id), timeout=CALL_S
    )
    letters = [*first.letters, *rest.letters]
    assert rest.next_after_id == 0
    assert [each.id for each in letters] == [MALFORMED, OF_STRANGER, CUT]
    malformed, of_stranger, _ = letters
    assert (malformed.event, malformed.event_id, malformed.partition) == ("x=", "1-7", PARTITION)
    assert (malformed.product_id, malformed.state, malformed.remark) == (0, "open", "")
    assert (of_stranger.product_id, of_stranger.request_id) == (STRANGER, "")
    assert of_stranger.reason.startswith("unknown_product ")


async def test_a_letter_that_cannot_be_applied_is_refused_by_name_and_without_sql(
    admin: Any,
) -> None:
    refused = await failure_of(retry(admin, OF_STRANGER))
    assert (refused.code(), details_of(refused).info.reason) == (
        StatusCode.FAILED_PRECONDITION,
        "DEAD_LETTER_REFUSED",
    )
    assert refused.details() == f"the ledger cannot hold dead letter {OF_STRANGER}: unknown_product"
    failed = StatusCode.FAILED_PRECONDITION
    assert await refusal(retry(admin, MALFORMED)) == (failed, "DEAD_LETTER_REFUSED")
    assert await refusal(retry(admin, CUT)) == (failed, "DEAD_LETTER_CUT")
    for call in (retry(admin, 99), discard(admin, 99)):
        assert await refusal(call) == (StatusCode.NOT_FOUND, "DEAD_LETTER_UNKNOWN")


@pytest.mark.parametrize("call", [retry, discard])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"actor": ""}, "INVALID_ACTOR"),
        ({"actor": "x" * 65}, "INVALID_ACTOR"),
        ({"reason": " "}, "INVALID_REASON"),
        ({"reason": "x" * 201}, "INVALID_REASON"),
    ],
)
async def test_who_and_why_are_asked_for(
    admin: Any, call: Any, fields: dict[str, str], reason: str
) -> None:
    assert await refusal(call(admin, MALFORMED, **fields)) == (StatusCode.INVALID_ARGUMENT, reason)
    assert await refusal(call(admin, 0)) == (StatusCode.INVALID_ARGUMENT, "INVALID_ID")


async def test_a_letter_is_retried_or_discarded_once_and_then_listed_as_closed(
    admin: Any, database: Database
) -> None:
    await Products(database).put(settings_of(STRANGER, 10))
    failed = StatusCode.FAILED_PRECONDITION
    # Its shard was never loaded, as far as the ledger knows.
    assert await refusal(retry(admin, OF_STRANGER)) == (failed, "DEAD_LETTER_REFUSED")
    await discard(admin, CUT)
    for call in (retry(admin, CUT), discard(admin, CUT)):
        assert await refusal(call) == (failed, "DEAD_LETTER_CLOSED")
    still_open = await admin.ListDeadLetters(ListDeadLettersRequest(), timeout=CALL_S)
    assert [each.id for each in still_open.letters] == [MALFORMED, OF_STRANGER]
    everything = await admin.ListDeadLetters(
        ListDeadLettersRequest(include_closed=True), timeout=CALL_S
    )
    closed = everything.letters[-1]
    assert (closed.id, closed.state, closed.remark) == (CUT, "discarded", "ann: mended")


async def timeline(admin: Any, **fields: Any) -> Any:
    return await admin.GetTimeline(GetTimelineRequest(**fields), timeout=CALL_S)


async def test_a_timeline_tells_what_was_there_before_and_after(admin: Any) -> None:
    page = await timeline(admin, product_id=PRODUCT)
    assert page.next_before_id == 0
    restock, confirm, reserve = page.entries
    assert (restock.partition, restock.event_id, restock.actor) == (-1, "", "Zoë")
    assert (restock.available_before, restock.available_after) == (98, 103)
    assert (confirm.quantity, confirm.available_before, confirm.available_after) == (-2, 98, 98)
    assert (reserve.quantity, reserve.available_before, reserve.available_after) == (-2, 100, 98)
    assert (reserve.partition, reserve.event_id) == (PARTITION, "1-3")
    assert (reserve.order_id, reserve.user_id, reserve.product_id) == (61, 7, PRODUCT)


async def test_a_timeline_of_an_order_turns_its_pages_over_all_products(admin: Any) -> None:
    first = await timeline(admin, order_id=61, page_size=3)
    rest = await timeline(admin, order_id=61, page_size=3, before_id=first.next_before_id)
    entries = [*first.entries, *rest.entries]
    assert [(each.kind, each.product_id) for each in entries] == [
        ("confirm", OTHER),
        ("confirm", PRODUCT),
        ("reserve", OTHER),
        ("reserve", PRODUCT),
    ]
    request = f"order 61 {PRODUCT}"
    of_request = await timeline(admin, product_id=OTHER, request_id=request)
    assert [each.kind for each in of_request.entries] == ["confirm", "reserve"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "INVALID_PRODUCT_ID"),
        ({"request_id": "r"}, "INVALID_PRODUCT_ID"),
        ({"request_id": "r", "order_id": 61}, "INVALID_PRODUCT_ID"),
        ({"product_id": -1, "order_id": 61}, "INVALID_PRODUCT_ID"),
        ({"product_id": 1, "order_id": -1}, "INVALID_ORDER_ID"),
        ({"product_id": 1, "request_id": "ü"}, "INVALID_REQUEST_ID"),
        ({"product_id": 1, "request_id": "x" * 65}, "INVALID_REQUEST_ID"),
        ({"product_id": 1, "before_id": -1}, "INVALID_BEFORE_ID"),
        ({"product_id": 1, "page_size": 1_001}, "INVALID_PAGE_SIZE"),
    ],
)
async def test_a_timeline_of_nothing_in_particular_is_invalid(
    admin: Any, fields: dict[str, Any], reason: str
) -> None:
    request = GetTimelineRequest(**fields)
    assert await refusal(admin.GetTimeline(request)) == (StatusCode.INVALID_ARGUMENT, reason)
