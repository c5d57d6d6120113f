"""What an oracle knows of requests, of products and of their shards."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sharding.events import Event, EventId, Kind, Sale
from sharding.outcomes import Answer, Resolution

RESTORED = "restored"
"""The mode of the event by which a restored partition is opened."""


class ViolationError(AssertionError):
    """A promise was broken; the text says which."""


class Shard(NamedTuple):
    """A stock hash, as far as units are concerned."""

    epoch: int
    available: int
    held: int
    sold: int
    loaded: int
    given: dict[int, int]
    """Units by receiver, in this epoch."""
    got: dict[int, int]
    """Units by donor, in this epoch."""


class How(NamedTuple):
    """By which call an event came about: its mode, and the layout that its caller knew."""

    mode: str = "home"
    layout: int = 0


class Place(NamedTuple):
    """One event."""

    partition: int
    event: EventId


class Effect(NamedTuple):
    """What a request did, by which of its copies."""

    copy: int
    quantity: int
    user_id: int
    place: Place
    how: How
    at_s: float
    is_surplus: bool
    """By a second delivery after its caller had the reply to the first."""

    @property
    def is_visit(self) -> bool:
        return self.how.mode == "visit"


class Entry(NamedTuple):
    """An event as the oracle remembers it."""

    partition: int
    event: Event
    how: How
    at_s: float
    is_surplus: bool


@dataclass(slots=True)
class Request:
    """All that callers have asked and heard under one id."""

    product_id: int
    request_id: str
    kind: str
    """deduct, restock or remove."""
    quantity: int
    user_id: int = 0
    effects: list[Effect] = field(default_factory=list)
    """At most two, and two only where the alternate stood in for the home."""
    undone: set[Place] = field(default_factory=set)
    first: Answer | None = None
    """The first answer that said DEDUCTED."""
    is_known: bool = False
    """Whether anybody was told that it took effect."""
    fresh_answers: int = 0
    refused_after: int = 0
    """How many copies had been sent when it was refused for good; 0: it was not."""
    is_resolved: bool = False
    """Whether somebody has begun to have it resolved."""
    end: Resolution | None = None
    """What it was resolved to."""
    first_sent: int = -1
    """Where in the product's history its first copy was sent."""

    @property
    def effect(self) -> Effect | None:
        return self.effects[0] if self.effects else None

    @property
    def name(self) -> str:
        return f"{self.kind} {self.request_id} x{self.quantity} of product {self.product_id}"


@dataclass(slots=True)
class Copy:
    """One sending of a request."""

    number: int
    request: Request
    attempt: int
    since: int
    """Where in the product's history it was sent."""
    had_effect: bool
    """Whether the request had one already."""
    sent_s: float
    shut_before: int
    promised: str = ""
    """What it was told if that means that it had no effect."""


@dataclass(slots=True)
class Product:
    """What is known of a product from its hashes and its events."""

    shards: dict[int, Shard] = field(default_factory=dict)
    external: int = 0
    """Units loaded and restocked, less those removed and given back."""
    sold: int = 0
    """Units sold according to the events."""
    held: int = 0
    """Units held for orders according to the events."""
    limits: dict[int, int] = field(default_factory=dict)
    """For each epoch with a limit the units that one user may hold and buy in it."""
    users: dict[tuple[int, int], int] = field(default_factory=dict)
    """Units that users hold and bought according to the events, by epoch and user."""
    past_sold: int = 0
    """Units sold in epochs whose counts were overwritten."""
    past_loaded: int = 0
    last: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """For each shard epoch, sold and loaded as its last event told them."""
    loads: dict[int, int] = field(default_factory=dict)
    """Shard counts by the version of the layout, of those that it was loaded with."""
    layouts: dict[int, int] = field(default_factory=dict)
    """The same of all that were decided on; the latest is in force."""
    offered: list[int] = field(default_factory=lambda: [0])
    """Each number of units that could be sold, anywhere or in transit, one after the other."""
    news: dict[str, int] = field(default_factory=dict)
    """Units that came in just now, by what brought them, as long as nobody has been told of them."""
    certain: list[int] = field(default_factory=lambda: [0])
    """The same as `offered` without the news: a refusal may be from before they came."""
    shut: int = 0
    """How often it was taken off sale or put on; odd while it is off."""

    def count(self, event: Event) -> None:
        """Add up what an event tells of sales, of holds and of users."""
        taken = (*event.sales, *event.holds)
        back = [end for end in event.ends if not end.is_sold]
        self.sold += sum(sale.quantity for sale in event.sales)
        self.sold += sum(end.quantity for end in event.ends if end.is_sold)
        self.sold -= event.quantity if event.kind is Kind.UNDO else 0
        self.held += sum(sale.quantity for sale in event.holds)
        self.held -= sum(end.quantity for end in event.ends)
        if event.epoch not in self.limits:
            return
        for sign, changes in ((1, taken), (-1, back)):
            for change in changes:
                key = event.epoch, change.user_id
                self.users[key] = self.users.get(key, 0) + sign * change.quantity

    def judge_users(self, name: str) -> None:
        """No user ever holds and buys more than the product's limit."""
        for (epoch, user_id), units in self.users.items():
            limit = self.limits[epoch]
            expect(0 <= units <= limit, f"user {user_id} has {units} of at most {limit}, {name}")

    def home_key(self, request_id: str, user_id: int) -> str:
        """What selects a request's home; of one that no user makes it is its id."""
        return str(user_id) if self.limits and user_id else request_id

    def note_offered(self, units: int) -> None:
        """Continue the history if anything has changed."""
        certain = max(0, units - sum(self.news.values()))
        if (self.offered[-1], self.certain[-1]) != (units, certain):
            self.offered.append(units)
            self.certain.append(certain)

    def tell(self, news: str) -> None:
        """Somebody knows of the units by now, or could."""
        if self.news.pop(news, 0):
            self.note_offered(self.offered[-1])

    def in_transit(self) -> int:
        given = sum(sum(shard.given.values()) for shard in self._of_newest_epoch())
        return given - sum(sum(shard.got.values()) for shard in self._of_newest_epoch())

    def _of_newest_epoch(self) -> list[Shard]:
        newest = max((shard.epoch for shard in self.shards.values()), default=0)
        return [shard for shard in self.shards.values() if shard.epoch == newest]


def expect(holds: object, what: str) -> None:
    if not holds:
        raise ViolationError(what)


def shard_of(fields: dict[bytes, bytes]) -> Shard:
    epoch = int(fields[b"epoch"])
    given: dict[int, int] = {}
    got: dict[int, int] = {}
    for name, value in fields.items():
        for start, found in ((b"out:", given), (b"in:", got)):
            if name.startswith(start):
                of, units, *_ = map(int, value.split(b":"))
                found[int(name.removeprefix(start))] = units if of == epoch else 0
    return Shard(
        epoch,
        available=int(fields[b"available"]),
        held=int(fields[b"held"]),
        sold=int(fields[b"sold"]),
        loaded=int(fields[b"loaded"]),
        given=given,
        got=got,
    )


def effects_of(entry: Entry) -> Iterator[tuple[str, Effect]]:
    """What requests did that are no lines of orders, as an event tells it."""
    event = entry.event
    sales = tuple(sale for sale in event.sales if " " not in sale.request_id)
    if event.kind in (Kind.RESTOCK, Kind.REMOVE):
        sales = (Sale(event.request_id, event.quantity, 0, int(event.reason)),)
    place = Place(entry.partition, event.id)
    for sale in sales:
        yield (
            sale.request_id,
            Effect(
                sale.order_id,
                sale.quantity,
                sale.user_id,
                place,
                entry.how,
                entry.at_s,
                entry.is_surplus,
            ),
        )
