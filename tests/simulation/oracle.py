"""What must hold at every instant, whatever the network does; checked after every script that may write.

The oracle knows nothing of how units move. It adds up what the stock hashes hold, reads every event, and
compares both with what callers were told.

Each copy of a request travels with a number of its own as its order id (or as the reason of a restock or
removal), which the kernel carries into the event and otherwise ignores. So an effect names the very copy
that had it, and a copy that was told "nothing happened" can be held to it.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sharding.events import Event, EventId, MalformedEventError, decode
from sharding.outcomes import Answer, Outcome, ProductStock, Reason
from tests.simulation.nodes import FakeNode, LuaEngine

NEWS_S = 0.1
"""A process may refuse by what it knew before units came in, for less than this and as long as the call
that brought them is not answered."""
MAY_HAVE_RUN = frozenset((Reason.OUTCOME_UNKNOWN, Reason.NOT_REPLICATED))


class ViolationError(AssertionError):
    """A promise was broken; the text says which."""


class Shard(NamedTuple):
    """A stock hash, as far as units are concerned."""

    epoch: int
    available: int
    held: int
    sold: int
    loaded: int
    out: dict[int, tuple[int, int]]
    """For each receiver number and units of the last take."""
    arrived: dict[int, int]
    """For each donor the number of the last put."""
    is_visited: bool
    """Whether it ever served requests whose home was away."""


class Effect(NamedTuple):
    """What a request did, by which of its copies."""

    copy: int
    quantity: int
    user_id: int
    is_surplus: bool
    """By a second delivery after its caller had the reply to the first."""


@dataclass(slots=True)
class Request:
    """All that callers have asked and heard under one id."""

    product_id: int
    request_id: str
    kind: str
    """deduct, restock or remove."""
    quantity: int
    user_id: int = 0
    effect: Effect | None = None
    first: Answer | None = None
    """The first answer that said DEDUCTED."""
    fresh_answers: int = 0
    has_second_effect: bool = False
    """By a shard that stood in for its home. The ledger notices it and has it undone, which this does
    not play, so nothing more is expected of the request."""
    is_refused_for_good: bool = False
    first_sent: int = -1
    """Where in the product's history its first copy was sent."""


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
    shut_before: int
    promised: str = ""
    """What it was told if that means that it had no effect."""


@dataclass(slots=True)
class Product:
    """What is known of a product from its hashes and its events."""

    shards: dict[int, Shard] = field(default_factory=dict)
    external: int = 0
    """Units loaded and restocked, less those removed and given back."""
    given_back: int = 0
    sold: int = 0
    """Units sold according to the events."""
    past_sold: int = 0
    """Units sold in epochs whose counts were overwritten."""
    past_loaded: int = 0
    offered: list[int] = field(default_factory=lambda: [0])
    """Each number of units that could be sold, anywhere or in transit, one after the other."""
    news: dict[str, int] = field(default_factory=dict)
    """Units that came in just now, by what brought them, as long as nobody has been told of them."""
    certain: list[int] = field(default_factory=lambda: [0])
    """The same as `offered` without the news: a refusal may be from before they came."""
    shut: int = 0
    """How often it was taken off sale or put on; odd while it is off."""

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
        return sum(
            units
            for donor, shard in self.shards.items()
            for receiver, (number, units) in shard.out.items()
            if units and number > self._arrived(receiver, donor)
        )

    def _arrived(self, receiver: int, donor: int) -> int:
        shard = self.shards.get(receiver)
        return shard.arrived.get(donor, 0) if shard else 0


_BRINGS = {"load": 1, "restock": 1, "remove": -1, "close": -1}
"""Kinds of events by which units come in from outside or leave for it."""


class Oracle:
    """Judges one simulation. Every method raises ViolationError when a promise is broken."""

    def __init__(self, engine: LuaEngine, tags: Sequence[str]) -> None:
        self.products: dict[int, Product] = {}
        self.requests: dict[tuple[int, str], Request] = {}
        self.late_effects: Counter[str] = Counter()
        """Copies that had an effect after they were answered that they had none, by that answer."""
        self.second_effects = 0
        self.answers: Counter[str] = Counter()
        self._engine = engine
        self._partitions = {tag.encode(): partition for partition, tag in enumerate(tags)}
        self._copies: dict[int, Copy] = {}
        self._last_ids: dict[bytes, bytes] = {}

    # What nodes do.

    def executed(self, node: FakeNode, words: list[bytes], reply: object, is_surplus: bool) -> None:
        """A node has carried out a call; see network.Executed."""
        if words[0] not in (b"EVALSHA", b"EVAL"):
            return
        digest = words[1] if words[0] == b"EVALSHA" else self._engine.add(words[1])
        if not self._engine.writes(digest):
            return
        keys = words[3 : 3 + int(words[2])]
        partition = self._partitions[keys[0].split(b":")[1][1:-1]]
        changed: dict[int, Event | None] = {}
        for key in keys:
            _, _, what, *rest = key.split(b":")
            if what == b"stock":
                changed[int(rest[0])] = changed.get(int(rest[0]))
                self._read_shard(node, key, int(rest[0]), partition)
            elif what == b"events":
                for event in self._new_events(node, key):
                    self._learn(event, is_surplus)
                    changed[event.product_id] = event
        for product_id, last in changed.items():
            if product_id in self.products:
                self._check(product_id, partition, last)

    def _read_shard(self, node: FakeNode, key: bytes, product_id: int, partition: int) -> None:
        fields = node.hash_fields(key)
        if not fields:
            return
        product = self.products.setdefault(product_id, Product())
        shard = _shard(fields)
        before = product.shards.get(partition)
        if before is not None and before.epoch != shard.epoch:
            _expect(not before.available and not before.held, "an epoch began over unsold units")
            product.past_sold += before.sold
            product.past_loaded += before.loaded
        product.shards[partition] = shard

    def _new_events(self, node: FakeNode, key: bytes) -> Iterator[Event]:
        for entry_id, flat in node.entries_after(key, self._last_ids.get(key, b"0-0")):
            self._last_ids[key] = entry_id
            try:
                fields = dict(zip(flat[::2], flat[1::2], strict=True))
                yield decode(EventId.parse(entry_id), fields)
            except MalformedEventError as error:
                raise ViolationError(f"an event that nobody can read: {error}") from error

    def _learn(self, event: Event, is_surplus: bool) -> None:
        if not event.product_id:
            return
        product = self.products.setdefault(event.product_id, Product())
        kind = str(event.kind)
        product.external += _BRINGS.get(kind, 0) * event.quantity
        if _BRINGS.get(kind, 0) > 0:
            news = event.request_id or str(event.id)
            product.news[news] = product.news.get(news, 0) + event.quantity
            asyncio.get_running_loop().call_later(NEWS_S, product.tell, news)
        product.given_back += event.quantity if kind == "close" else 0
        for sale in event.sales:
            product.sold += sale.quantity
            effect = Effect(sale.order_id, sale.quantity, sale.user_id, is_surplus)
            self._take_effect(event.product_id, "deduct", sale.request_id, effect)
        if kind in ("restock", "remove"):
            effect = Effect(int(event.reason), event.quantity, 0, is_surplus)
            self._take_effect(event.product_id, kind, event.request_id, effect)
        if kind == "undo":
            product.sold -= event.quantity
            self.requests[event.product_id, event.request_id].has_second_effect = False

    def _take_effect(self, product_id: int, kind: str, request_id: str, effect: Effect) -> None:
        request = self.requests.get((product_id, request_id))
        name = f"I4: {kind} {request_id} of product {product_id}"
        _expect(request is not None, f"{name} was never asked for")
        assert request is not None
        if request.effect is not None:
            was_visited = any(s.is_visited for s in self.products[product_id].shards.values())
            _expect(was_visited, f"{name} took effect twice: {request.effect}, {effect}")
            request.has_second_effect = True
            self.second_effects += 1
            return
        wanted = (request.kind, request.quantity, request.user_id)
        _expect((kind, effect.quantity, effect.user_id) == wanted, f"{name} is {effect}")
        _expect(not request.is_refused_for_good, f"{name} took effect after its last word")
        request.effect = effect
        copy = self._copies[effect.copy]
        _expect(copy.request is request, f"{name} took effect by a copy of {copy.request}")
        if copy.promised:
            how = "delivered twice" if effect.is_surplus else "lost and run later"
            self.late_effects[f"{copy.promised} ({how})"] += 1

    def _check(self, product_id: int, partition: int, event: Event | None) -> None:
        product = self.products[product_id]
        shards = product.shards.values()
        name = f"product {product_id}: {product}"
        _expect(
            all(min(s.available, s.held, s.sold) >= 0 for s in shards), f"I1: below zero, {name}"
        )
        in_transit = product.in_transit()
        available = sum(shard.available for shard in shards)
        held = sum(shard.held for shard in shards)
        sold = sum(shard.sold for shard in shards) + product.past_sold
        loaded = sum(shard.loaded for shard in shards) + product.past_loaded
        _expect(available + held + sold + in_transit == product.external, f"I1: units, {name}")
        _expect(loaded == product.external, f"I1: `loaded`, {name}")
        _expect(sold == product.sold, f"I4: the events tell of other sales than the counts, {name}")
        _expect(sold + held <= product.external, f"I2: oversold, {name}")
        if event is not None and event.counts is not None:
            shard = product.shards[partition]
            _expect(event.counts == shard[1:5], f"the event tells other counts: {event}, {name}")
        product.note_offered(available + in_transit)

    # What callers do.

    def sends(self, request: Request, *, attempt: int) -> Copy:
        """A caller sends one copy of a request."""
        request = self.requests.setdefault((request.product_id, request.request_id), request)
        product = self.products[request.product_id]
        copy = Copy(
            len(self._copies) + 1,
            request,
            attempt,
            since=len(product.offered) - 1,
            had_effect=request.effect is not None,
            shut_before=product.shut,
        )
        self._copies[copy.number] = copy
        if request.first_sent < 0:
            request.first_sent = copy.since
        return copy

    def is_unknown(self, answer: Answer) -> bool:
        """Whether an answer leaves open what happened."""
        return answer.reason in MAY_HAVE_RUN

    def answered(self, copy: Copy, answer: Answer) -> None:
        """A caller got an answer to a copy."""
        self.answers[f"{answer.outcome.value} {answer.reason.value}".strip()] += 1
        if self.is_unknown(answer) or copy.request.has_second_effect:
            return
        if answer.outcome is Outcome.DEDUCTED:
            self._accepted(copy, answer)
            return
        request = copy.request
        told = f"{request.kind} {request.request_id} x{request.quantity} was told {answer}"
        effect = request.effect
        did_it = effect is not None and effect.copy == copy.number and not effect.is_surplus
        _expect(not did_it, f"I8: {told}, but did {effect}")
        _expect(answer.outcome is not Outcome.REQUEST_MISMATCH, f"I4: {told}")
        _expect(answer.outcome is not Outcome.UNKNOWN_PRODUCT, f"I8: {told}")
        copy.promised = f"{answer.outcome.value} {answer.reason.value}".strip()
        if answer.outcome is Outcome.INSUFFICIENT_STOCK:
            self._refused(copy, answer, told)
            # A refusal that is remembered is the last word.
            request.is_refused_for_good |= answer.replayed
        if answer.outcome is Outcome.FROZEN:
            product = self.products[request.product_id]
            was_shut = copy.shut_before % 2 or product.shut != copy.shut_before
            _expect(was_shut, f"I8: {told}, but the product was on sale all the time")

    def _accepted(self, copy: Copy, answer: Answer) -> None:
        request = copy.request
        self.products[request.product_id].tell(request.request_id)
        told = f"{request.kind} {request.request_id} was told {answer}"
        _expect(request.effect is not None, f"I5: {told}, but no event tells of it")
        assert request.effect is not None
        if not answer.replayed:
            request.fresh_answers += 1
            _expect(request.fresh_answers == 1, f"I4: {told}, a second time without `replayed`")
            _expect(request.effect.copy == copy.number, f"I4: {told}, but {request.effect} did it")
        first, request.first = request.first, request.first or answer
        # The shard's number is another one under another layout, though it is the same shard.
        if first is not None and request.kind == "deduct":
            _expect(answer.available == first.available, f"I4: {told}, first {first}")

    def _refused(self, copy: Copy, answer: Answer, told: str) -> None:
        request = copy.request
        _expect(request.kind != "restock", f"I3: {told}")
        # Who says that this is the first copy is not protected from copies that he did send before.
        _expect(not copy.had_effect or copy.attempt == 1, f"I4: {told}, but had an effect before")
        # A remembered refusal was decided while any of the copies was under way.
        since = request.first_sent if answer.replayed else copy.since
        least = min(self.products[request.product_id].certain[since:])
        _expect(
            least < request.quantity, f"I3: {told}, but there never were less than {least} units"
        )

    def read(self, product_id: int, since: int, seen: ProductStock) -> None:
        """A caller has read a product; `since` is where its history stood before."""
        product = self.products[product_id]
        told = f"product {product_id} was read as {seen}"
        least = min((s.available, s.held, s.sold, s.in_transit) for s in seen.shards)
        _expect(min(least) >= 0, f"I1: {told}")
        if not seen.exact:
            return
        there = seen.available + seen.in_transit
        parts = there + seen.held + seen.buffer + seen.sold
        _expect(seen.total == parts, f"I1: {told}, which does not add up")
        window = product.offered[since:]
        _expect(min(window) <= there <= max(window), f"I1: {told}, but there were {window}")

    def is_settled(self, product_id: int, units: int) -> None:
        """Nothing is under way: so many units are left, and none in transit."""
        product = self.products[product_id]
        _expect(product.offered[-1] == units, f"{units} units should be left: {product}")
        _expect(product.in_transit() == 0, f"units are in transit for ever: {product}")


def _expect(holds: object, what: str) -> None:
    if not holds:
        raise ViolationError(what)


def _shard(fields: dict[bytes, bytes]) -> Shard:
    out: dict[int, tuple[int, int]] = {}
    arrived: dict[int, int] = {}
    for name, value in fields.items():
        if name.startswith(b"out:"):
            number, _, units = value.partition(b":")
            out[int(name[4:])] = (int(number), int(units))
        elif name.startswith(b"in:"):
            arrived[int(name[3:])] = int(value)
    return Shard(
        int(fields[b"epoch"]),
        available=int(fields[b"available"]),
        held=int(fields[b"held"]),
        sold=int(fields[b"sold"]),
        loaded=int(fields[b"loaded"]),
        out=out,
        arrived=arrived,
        is_visited=b"visited" in fields,
    )
