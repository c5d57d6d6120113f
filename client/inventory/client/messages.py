"""Messages of the contract, made of what callers pass in."""

from typing import Any, TypeVar

from google.protobuf.message import Message

from inventory.client.errors import InvalidRequest

M = TypeVar("M", bound=Message)


def build(kind: type[M], **fields: Any) -> M:
    """A message; InvalidRequest for a number that its field has no room for."""
    try:
        return kind(**fields)
    except ValueError as error:
        raise InvalidRequest(str(error).lower(), reason="OUT_OF_RANGE") from None
