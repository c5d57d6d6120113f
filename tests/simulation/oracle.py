"""What must hold at every instant, whatever the network does; checked after every script that may write.

The oracle knows nothing of how units move. It adds up what the stock hashes hold, reads every event, and
compares both with what callers were told.

Each copy of a request travels with a number of its own as its order id (or as the reason of a restock or
removal), which the kernel carries into the event and otherwise ignores. So an effect names the very copy
that had it, and a copy that was told "nothing happened" can be held to it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from sharding import keys
from sharding.events import Event, EventId, Kind, MalformedEventError, Sale, decode
from sharding.outcomes import Answer, Outcome, ProductStock, Reason, Resolution, Resolved
from sharding.partitions import Checkpoint
from sharding.placement import Layout, alternate_shard, home_shard
from tests.simulation.nodes import FakeNode, LuaEngine, script_names
from tests.simulation.observed import (
    RESTORED,
    Copy,
    Effect,
    Entry,
    How,
    Place,
    Product,
    Request,
    ViolationError,
    effects_of,
    expect,
    shard_of,
)
from tests.simulation.order_book import OrderBook, taken

NEWS_S = 0.1
"""A process may refuse by what it knew before units came in, for less than this and as long as the call
that brought them is not answered."""
UNASKED_S = 5.0
"""For so long after a node was in trouble it may be that somebody went on without asking it."""
_SAYS_NOTHING = (b"fenced", b"passed")
"""Replies of scripts that wrote nothing and may have met a node which is in the past."""
_UNFENCED = frozenset(("freeze",))
"""Scripts that write no units and obey whatever has become of the node."""
MAY_HAVE_RUN = frozenset((Reason.OUTCOME_UNKNOWN, Reason.NOT_REPLICATED))

_BRINGS = {Kind.LOAD: 1, Kind.RESTOCK: 1, Kind.BUFFER: 1, Kind.REMOVE: -1, Kind.CLOSE: -1}
"""Kinds of events by which units come in from outside or leave for it."""


class Oracle:
    """Judges one simulation. Every method raises ViolationError when a promise is broken."""

    def __init__(
        self,
        engine: LuaEngine,
        tags: Sequence[str],
        now_s: Callable[[], float],
        troubled_s: Callable[[int], float],
    ) -> None:
        """`troubled_s` says when the node of a partition was last not reached at once."""
        self.products: dict[int, Product] = {}
        self.requests: dict[tuple[int, str], Request] = {}
        self.late_effects: Counter[str] = Counter()
        """Copies that had an effect after they were answered that they had none, by that answer."""
        self.counts: Counter[str] = Counter()
        """What is rare and allowed, by its name."""
        self.answers: Counter[str] = Counter()
        self.orders = OrderBook(self.products, self.counts)
        self._engine = engine
        self._tags = tags
        self._now_s = now_s
        self._troubled_s = troubled_s
        self._partitions = {tag.encode(): partition for partition, tag in enumerate(tags)}
        self._copies: dict[int, Copy] = {}
        self._last_ids: dict[bytes, bytes] = {}
        self._entries: list[Entry] = []

    # What nodes do.

    def executed(self, node: FakeNode, words: list[bytes], reply: object, is_surplus: bool) -> None:
        """A node has carried out a call; see network.Executed."""
        if words[0] not in (b"EVALSHA", b"EVAL"):
            return
        if isinstance(reply, list) and reply[0] in _SAYS_NOTHING:
            return
        digest = words[1] if words[0] == b"EVALSHA" else self._engine.add(words[1])
        if not self._engine.writes(digest) or script_names()[digest] in _UNFENCED:
            return
        count = int(words[2])
        names = words[3 : 3 + count]
        how = self._how(script_names()[digest], words[3 + count :])
        partition = self._partitions[names[0].split(b":")[1][1:-1]]
        changed: dict[int, Event | None] = {}
        for key in names:
            _, _, what, *rest = key.split(b":")
            if what == b"stock":
                changed[int(rest[0])] = changed.get(int(rest[0]))
                self._read_shard(node, key, int(rest[0]), partition)
            elif what == b"events":
                for event in self._new_events(node, key):
                    self._learn(Entry(partition, event, how, self._now_s(), is_surplus))
                    changed[event.product_id] = event
        for product_id, last in changed.items():
            if product_id in self.products:
                self._check(product_id, partition, last)

    def _how(self, name: str, args: list[bytes]) -> How:
        if name == "load":
            product = self.products.setdefault(int(args[2]), Product())
            product.loads[int(args[4])] = product.layouts[int(args[4])] = int(args[5])
            if int(args[10]):
                product.limits[int(args[3])] = int(args[10])
        if name == "reopen":
            return How(RESTORED)
        if name not in ("deduct", "put", "restock", "remove"):
            return How()
        return How(args[9].decode() if name == "deduct" else "home", int(args[3]))

    def _read_shard(self, node: FakeNode, key: bytes, product_id: int, partition: int) -> None:
        fields = node.hash_fields(key)
        if not fields:
            return
        product = self.products.setdefault(product_id, Product())
        shard = shard_of(fields)
        before = product.shards.get(partition)
        if before is not None and before.epoch != shard.epoch:
            expect(not before.available and not before.held, "an epoch began over unsold units")
        product.shards[partition] = shard

    def _new_events(self, node: FakeNode, key: bytes) -> Iterator[Event]:
        for entry_id, flat in node.entries_after(key, self._last_ids.get(key, b"0-0")):
            self._last_ids[key] = entry_id
            try:
                fields = dict(zip(flat[::2], flat[1::2], strict=True))
                yield decode(EventId.parse(entry_id), fields)
            except MalformedEventError as error:
                raise ViolationError(f"an event that nobody can read: {error}") from error

    def _learn(self, entry: Entry) -> None:
        self._entries.append(entry)
        event = entry.event
        if not event.product_id:
            self.orders.note_opened(entry)
            return
        for request_id, effect in effects_of(entry):
            self._judge(event, request_id, effect)
        if event.kind is Kind.UNDO:
            self._judge_undo(entry)
        for line in taken(event):
            self._judge_home(event.product_id, line, entry)
        self.orders.judge(entry)
        self._book(entry)
        if event.kind in (Kind.LOAD, Kind.RESTOCK, Kind.BUFFER, Kind.UNDO):
            product = self.products[event.product_id]
            # A restock is told under its id, whatever else has come in.
            restocked = event.request_id if event.kind is Kind.RESTOCK else ""
            self._note_news(product, restocked or f"{entry.partition}:{event.id}", event.quantity)
        for end in event.ends:
            if not end.is_sold:
                self._note_news(self.products[event.product_id], end.request_id, end.quantity)

    def _note_news(self, product: Product, news: str, units: int) -> None:
        product.news[news] = product.news.get(news, 0) + units
        asyncio.get_running_loop().call_later(NEWS_S, product.tell, news)

    def _book(self, entry: Entry) -> None:
        """Count what an event tells, without judging it."""
        event, partition = entry.event, entry.partition
        product = self.products.setdefault(event.product_id, Product())
        product.external += _BRINGS.get(event.kind, 0) * event.quantity
        if event.kind is Kind.RESHARD:
            product.layouts[event.layout] = event.shards
        if event.counts is not None:
            epoch, sold, loaded = product.last.get(partition, (event.epoch, 0, 0))
            if epoch != event.epoch:
                product.past_sold += sold
                product.past_loaded += loaded
            product.last[partition] = (event.epoch, event.counts.sold, event.counts.loaded)
        for request_id, effect in effects_of(entry):
            self.requests[event.product_id, request_id].effects.append(effect)
        if event.kind is Kind.UNDO:
            undone = self.requests[event.product_id, event.request_id].undone
            undone.add(Place(partition, event.undone))
        product.count(event)
        self.orders.book(entry)

    def _judge(self, event: Event, request_id: str, effect: Effect) -> None:
        """Whether a request may have an effect now."""
        request = self.requests.get((event.product_id, request_id))
        name = f"I4: {request_id} of product {event.product_id}"
        expect(request is not None, f"{name} was never asked for")
        assert request is not None
        kind = "deduct" if event.kind in (Kind.DEDUCT, Kind.PUT) else str(event.kind)
        wanted = (request.kind, request.quantity, request.user_id)
        expect((kind, effect.quantity, effect.user_id) == wanted, f"{name} is {effect}")
        copy = self._copies[effect.copy]
        expect(copy.request is request, f"{name} took effect by a copy of {copy.request}")
        self._judge_place(request, effect)
        if request.end in (Resolution.NEVER, Resolution.REFUSED):
            raise ViolationError(f"I4: {name} was resolved as {request.end}, and then {effect}")
        if request.refused_after:
            self._judge_after_refusal(request, effect, copy)
        if request.effects:
            self._judge_second(request, effect, copy)
        elif copy.promised:
            how = "delivered twice" if effect.is_surplus else "lost and run later"
            self.late_effects[f"{copy.promised} ({how})"] += 1

    def _judge_place(self, request: Request, effect: Effect) -> None:
        """Requests are served at their home, or, as a visit, at the home's alternate."""
        product = self.products[request.product_id]
        name = f"I4: {request.name}: {effect}"
        key = product.home_key(request.request_id, request.user_id)
        shards = self._shards_of(product, effect.how, name)
        shard: int | None = home_shard(key, shards)
        if effect.is_visit:
            expect(not product.limits, f"{name} away from the user's home")
            shard = alternate_shard(home_shard(key, shards), shards)
        expect(shard is not None, f"{name} where there is no alternate")
        assert shard is not None
        expected = self._partition_of(request.product_id, shard, shards)
        expect(effect.place.partition == expected, f"{name} astray")

    def _judge_home(self, product_id: int, line: Sale, entry: Entry) -> None:
        """A line of an order is taken at its home or, as a visit, at the home's alternate."""
        product = self.products[product_id]
        name = f"I4: {line} of product {product_id}, {entry.how}"
        shards = self._shards_of(product, entry.how, name)
        shard: int | None = home_shard(product.home_key(line.request_id, line.user_id), shards)
        if entry.how.mode == "visit":
            expect(not product.limits, f"{name} away from the user's home")
            self.orders.judge_visit(product_id, line, name)
            shard = alternate_shard(home_shard(line.request_id, shards), shards)
        expect(shard is not None, f"{name} where there is no alternate")
        assert shard is not None
        expected = self._partition_of(product_id, shard, shards)
        expect(entry.partition == expected, f"{name} astray in {entry.partition}")

    def _shards_of(self, product: Product, how: How, name: str) -> int:
        """The shards that there are while something is served."""
        layouts = product.layouts
        shards = layouts.get(how.layout, 0)
        expect(shards, f"{name} under a layout that was not decided on")
        expect(layouts[max(layouts)] == shards, f"{name} after {layouts} were")
        return shards

    def _partition_of(self, product_id: int, shard: int, shards: int) -> int:
        return Layout(0, shards).partition(shard, product_id=product_id, partitions=len(self._tags))

    def _judge_after_refusal(self, request: Request, effect: Effect, copy: Copy) -> None:
        """A first copy that was held up may reach a stand-in, which nobody has told of the refusal."""
        is_held_up = copy.attempt == 1 and copy.number <= request.refused_after
        expect(
            effect.is_visit and is_held_up,
            f"I4: {request.name} was refused for good, and then {effect}",
        )
        self.counts["sold by a stand-in after the last word"] += 1

    def _judge_second(self, request: Request, effect: Effect, copy: Copy) -> None:
        """Only a first try at the stand-in and another copy at home may both be accepted."""
        name = f"I4: {request.name} took effect twice: {request.effects}, {effect}"
        expect(request.kind == "deduct" and len(request.effects) == 1, name)
        first = request.effects[0]
        visit, home = (first, effect) if first.is_visit else (effect, first)
        expect(visit.is_visit and not home.is_visit, name)
        expect(visit.copy != home.copy and self._copies[visit.copy].attempt == 1, name)
        if first is visit and visit.at_s < copy.sent_s:
            # The stand-in would have said so, had it been asked.
            troubled_s = self._troubled_s(visit.place.partition)
            expect(troubled_s > copy.sent_s - UNASKED_S, f"{name}, though nothing was wrong")
            self.counts["second effects: the stand-in could not be asked"] += 1
        else:
            self.counts["second effects: copies under way at once"] += 1

    def _judge_undo(self, entry: Entry) -> None:
        event = entry.event
        request = self.requests[event.product_id, event.request_id]
        places = {effect.place for effect in request.effects}
        name = f"I4: {request.name} was undone by {event}: {request.effects}"
        expect(Place(entry.partition, event.undone) in places, name)
        expect(len(places) == 2 and not request.undone, name)
        expect(event.quantity == request.quantity, name)
        self.counts["second effects undone"] += 1

    def lost(
        self, nodes: Sequence[FakeNode], partitions: Sequence[int], applied: Sequence[Checkpoint]
    ) -> None:
        """Replicas took over these partitions; what neither they nor the ledger had is gone."""
        gone: list[Entry] = []
        for partition in partitions:
            key = keys.events(self._tags[partition], 0).encode()
            entries = nodes[partition].entries_after(key, b"0-0")
            last = entries[-1][0] if entries else b"0-0"
            self._last_ids[key] = last
            gone += [
                entry
                for entry in self._entries
                if entry.partition == partition
                and entry.event.id > max(EventId.parse(last), applied[partition].id)
            ]
        self.counts["events lost"] += len(gone)
        lost = {id(entry) for entry in gone}
        self._entries = [entry for entry in self._entries if id(entry) not in lost]
        self._book_anew()
        for product_id, product in self.products.items():
            for partition in partitions:
                product.shards.pop(partition, None)
                key = keys.stock(self._tags[partition], product_id).encode()
                self._read_shard(nodes[partition], key, product_id, partition)
            self._note_loss(product_id, product)

    def _book_anew(self) -> None:
        for product in self.products.values():
            product.external = product.sold = product.past_sold = product.past_loaded = 0
            product.held = 0
            product.users.clear()
            product.last.clear()
            product.layouts = dict(product.loads)
        for request in self.requests.values():
            request.effects.clear()
            request.undone.clear()
        self.orders.forget_events()
        for entry in self._entries:
            if entry.event.product_id:
                self._book(entry)
            else:
                self.orders.note_opened(entry)
        for request in self.requests.values():
            expect(
                request.effects or not request.is_known,
                f"I5: {request.name} was accepted, and a master's end has undone it",
            )
        self.orders.check_after_loss()

    def _note_loss(self, product_id: int, product: Product) -> None:
        before = product.offered[-1]
        there = sum(shard.available for shard in product.shards.values()) + product.in_transit()
        if there > before:
            self._note_news(product, f"loss {len(product.offered)}", there - before)
        self._check(product_id, -1, None)

    def _check(self, product_id: int, partition: int, event: Event | None) -> None:
        product = self.products[product_id]
        shards = product.shards.values()
        name = f"product {product_id}: {product}"
        expect(
            all(min(s.available, s.held, s.sold) >= 0 for s in shards), f"I1: below zero, {name}"
        )
        in_transit = product.in_transit()
        available = sum(shard.available for shard in shards)
        held = sum(shard.held for shard in shards)
        sold = sum(shard.sold for shard in shards) + product.past_sold
        loaded = sum(shard.loaded for shard in shards) + product.past_loaded
        expect(available + held + sold + in_transit == product.external, f"I1: units, {name}")
        expect(loaded == product.external, f"I1: `loaded`, {name}")
        expect(sold == product.sold, f"I4: the events tell of other sales than the counts, {name}")
        expect(held == product.held, f"I6: the events tell of other holds than the counts, {name}")
        product.judge_users(name)
        expect(sold + held <= product.external, f"I2: oversold, {name}")
        if event is not None and event.counts is not None:
            shard = product.shards[partition]
            expect(event.counts == shard[1:5], f"the event tells other counts: {event}, {name}")
        product.note_offered(available + in_transit)

    # What callers do.

    def knows(self, request: Request) -> None:
        """A caller has made up a request."""
        self.requests.setdefault((request.product_id, request.request_id), request)

    def sends(self, request: Request, *, attempt: int) -> Copy:
        """A caller sends one copy of a request."""
        self.knows(request)
        product = self.products[request.product_id]
        copy = Copy(
            len(self._copies) + 1,
            request,
            attempt,
            since=len(product.offered) - 1,
            had_effect=request.effect is not None,
            sent_s=self._now_s(),
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
        if self.is_unknown(answer):
            return
        if answer.outcome is Outcome.DEDUCTED:
            self._accepted(copy, answer)
            return
        request = copy.request
        told = f"{request.name} was told {answer}"
        effects = request.effects
        did_it = any(each.copy == copy.number and not each.is_surplus for each in effects)
        expect(not did_it, f"I8: {told}, but did {effects}")
        expect(answer.outcome is not Outcome.UNKNOWN_PRODUCT, f"I8: {told}")
        if answer.outcome is Outcome.REQUEST_MISMATCH:
            self._told_never(request, answer, told)
        copy.promised = f"{answer.outcome.value} {answer.reason.value}".strip()
        if answer.outcome is Outcome.INSUFFICIENT_STOCK:
            self._refused(copy, answer, told)
            # A refusal that is remembered is the last word, and that of a retry is.
            if answer.replayed or copy.attempt >= 2:
                request.refused_after = request.refused_after or len(self._copies)
        if answer.outcome is Outcome.FROZEN:
            product = self.products[request.product_id]
            was_shut = copy.shut_before % 2 or product.shut != copy.shut_before
            expect(was_shut, f"I8: {told}, but the product was on sale all the time")

    def _accepted(self, copy: Copy, answer: Answer) -> None:
        request = copy.request
        self.products[request.product_id].tell(request.request_id)
        told = f"{request.name} was told {answer}"
        expect(request.effects, f"I5: {told}, but no event tells of it")
        request.is_known = True
        if not answer.replayed:
            request.fresh_answers += 1
            did_it = any(each.copy == copy.number for each in request.effects)
            expect(did_it, f"I4: {told}, but {request.effects} did it")
            most = len(request.effects)
            expect(request.fresh_answers <= most, f"I4: {told}, a second time without `replayed`")
        first, request.first = request.first, request.first or answer
        # The shard's number is another one under another layout, though it is the same shard.
        if first is not None and request.kind == "deduct" and len(request.effects) == 1:
            expect(answer.available == first.available, f"I4: {told}, first {first}")

    def _refused(self, copy: Copy, answer: Answer, told: str) -> None:
        request = copy.request
        expect(request.kind != "restock", f"I3: {told}")
        # Who says that this is the first copy is not protected from copies that he did send before.
        had_effect = copy.had_effect and request.effects
        expect(not had_effect or copy.attempt == 1, f"I4: {told}, but had an effect before")
        # A remembered refusal was decided while any of the copies was under way.
        since = request.first_sent if answer.replayed else copy.since
        least = min(self.products[request.product_id].certain[since:])
        expect(
            least < request.quantity, f"I3: {told}, but there never were less than {least} units"
        )

    def _told_never(self, request: Request, answer: Answer, told: str) -> None:
        is_named = answer.reason is Reason.RESOLVED_NEVER or request.kind != "deduct"
        expect(is_named and request.is_resolved, f"I4: {told}")
        expect(not request.effects, f"I4: {told}, but did {request.effects}")
        request.end = Resolution.NEVER

    def resolved(self, request: Request, found: Resolved | Answer) -> None:
        """A caller was told what became of a request."""
        told = f"{request.name} was resolved as {found}"
        if isinstance(found, Answer):
            self.answers[f"resolved: {found.outcome.value} {found.reason.value}"] += 1
            expect(found.outcome is not Outcome.UNKNOWN_PRODUCT, f"I8: {told}")
            is_other = found.outcome is Outcome.REQUEST_MISMATCH
            expect(request.kind != "deduct" or not is_other, f"I4: {told}")
            return
        self.answers[f"resolved: {found.resolution.value}"] += 1
        if found.resolution is Resolution.DEDUCTED:
            expect(request.effects, f"I4: {told}, but no event tells of it")
            expect(found.quantity == request.quantity, f"I4: {told}")
            request.is_known = True
            return
        expect(not request.effects, f"I4: {told}, but did {request.effects}")
        expect(request.end in (None, found.resolution), f"I4: {told}, before {request.end}")
        request.end = found.resolution

    def undone(self, product_id: int, request_id: str, *, is_back: bool) -> None:
        """A worker was told that a second effect is undone, or that there is nothing to undo."""
        request = self.requests[product_id, request_id]
        if is_back:
            expect(request.undone, f"I4: {request.name} was not undone")
        else:
            self.counts["second effects of a closed shard"] += 1

    def read(self, product_id: int, since: int, seen: ProductStock) -> None:
        """A caller has read a product; `since` is where its history stood before."""
        product = self.products[product_id]
        told = f"product {product_id} was read as {seen}"
        least = min((s.available, s.held, s.sold, s.in_transit) for s in seen.shards)
        expect(min(least) >= 0, f"I1: {told}")
        if not seen.exact:
            return
        there = seen.available + seen.in_transit
        parts = there + seen.held + seen.buffer + seen.sold
        expect(seen.total == parts, f"I1: {told}, which does not add up")
        window = product.offered[since:]
        expect(min(window) <= there <= max(window), f"I1: {told}, but there were {window}")

    def is_settled(self, product_id: int, units: int) -> None:
        """Nothing is under way: so many units are left, and none in transit."""
        product = self.products[product_id]
        expect(product.offered[-1] == units, f"{units} units should be left: {product}")
        expect(product.in_transit() == 0, f"units are in transit for ever: {product}")
