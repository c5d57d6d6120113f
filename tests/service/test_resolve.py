"""ResolveRequest as a caller sees it."""

from typing import Any

import pytest
from grpc import StatusCode

from inventory.v1.inventory_pb2 import (
    DeductRequest,
    ResolveRequestRequest,
    ResolveRequestResponse,
)
from ledger.errors import LedgerUnavailableError
from ledger.products import Adjustment, JournalKind
from sharding.errors import StockUnavailableError
from sharding.outcomes import Answer, Outcome, Reason
from tests.service.conftest import CALL_S, PRODUCT, Service, details_of, failure_of

DEDUCTED = ResolveRequestResponse.RESOLUTION_DEDUCTED
NEVER = ResolveRequestResponse.RESOLUTION_NEVER


async def resolve(service: Service, name: str = "r", product_id: int = PRODUCT) -> Any:
    request = ResolveRequestRequest(product_id=product_id, request_id=name)
    return await service.inventory.ResolveRequest(request, timeout=CALL_S)


async def test_a_request_that_took_units_is_deducted(service: Service) -> None:
    await service.inventory.Deduct(DeductRequest(request_id="r", product_id=PRODUCT, quantity=3))
    found = await resolve(service)
    assert (found.resolution, found.quantity) == (DEDUCTED, 3)


async def test_a_request_that_nobody_knows_is_never(service: Service) -> None:
    found = await resolve(service)
    assert (found.resolution, found.quantity) == (NEVER, 0)


async def test_the_journal_goes_before_the_live_stock(service: Service) -> None:
    deducted = Adjustment(JournalKind.DEDUCT, 9, replayed=True)
    service.products.journal[PRODUCT, "r"] = deducted
    service.stock.failures.append(StockUnavailableError(Reason.NOT_EXECUTED, "away"))
    found = await resolve(service)
    assert (found.resolution, found.quantity) == (DEDUCTED, 9)


async def test_an_id_that_the_journal_knows_for_a_restock_is_a_mismatch(service: Service) -> None:
    restocked = Adjustment(JournalKind.RESTOCK, 9, replayed=True)
    service.products.journal[PRODUCT, "r"] = restocked
    error = await failure_of(resolve(service))
    assert error.code() is StatusCode.ALREADY_EXISTS


async def test_a_ledger_that_is_away_is_passed_over(service: Service) -> None:
    service.products.failures.append(LedgerUnavailableError("away"))
    assert (await resolve(service)).resolution == NEVER


@pytest.mark.parametrize(
    ("answer", "code", "reason"),
    [
        (Answer(Outcome.UNKNOWN_PRODUCT), StatusCode.NOT_FOUND, "UNKNOWN_PRODUCT"),
        (Answer(Outcome.REQUEST_MISMATCH), StatusCode.ALREADY_EXISTS, "REQUEST_MISMATCH"),
        (
            Answer(Outcome.OVERLOADED, reason=Reason.RECORDS_FULL),
            StatusCode.RESOURCE_EXHAUSTED,
            "RECORDS_FULL",
        ),
        (
            Answer(Outcome.UNAVAILABLE, reason=Reason.SHARDS_UNREACHABLE),
            StatusCode.UNAVAILABLE,
            "SHARDS_UNREACHABLE",
        ),
        (
            Answer(Outcome.UNAVAILABLE, reason=Reason.NOT_REPLICATED),
            StatusCode.UNAVAILABLE,
            "OUTCOME_UNKNOWN",
        ),
    ],
)
async def test_what_is_no_end_is_a_status(
    service: Service, answer: Answer, code: StatusCode, reason: str
) -> None:
    service.stock.answers = [answer]
    error = await failure_of(resolve(service))
    assert (error.code(), details_of(error).info.reason) == (code, reason)


async def test_a_late_copy_of_what_was_resolved_says_so(service: Service) -> None:
    service.stock.answers = [Answer(Outcome.REQUEST_MISMATCH, reason=Reason.RESOLVED_NEVER)]
    error = await failure_of(
        service.inventory.Deduct(DeductRequest(request_id="r", product_id=PRODUCT, quantity=3))
    )
    assert error.code() is StatusCode.ALREADY_EXISTS
    assert details_of(error).info.reason == "RESOLVED_NEVER"
    assert "late copy" in (error.details() or "")


@pytest.mark.parametrize(
    ("product_id", "name", "field"),
    [(0, "r", "product_id"), (PRODUCT, "", "request_id"), (PRODUCT, "a b", "request_id")],
)
async def test_a_request_out_of_bounds_is_invalid(
    service: Service, product_id: int, name: str, field: str
) -> None:
    error = await failure_of(resolve(service, name, product_id))
    assert [found for found, _ in details_of(error).fields] == [field]
