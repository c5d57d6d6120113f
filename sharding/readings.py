"""A shard as it was read, and its notes of the units that it and others have given each other."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sharding.errors import StockUnavailableError
from sharding.outcomes import Reason, State
from sharding.placement import Layout


class Given(NamedTuple):
    """All units that one shard has given another in an epoch."""

    donor: int
    receiver: int
    epoch: int
    units: int


class OpenTransfer(NamedTuple):
    """Units that left one shard and have not arrived at the other, as far as is known; below zero: that
    arrived, and that their donor has still, because it has forgotten that it gave them."""

    donor: int
    receiver: int
    units: int


class Sent(NamedTuple):
    """Units that a shard has given another in its epoch, and those that it knows to have arrived."""

    given: int = 0
    arrived: int = 0


class ShardReading(NamedTuple):
    """One shard as it was read. `partition` is where it is."""

    partition: int
    generation: int
    available: int
    held: int
    sold: int
    loaded: int
    moves: int
    layout: int
    epoch: int
    state: State
    frozen: bool
    serves: bool
    sent: Mapping[int, Sent]
    """By the receiver's partition."""
    got: Mapping[int, int]
    """Units that arrived in its epoch, by the donor's partition."""
    released: int = 0
    """Units of the buffer that came in here since the product was loaded."""

    @property
    def open_transfers(self) -> list[OpenTransfer]:
        """What the shard itself knows to be on its way."""
        return [
            OpenTransfer(self.partition, receiver, sent.given - sent.arrived)
            for receiver, sent in self.sent.items()
            if sent.given != sent.arrived
        ]

    def given_to(self, receiver: int) -> int:
        """Units that it has given another shard."""
        return self.sent.get(receiver, Sent()).given

    def is_on_sale(self, layout: Layout) -> bool:
        """Whether units can be taken here by callers of that layout."""
        is_open = self.state is State.OPEN and not self.frozen
        return is_open and self.serves and self.layout == layout.version

    @property
    def version(self) -> tuple[int, int]:
        """Changes whenever units may have come back or gone elsewhere."""
        return self.generation, self.moves


def reading(partition: int, reply: Sequence[object]) -> ShardReading:
    """A shard as shard.lua returns it. StockUnavailableError SHARD_CORRUPT."""
    try:
        return _parsed(partition, reply)
    except ValueError as error:
        raise StockUnavailableError(Reason.SHARD_CORRUPT, f"p{partition:02d} {error}") from error


def _parsed(partition: int, reply: Sequence[object]) -> ShardReading:
    _, generation, _, flat = reply
    assert isinstance(generation, int)
    assert isinstance(flat, list)
    fields: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
    epoch = int(fields[b"epoch"])
    return ShardReading(
        partition,
        generation,
        available=int(fields[b"available"]),
        held=int(fields[b"held"]),
        sold=int(fields[b"sold"]),
        loaded=int(fields[b"loaded"]),
        moves=int(fields[b"moves"]),
        layout=int(fields[b"layout"]),
        epoch=epoch,
        state=State(fields[b"state"].decode()),
        frozen=fields[b"frozen"] != b"0",
        serves=fields.get(b"serves") != b"0",
        released=int(fields.get(b"released", b"0")),
        sent={partition: _sent(note, epoch) for partition, note in _notes(fields, b"out:")},
        got={partition: _got(note, epoch) for partition, note in _notes(fields, b"in:")},
    )


def _notes(fields: Mapping[bytes, bytes], prefix: bytes) -> Iterator[tuple[int, bytes]]:
    """What a shard has noted about others, by their partitions."""
    for name, note in fields.items():
        if name.startswith(prefix):
            yield int(name.removeprefix(prefix)), note


def _sent(note: bytes, epoch: int) -> Sent:
    """What a note of units given says of an epoch. ValueError."""
    of, *units = map(int, note.split(b":"))
    if len(units) == 1:  # versions up to 0.4: those that have not arrived
        return Sent(units[0])
    given, arrived = units
    return Sent(given, arrived) if of == epoch else Sent()


def _got(note: bytes, epoch: int) -> int:
    """What a note of units that arrived says of an epoch. ValueError."""
    of, *units = map(int, note.split(b":"))
    return units[0] if units and of == epoch else 0
