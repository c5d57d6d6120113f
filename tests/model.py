"""The contract as one small counter: what a product answers who is asked one thing after another.

It knows no shards, no scripts and no time. Whatever the kernel does to keep its promises, its answers
must be these.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sharding.outcomes import Answer, Deduction, Outcome, Reason, Resolution, Resolved


class Record(NamedTuple):
    """What an id stands for: `kind` is deduct, restock, remove, refused or never."""

    kind: str
    quantity: int = 0
    user_id: int = 0


class Reply(NamedTuple):
    """The part of an answer that does not depend on where units lie."""

    outcome: Outcome
    replayed: bool = False
    reason: Reason = Reason.NONE


INSUFFICIENT = Reply(Outcome.INSUFFICIENT_STOCK)
MISMATCH = Reply(Outcome.REQUEST_MISMATCH)
CLOSED = Reply(Outcome.FROZEN, reason=Reason.PRODUCT_CLOSED)


@dataclass(slots=True)
class Model:
    """One product. Counts are units and only grow; what is left follows from them."""

    loaded: int = 0
    restocked: int = 0
    removed: int = 0
    given_back: int = 0
    sold: int = 0
    shards: int = 0
    is_open: bool = False
    records: dict[str, Record] = field(default_factory=dict)

    @property
    def available(self) -> int:
        """Units that can be sold, wherever they are."""
        return self.loaded + self.restocked - self.removed - self.given_back - self.sold

    @property
    def total(self) -> int:
        """Units of which the live stock still gives account."""
        return self.available + self.sold

    def deduct(self, request: Deduction) -> Reply:
        """Take units for one request. In order of precedence: record, state, stock."""
        wanted = Record("deduct", request.quantity, request.user_id)
        record = self.records.get(request.request_id)
        if record is not None:
            return _repeated(record, wanted)
        if not self.is_open:
            return CLOSED
        if request.quantity > self.available:
            if request.attempt >= 2:
                self.records[request.request_id] = wanted._replace(kind="refused")
            return INSUFFICIENT
        self.sold += request.quantity
        self.records[request.request_id] = wanted
        return Reply(Outcome.DEDUCTED)

    def deduct_all(self, requests: Sequence[Deduction], given: Sequence[Answer]) -> list[Reply]:
        """Take units for requests that were asked at once, of which not all can be served perhaps.

        Each stands alone, so which of them are is the kernel's choice: they are asked here in the order
        that explains what was `given`, if any does. Equal requests keep their order. Exact where at most
        one id stands for several contents.
        """
        replies: dict[int, Reply] = {}
        for position in self._order(requests, given):
            replies[position] = self.deduct(requests[position])
        return [replies[position] for position in range(len(requests))]

    def restock(self, request_id: str, quantity: int) -> Reply:
        """Add units once per id."""
        reply = self._adjustable(request_id, Record("restock", quantity))
        if reply == Reply(Outcome.DEDUCTED):
            self.restocked += quantity
        return reply

    def remove(self, request_id: str, quantity: int) -> Reply:
        """Take unsold units away once per id, never more than there are."""
        reply = self._adjustable(request_id, Record("remove", quantity))
        if reply == Reply(Outcome.DEDUCTED):
            self.removed += quantity
        return reply

    def load(self, units: int, shards: int) -> None:
        """Put a closed product on sale."""
        assert not self.is_open
        self.loaded += units
        self.shards = shards
        self.is_open = True

    def close(self) -> None:
        """Take a product off sale; its units go back, its records stay."""
        self.given_back += self.available
        self.is_open = False

    def set_shards(self, shards: int) -> None:
        """Split the product anew. Callers see nothing of it."""
        self.shards = shards

    def resolve(self, request_id: str) -> Resolved:
        """Decide a request of unknown outcome; what was never seen will never take effect."""
        record = self.records.setdefault(request_id, Record("never"))
        if record.kind == "deduct":
            return Resolved(Resolution.DEDUCTED, record.quantity)
        return Resolved(Resolution(record.kind))

    def _adjustable(self, request_id: str, wanted: Record) -> Reply:
        record = self.records.get(request_id)
        if record is not None:
            return _repeated(record, wanted)
        if not self.is_open:
            return CLOSED
        if wanted.kind == "remove" and wanted.quantity > self.available:
            return INSUFFICIENT
        self.records[request_id] = wanted
        return Reply(Outcome.DEDUCTED)

    def _order(self, requests: Sequence[Deduction], given: Sequence[Answer]) -> list[int]:
        """Accepted requests before refused ones, because units only become fewer; but a refused one just
        before another content of its own id that was accepted. Refusals that are forgotten before those
        that are remembered."""
        ids = [request.request_id for request in requests]
        accepted: dict[str, int] = {}
        refused: list[int] = []
        for i, answer in enumerate(given):
            if answer.outcome is Outcome.DEDUCTED and ids[i] not in self.records:
                accepted.setdefault(ids[i], i)
            elif answer.outcome is Outcome.INSUFFICIENT_STOCK:
                refused.append(i)
        refused.sort(key=lambda i: (given[i].replayed, requests[i].attempt >= 2))
        torn = {ids[i] for i in refused} & accepted.keys()
        order = [i for i in accepted.values() if ids[i] not in torn]
        order += [i for i in refused if ids[i] in torn]
        order += [i for i in accepted.values() if ids[i] in torn]
        order += [i for i in refused if ids[i] not in torn]
        return order + [i for i in range(len(requests)) if i not in set(order)]


def _repeated(record: Record, wanted: Record) -> Reply:
    if record.kind == "never" and wanted.kind == "deduct":
        return MISMATCH._replace(reason=Reason.RESOLVED_NEVER)
    if record == wanted:
        return Reply(Outcome.DEDUCTED, replayed=True)
    if record == wanted._replace(kind="refused") and wanted.kind == "deduct":
        return INSUFFICIENT._replace(replayed=True)
    return MISMATCH
