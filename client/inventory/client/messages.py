"""Messages of the contract, made of what callers pass in."""

from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from inventory.client.errors import InvalidRequest

M = TypeVar("M", bound=Message)


def build(kind: type[M], **fields: Any) -> M:
    """A message; InvalidRequest for a number that its field has no room for."""
    try:
        return kind(**fields)
    except ValueError as error:
        raise InvalidRequest(str(error).lower(), reason="OUT_OF_RANGE") from None


def later(request: M, tries: int) -> M:
    """The message of the next try, after so many that failed; no two tries share one."""
    if not tries or "attempt" not in request.DESCRIPTOR.fields_by_name:
        return request
    again: Any = type(request)()
    again.CopyFrom(request)
    again.attempt = max(2, again.attempt + tries)
    return cast("M", again)
