"""SetShards as an operator sees it, over a ledger in memory."""

from typing import Any

import pytest
from grpc import StatusCode

from inventory.v1.admin_pb2 import SetShardsRequest
from ledger.errors import (
    Conflict,
    LedgerConflictError,
    LedgerUnavailableError,
    UnknownProductError,
)
from ledger.layouts import Aim, Cause, ChangeState
from tests.service.conftest import CALL_S, Service, details_of, failure_of

ID = 7


async def set_shards(service: Service, shards: int, timeout_s: float = CALL_S) -> Any:
    request = SetShardsRequest(product_id=ID, shards=shards)
    return await service.admin.SetShards(request, timeout=timeout_s)


async def test_the_answer_waits_until_the_layout_is_in_force(service: Service) -> None:
    service.layouts.states = [ChangeState.WANTED, ChangeState.WANTED, ChangeState.ACTIVE]
    answer = await set_shards(service, 12)
    assert answer.layout_version == 7
    assert service.layouts.wanted == [(ID, 12, Cause.OPERATOR)]
    assert service.layouts.states == [ChangeState.ACTIVE]


async def test_what_is_in_force_already_is_answered_at_once(service: Service) -> None:
    service.layouts.aim = Aim(4, in_force=True)
    service.layouts.states = [ChangeState.WANTED]
    assert (await set_shards(service, 0)).layout_version == 4


@pytest.mark.parametrize("state", [ChangeState.WANTED, ChangeState.ROLLED_BACK])
async def test_a_change_that_is_not_in_force_in_time_is_pending(
    service: Service, state: ChangeState
) -> None:
    service.layouts.states = [state]
    error = await failure_of(set_shards(service, 12, timeout_s=1))
    assert error.code() is StatusCode.UNAVAILABLE
    assert details_of(error).info.reason == "RESHARD_PENDING"
    assert details_of(error).retry is not None


@pytest.mark.parametrize("conflict", [Conflict.LAYOUT_CHANGING, Conflict.STATUS_CHANGING])
async def test_what_passes_by_itself_is_to_be_called_again(
    service: Service, conflict: Conflict
) -> None:
    service.layouts.failures.append(LedgerConflictError(conflict, "call again"))
    error = await failure_of(set_shards(service, 12))
    assert error.code() is StatusCode.UNAVAILABLE
    assert details_of(error).info.reason == conflict.name
    assert details_of(error).retry is not None


@pytest.mark.parametrize(
    ("failure", "code", "reason"),
    [
        (UnknownProductError(ID), StatusCode.NOT_FOUND, "UNKNOWN_PRODUCT"),
        (LedgerUnavailableError("away"), StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN"),
    ],
)
async def test_a_failure_of_the_ledger_has_its_name(
    service: Service, failure: Exception, code: StatusCode, reason: str
) -> None:
    service.layouts.failures.append(failure)
    error = await failure_of(set_shards(service, 12))
    assert (error.code(), details_of(error).info.reason) == (code, reason)


@pytest.mark.parametrize("shards", [-1, 5, 47, 96, 2**31 - 1])
async def test_a_count_that_does_not_divide_the_partitions_is_invalid(
    service: Service, shards: int
) -> None:
    error = await failure_of(set_shards(service, shards))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert details_of(error).fields == [("shards", "INVALID_SHARDS")]
    assert service.layouts.wanted == []


async def test_a_product_id_below_one_is_invalid(service: Service) -> None:
    error = await failure_of(service.admin.SetShards(SetShardsRequest(product_id=0, shards=7)))
    assert details_of(error).fields == [
        ("product_id", "INVALID_PRODUCT_ID"),
        ("shards", "INVALID_SHARDS"),
    ]
