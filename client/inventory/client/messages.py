"""Messages of the contract, made of what callers pass in."""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from inventory.client.errors import InvalidRequest

M = TypeVar("M", bound=Message)


def build(kind: type[M], **fields: Any) -> M:
    """A message; InvalidRequest for a value that its field has no room for, or of another type."""
    try:
        return kind(**fields)
    except ValueError as error:
        raise InvalidRequest(str(error).lower(), reason="OUT_OF_RANGE") from None
    except TypeError:
        raise InvalidRequest(_wrongly_typed(kind, fields), reason="INVALID_TYPE") from None


def _wrongly_typed(kind: type[M], fields: Mapping[str, Any]) -> str:
    """Which of the values its field does not take."""
    for name, value in fields.items():
        try:
            kind(**{name: value})
        except TypeError:
            return f"{name}: {value!r} is of a type that the field does not take"
    return f"{kind.DESCRIPTOR.name}: values of types that its fields do not take"


def later(request: M, tries: int) -> M:
    """The message of the next try, after so many that failed; no two tries share one."""
    if not tries or "attempt" not in request.DESCRIPTOR.fields_by_name:
        return request
    again: Any = type(request)()
    again.CopyFrom(request)
    again.attempt = max(2, again.attempt + tries)
    return cast("M", again)
