"""Streams as the scripts would write them, for tests and benchmarks of the ledger alone."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count

from msgpack import packb

from ledger.merge import Chunk, received
from sharding.events import BEFORE_ALL, Counts, EventId, Kind
from sharding.orders import OrderState
from sharding.partitions import Entry

_request_ids = count(1)
NOTHING = Counts(0, 0, 0, 0)


def fresh_request_ids(number: int) -> list[str]:
    """Ids that nobody had before."""
    stamp = time.time_ns()
    return [f"r-{stamp:x}-{next(_request_ids)}" for _ in range(number)]


def fresh_order_ids(number: int) -> list[int]:
    """Orders that nobody had before."""
    return [time.time_ns() // 1_000 * 1_000 + next(_request_ids) % 1_000 for _ in range(number)]


def flat(**fields: object) -> tuple[bytes, ...]:
    """Fields of an entry in their order; bytes stay, everything else becomes text."""
    return tuple(
        part
        for name, value in fields.items()
        for part in (name.encode(), value if isinstance(value, bytes) else str(value).encode())
    )


class FakeStream:
    """One partition's entries; keeps each shard's counts the way the scripts do."""

    def __init__(self, partition: int, *, after: EventId = BEFORE_ALL) -> None:
        self.partition = partition
        self.generation = max(1, after.generation)
        self.number = after.number
        self.counts: dict[int, dict[str, int]] = {}
        self.given: Counter[tuple[int, int]] = Counter()
        """Units by product and receiver."""
        self.got: Counter[tuple[int, int]] = Counter()
        """Units by product and donor."""

    @property
    def position(self) -> EventId:
        return EventId(self.generation, self.number) if self.number else BEFORE_ALL

    def load(self, product_id: int, units: int, *, epoch: int = 1, layout: int = 1) -> Entry:
        self.counts[product_id] = {"available": units, "held": 0, "sold": 0, "loaded": units}
        for moved in (self.given, self.got):
            for pair in [each for each in moved if each[0] == product_id]:
                del moved[pair]
        return self._shard_entry(
            Kind.LOAD, product_id, epoch=epoch, quantity=units, state="loading", layout=layout
        )

    def deduct(
        self,
        product_id: int,
        sales: Iterable[tuple[str, int]],
        *,
        holds: Iterable[tuple[str, int]] = (),
        refused: Iterable[tuple[str, int]] = (),
        epoch: int = 1,
    ) -> Entry:
        """Request id and quantity of each request that was sold, is held, or was refused for good."""
        return self.serve(
            product_id,
            [
                *(("D", *each) for each in sales),
                *(("H", *each) for each in holds),
                *(("T", *each) for each in refused),
            ],
            epoch,
        )

    def serve(
        self, product_id: int, requests: Iterable[tuple[str, str, int]], epoch: int = 1
    ) -> Entry:
        """Requests in their order, as status (D sold, H held, any other refused), id and quantity."""
        packed: list[object] = []
        statuses, units = b"", Counter[str]()
        for status, request_id, quantity in requests:
            packed += [request_id, quantity, "7", "H 9 60000 1:1:-" if status == "H" else "9"]
            statuses += status.encode()
            units[status] += quantity
        taken = units["D"] + units["H"]
        self._add(product_id, available=-taken, sold=units["D"], held=units["H"])
        return self._shard_entry(
            Kind.DEDUCT, product_id, epoch=epoch, requests=packb(packed), statuses=statuses
        )

    def hold(self, product_id: int, holds: Iterable[tuple[str, int]]) -> Entry:
        """`holds`: request id and quantity of each line, for user 7."""
        return self.deduct(product_id, (), holds=holds)

    def end(
        self,
        product_id: int,
        ends: Iterable[tuple[str, int]],
        why: OrderState,
        decisions: Iterable[int] = (),
    ) -> Entry:
        """Holds that end, as request id and quantity; `decisions`: orders that came to `why` here."""
        told = ",".join(f"{order_id}:{why.value}:7" for order_id in decisions)
        return self.end_each(product_id, [(*each, why) for each in ends], told)

    def end_each(
        self, product_id: int, ends: Iterable[tuple[str, int, OrderState]], decisions: str = ""
    ) -> Entry:
        """Holds that end each in its own way, in their order; `decisions` as the entry has them."""
        texts = []
        for request_id, units, why in ends:
            self._add(product_id, held=-units, **{"sold" if why.is_sold else "available": units})
            texts.append(f"{request_id}:{why.value}:{units}:7")
        return self._shard_entry(Kind.ORDERS, product_id, ends=",".join(texts), decisions=decisions)

    def adjust(
        self, kind: Kind, product_id: int, units: int, request_id: str, *, actor: str = ""
    ) -> Entry:
        signed = units if kind is Kind.RESTOCK else -units
        self._add(product_id, available=signed, loaded=signed)
        return self._shard_entry(
            kind,
            product_id,
            request=request_id,
            quantity=units,
            reason="counted again",
            actor=actor,
        )

    def buffer(self, product_id: int, units: int) -> Entry:
        self._add(product_id, available=units, loaded=units)
        return self._shard_entry(Kind.BUFFER, product_id, quantity=units)

    def undo(
        self, product_id: int, units: int, request_id: str, undone: EventId, *, epoch: int = 1
    ) -> Entry:
        self._add(product_id, available=units, sold=-units)
        return self._shard_entry(
            Kind.UNDO, product_id, epoch=epoch, request=request_id, quantity=units, undone=undone
        )

    def layout(
        self, product_id: int, version: int, *, joins: bool = False, epoch: int = 1
    ) -> Entry:
        if joins:
            self.counts[product_id] = dict.fromkeys(("available", "held", "sold", "loaded"), 0)
        return self._shard_entry(
            Kind.LAYOUT,
            product_id,
            epoch=epoch,
            layout=version,
            serves=1,
            joins=int(joins),
            state="open",
        )

    def reshard(
        self, product_id: int, version: int, shards: int, former: str = "", reason: str = ""
    ) -> Entry:
        return self.entry(
            flat(
                v=1,
                kind="reshard",
                at=_now_ms(),
                product=product_id,
                epoch=1,
                layout=version,
                shards=shards,
                former=former,
                reason=reason,
            )
        )

    def tombstone(
        self, product_id: int, request_id: str, *, epoch: int = 1, tombstone: str = "n"
    ) -> Entry:
        return self._shard_entry(
            Kind.TOMBSTONE, product_id, epoch=epoch, request=request_id, tombstone=tombstone
        )

    def take(self, product_id: int, units: int, *, peer: int, epoch: int = 1) -> Entry:
        self._add(product_id, available=-units)
        self.given[product_id, peer] += units
        return self._shard_entry(
            Kind.TAKE,
            product_id,
            epoch=epoch,
            peer=peer,
            quantity=units,
            total=self.given[product_id, peer],
        )

    def ack(
        self, product_id: int, *, peer: int, arrived: int | None = None, paid: int = 0
    ) -> Entry:
        """`arrived`: all that was given, if it is not told; `paid`: units that are given up by it."""
        self._add(product_id, available=-paid)
        self.given[product_id, peer] += paid
        total = self.given[product_id, peer]
        return self._shard_entry(
            Kind.ACK,
            product_id,
            peer=peer,
            quantity=paid,
            total=total,
            arrived=total if arrived is None else arrived,
        )

    def put(self, product_id: int, units: int, *, peer: int) -> Entry:
        self._add(product_id, available=units)
        self.got[product_id, peer] += units
        return self._shard_entry(
            Kind.PUT, product_id, peer=peer, quantity=units, total=self.got[product_id, peer]
        )

    def close(self, product_id: int, *, epoch: int = 1) -> Entry:
        units = self.counts[product_id]["available"]
        self._add(product_id, available=-units, loaded=-units)
        return self._shard_entry(
            Kind.CLOSE, product_id, epoch=epoch, quantity=units, state="closed"
        )

    def mark(self, product_id: int, *, damaged: str = "") -> Entry:
        return self._shard_entry(Kind.MARK, product_id, damaged=damaged)

    def repair(
        self,
        product_id: int,
        drift_id: int,
        *,
        live: Counts = NOTHING,
        ledger: Counts = NOTHING,
        actor: str,
        reason: str,
    ) -> Entry:
        self._add(product_id, **live._asdict())
        return self._shard_entry(
            Kind.REPAIR,
            product_id,
            drift=drift_id,
            live=" ".join(map(str, live)),
            ledger=" ".join(map(str, ledger)),
            actor=actor,
            reason=reason,
        )

    def opened(self) -> Entry:
        return self.entry(flat(v=1, kind="opened", at=_now_ms()))

    def entry(self, fields: tuple[bytes, ...]) -> Entry:
        """Any fields as the next entry."""
        self.number += 1
        return Entry(EventId(self.generation, self.number), fields)

    def _add(self, product_id: int, **units: int) -> None:
        counts = self.counts.setdefault(
            product_id, {"available": 0, "held": 0, "sold": 0, "loaded": 0}
        )
        for name, change in units.items():
            counts[name] += change

    def _shard_entry(self, kind: Kind, product_id: int, *, epoch: int = 1, **more: object) -> Entry:
        return self.entry(
            flat(
                v=1,
                kind=kind.value,
                at=_now_ms(),
                product=product_id,
                epoch=epoch,
                **self.counts[product_id],
                **more,
            )
        )


def chunk_of(partition: int, start: EventId, entries: Sequence[Entry]) -> Chunk:
    """Entries of one partition as the worker hands them to the ledger."""
    return Chunk(partition, start, [received(entry) for entry in entries])


def sales_chunk(
    stream: FakeStream, product_ids: Sequence[int], *, sales: int, sales_per_event: int
) -> Chunk:
    """`sales` single units over loaded products in turn, so many to an event."""
    start = stream.position
    ids = fresh_request_ids(sales)
    pieces = [ids[i : i + sales_per_event] for i in range(0, sales, sales_per_event)]
    entries = [
        stream.deduct(product_ids[position % len(product_ids)], [(each, 1) for each in piece])
        for position, piece in enumerate(pieces)
    ]
    return chunk_of(stream.partition, start, entries)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
