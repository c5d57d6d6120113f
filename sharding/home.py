"""The queue of requests that wait for one shard, and how they are served together.

What queued up while the last script call was out goes in the next one. A group's answers are written
straight into its batch, so a request costs no task and no future of its own.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Container, Coroutine, Sequence
from typing import NamedTuple

from sharding.answers import (
    CLOSED,
    INSUFFICIENT,
    MISSING,
    SOLD_OUT,
    STALE,
    answers,
    may_pass,
    unavailable,
)
from sharding.batches import Batch
from sharding.cluster import Cluster
from sharding.errors import StockUnavailableError
from sharding.lane import Node
from sharding.lookups import Lookups
from sharding.metrics import StockMetrics
from sharding.notes import Note
from sharding.orders import is_retake
from sharding.outcomes import Answer, Deduction, Outcome, Reason, is_line
from sharding.packing import pack
from sharding.placement import alternate_shard
from sharding.shards import MissingShardError, Mode, Shards
from sharding.shortage import Shortage, unknown_if_echoing
from sharding.tasks import Tasks

CALL_REQUESTS_MAX = 1_000
"""A script call of this size keeps a node busy for about two milliseconds. A larger group of one batch
goes alone; the contract bounds it to 2,000."""
QUEUE_S_MAX = 1.0
"""Whoever has waited so long behind others is refused unserved: so those behind them are served in time,
and not all of them too late."""
WAITING_LOOK_S = 0.02
"""Time between two looks at whether a home that was away is asked again."""


class Group(NamedTuple):
    """The requests of one batch for one home.

    `since_s`: when they were asked, by the loop's clock. `reroutes`: how often they were sent on, the
    last time because of `why`. `by_copy`: they were routed by a copy of the product's listing. `unsure`:
    a shard that may have accepted an earlier copy could not be asked, so they must not be refused.
    `echoes`: a try of them was lost and may run yet. `is_new`: nobody has asked for them before,
    whatever their `attempt` is. `is_short`: a proof refuses them unless somebody knows them, so they are
    only looked up.
    """

    requests: list[Deduction]
    positions: list[int]
    batch: Batch
    since_s: float
    reroutes: int = 0
    why: Reason = Reason.NONE
    by_copy: bool = False
    unsure: bool = False
    echoes: bool = False
    is_new: bool = False
    is_short: bool = False

    @property
    def bars(self) -> bool:
        """Whether their home may act only once no stand-in takes any of them any more: they are lines of
        orders that somebody may have asked for before."""
        if self.is_new or self.is_short or not is_line(self.requests[0]):
            return False
        return any(r.attempt != 1 and not is_retake(r.request_id) for r in self.requests)

    @property
    def is_forgotten(self) -> bool:
        """Whether nobody remembers their refusal, as that of a retry is remembered."""
        return all(request.attempt < 2 for request in self.requests)

    @property
    def least(self) -> int:
        """The units that the most modest of them wants."""
        return min(request.quantity for request in self.requests)

    def answer(self, given: Sequence[Answer]) -> None:
        self.batch.answer(self.positions, given)

    def part(self, indices: Sequence[int]) -> "Group":
        """Some of its requests."""
        requests = [self.requests[i] for i in indices]
        return self._replace(requests=requests, positions=[self.positions[i] for i in indices])

    def as_unknown(self, positions: Collection[int]) -> "Group":
        """The same, but some are no first tries any more: their home may know them."""
        requests = [
            request._replace(attempt=0) if request.attempt == 1 and i in positions else request
            for i, request in enumerate(self.requests)
        ]
        return self._replace(requests=requests, is_new=self.is_new and not positions)

    def as_echoing(self) -> "Group":
        """The same as retries: what is refused of them is refused for good."""
        requests = [request._replace(attempt=2) for request in self.requests]
        return self._replace(requests=requests, echoes=True, is_new=False)


Spawn = Callable[[Coroutine[object, object, None], str], object]
Served = Callable[[int, float, Node | None], None]
"""Told how many requests a shard has answered, since when they were there, and on which node it is."""


class HomeContext(NamedTuple):
    """What all homes of a process share; `reroute` takes requests that came to the wrong shard."""

    cluster: Cluster
    metrics: StockMetrics
    tasks: Tasks
    reroute: Callable[[Group], None]
    served: Served | None


class Home:
    """One shard's queue in this process, and others for requests that it cannot serve at once.

    They are served apart: who waits for other shards, or for this one's node, keeps nobody waiting.
    """

    def __init__(
        self, shards: Shards, shard: int, lookups: Lookups, shortage: Shortage, context: HomeContext
    ) -> None:
        self._shards = shards
        self._shard = shard
        self._partition = shards.partitions[shard]
        self._lookups = lookups
        self._shortage = shortage
        self._context = context
        alternate = None if lookups.by_user else alternate_shard(shard, len(shards.partitions))
        self._alternate = -1 if alternate is None else alternate
        spawn = context.tasks.spawn
        self._served = _Queue(self._ask, self._hand_back, spawn)
        self._settled = _Queue(self._settle, self._hand_on, spawn)
        self._doubted: _Queue | None = None
        self._barred: _Queue | None = None
        self._waiting: _WaitingRoom | None = None
        self._visiting: _Queue | None = None
        self._looked_up: _Queue | None = None

    def put(self, group: Group) -> None:
        """Serve a group with what comes next."""
        doubtful = self._lookups.doubtful(
            group.requests, rerouted=group.reroutes > 0, is_new=group.is_new
        )
        if doubtful:
            if len(doubtful) == len(group.requests):
                self._put_doubtful(group)
                return
            self._put_doubtful(group.part(doubtful))
            group = group.part(_others(set(doubtful), len(group.requests)))
        self._put_sure(group)

    def _put_doubtful(self, group: Group) -> None:
        """Have other shards asked first; whether they bar lines of orders, a proof may have to say."""
        can_be_short = group.bars and group.is_forgotten
        if can_be_short and self._shortage.had_fewer_than(group.least):
            self._context.tasks.spawn(self._prove_short(group), "prove")
        else:
            self._put_in_doubt(group)

    def _put_in_doubt(self, group: Group) -> None:
        """Have other shards asked first.

        With former homes each group waits for its own look-ups: a shard that does not answer delays
        nobody else. Where there is just the alternate, all wait for it.
        """
        spawn = self._context.tasks.spawn
        if self._lookups.has_former:
            spawn(self._serve_after_looking_up(group), "look up")
        elif group.bars:
            self._barred = self._barred or _Queue(self._bar, self._hand_in, spawn)
            self._barred.put(group)
        else:
            self._doubted = self._doubted or _Queue(self._ask_alternate, self._hand_in, spawn)
            self._doubted.put(group)

    def _put_sure(self, group: Group) -> None:
        if group.is_short:
            spawn = self._context.tasks.spawn
            self._looked_up = self._looked_up or _Queue(self._look_up, self._hand_on, spawn)
            self._looked_up.put(group)
        elif self._context.cluster.is_down(self._partition):
            self._put_elsewhere(group)
        else:
            self._served.put(group)

    @property
    def _has_alternate(self) -> bool:
        """Whether another master, which is there, has a shard that may stand in for this one."""
        if self._alternate < 0:
            return False
        alternate, cluster = self._shards.partitions[self._alternate], self._context.cluster
        is_apart = not cluster.share_a_node(self._partition, alternate)
        return is_apart and not cluster.is_down(alternate)

    def _put_elsewhere(self, group: Group) -> None:
        """The home's node is away and did nothing for these. A first try, which nobody can have accepted
        yet, goes to the alternate; any other waits for the node."""
        first: list[int] = []
        others: list[int] = []
        has_alternate = self._has_alternate
        for i, request in enumerate(group.requests):
            can_go = has_alternate and (request.attempt == 1 or group.is_new)
            (first if can_go else others).append(i)
        if first:
            spawn = self._context.tasks.spawn
            self._visiting = self._visiting or _Queue(self._visit, self._hand_on_or_wait, spawn)
            self._visiting.put(group.part(first))
        if others:
            self._wait(group.part(others))

    def _wait(self, group: Group) -> None:
        """Until the home is asked again, or the group's time is over."""
        self._waiting = self._waiting or _WaitingRoom(
            self._context.cluster, self._partition, self._served.put, self._context.tasks.spawn
        )
        self._waiting.put(group)

    def _hand_on_or_wait(self, group: Group, given: Sequence[Answer]) -> None:
        """After a visit: where the alternate was away as well, nothing was done for them."""
        if given[0] is AWAY:
            self._wait(group)
        else:
            self._hand_on(group, given)

    async def _prove_short(self, group: Group) -> None:
        """What a proof refuses is only looked up: there may be a crowd of it, and it leaves nothing
        behind."""
        try:
            is_short = await self._shortage.proves_fewer_than(group.least)
        except Exception:  # noqa: BLE001 - the top of a task: whoever waits must be answered
            _LOG.exception("proving a shortage failed")
            is_short = False
        self._put_in_doubt(group._replace(is_short=is_short))

    async def _serve_after_looking_up(self, group: Group) -> None:
        try:
            known, unsure, at_home = await self._lookups.known(
                group.requests, self._shard, bars=group.bars
            )
        except Exception:  # noqa: BLE001 - the top of a task: whoever waits must be answered
            _LOG.exception("looking requests up failed")
            refuse(group, Reason.OUTCOME_UNKNOWN)
            return
        self._hand_in(
            group.as_unknown(at_home),
            [
                known.get(i) or (UNSURE if i in unsure else UNDECIDED)
                for i in range(len(group.requests))
            ],
        )

    async def _ask_alternate(self, requests: Sequence[Deduction]) -> list[Answer]:
        """What the alternate knows; UNDECIDED where that is nothing, UNSURE where it does not answer."""
        known, unsure, _ = await self._lookups.known_at_alternate(requests, self._alternate)
        if not known and not unsure:
            return [UNDECIDED] * len(requests)
        return [
            known.get(i) or (UNSURE if i in unsure else UNDECIDED) for i in range(len(requests))
        ]

    async def _bar(self, requests: Sequence[Deduction]) -> list[Answer]:
        """UNDECIDED: the alternate knows nothing of a request, and never takes it from now on."""
        known, _, _ = await self._lookups.barred_at_alternate(requests, self._shard)
        return [known.get(i, UNDECIDED) for i in range(len(requests))]

    def _hand_in(self, group: Group, given: Sequence[Answer]) -> None:
        """To the home with what nobody knows yet."""
        if all(answer is UNDECIDED for answer in given):
            self._put_sure(group)
            return
        open_ends = (UNDECIDED, UNSURE)
        known = [i for i, answer in enumerate(given) if all(answer is not end for end in open_ends)]
        if known:
            self._hand_on(group.part(known), [given[i] for i in known])
        for end in open_ends:
            fresh = [i for i, answer in enumerate(given) if answer is end]
            if fresh:
                self._put_sure(group.part(fresh)._replace(unsure=end is UNSURE))

    async def _ask(self, requests: Sequence[Deduction]) -> list[Answer]:
        """Answers; AWAY where the node is away and has certainly done nothing."""
        note = self._shortage.note
        given = await self._serve(requests, self._shard, hasty=True)
        return given if note is None else _refused_by(note, requests, given)

    async def _look_up(self, requests: Sequence[Deduction]) -> list[Answer]:
        given = await self._serve(requests, self._shard, mode=Mode.LOOK)
        return [LOOKED_UP_IN_VAIN.get(id(answer), answer) for answer in given]

    async def _visit(self, requests: Sequence[Deduction]) -> list[Answer]:
        """Ask the alternate; it has what it has, nobody gathers units there."""
        self._context.metrics.alternates.labels("visited").inc(len(requests))
        given = await self._serve(requests, self._alternate, mode=Mode.VISIT, hasty=True)
        return [VISIT_IN_VAIN.get(id(answer), answer) for answer in given]

    async def _serve(
        self,
        requests: Sequence[Deduction],
        shard: int,
        *,
        mode: Mode = Mode.HOME,
        hasty: bool = False,
    ) -> list[Answer]:
        self._context.metrics.script_requests.observe(len(requests))
        partition = self._shards.partitions[shard]
        try:
            served = await self._shards.deduct(partition, pack(requests), mode=mode, hasty=hasty)
        except StockUnavailableError as failure:
            answer = unavailable(failure.reason)
            if hasty and failure.reason in _DID_NOTHING:
                answer = AWAY
            return [answer] * len(requests)
        except MissingShardError:
            return [MISSING] * len(requests)
        given = answers(requests, served, shard=shard)
        return [_echoing(answer) for answer in given] if served.may_echo else given

    async def _settle(self, requests: Sequence[Deduction]) -> list[Answer]:
        return await self._shortage.settle(self._partition, requests)

    def _hand_back(self, group: Group, given: Sequence[Answer]) -> None:
        if given[0] is AWAY:
            self._put_elsewhere(group)
            return
        if self._context.served is not None and not group.reroutes:
            node = self._context.cluster.node_of(self._partition)
            self._context.served(len(given), group.since_s, node)
        short = [i for i, answer in enumerate(given) if answer is INSUFFICIENT]
        echoing = [i for i, answer in enumerate(given) if answer is ECHOING]
        astray = [i for i, answer in enumerate(given) if answer is STALE_ECHOING]
        if short:
            self._settled.put(group.part(short))
        if echoing:
            self._settled.put(group.part(echoing).as_echoing())
        if astray:
            self._send_on(group.part(astray).as_echoing(), Reason.LAYOUT_CHANGING)
        if short or echoing or astray:
            others = _others({*short, *echoing, *astray}, len(given))
            group, given = group.part(others), [given[i] for i in others]
        self._hand_on(group, given)

    def _send_on(self, group: Group, why: Reason) -> None:
        self._context.reroute(group._replace(reroutes=group.reroutes + 1, why=why))

    def _hand_on(self, group: Group, given: Sequence[Answer]) -> None:
        astray = [i for i, answer in enumerate(given) if _leads_astray(answer)]
        if astray:
            why = given[astray[-1]].reason
            self._send_on(group.part(astray), why)
            kept = [i for i, answer in enumerate(given) if not _leads_astray(answer)]
            group, given = group.part(kept), [given[i] for i in kept]
        if group.unsure:
            given = _never_refused(given)
        if group.echoes:
            given = [unknown_if_echoing(answer, is_echoing=True) for answer in given]
        if given:
            group.answer(given)


def _echoing(answer: Answer) -> Answer:
    """What an answer is worth while an earlier try of its call may run yet."""
    if answer is INSUFFICIENT:
        return ECHOING
    if answer is STALE:
        return STALE_ECHOING
    return unavailable(Reason.OUTCOME_UNKNOWN) if may_pass(answer) else answer


def _never_refused(given: Sequence[Answer]) -> list[Answer]:
    """An earlier copy may have been accepted where nobody answers."""
    return [
        SHORT_AND_ALONE if answer.outcome is Outcome.INSUFFICIENT_STOCK else answer
        for answer in given
    ]


AWAY = unavailable(Reason.NOT_EXECUTED)
"""The home's node is away; nothing was done. Told apart by identity."""
UNDECIDED, UNSURE = unavailable(Reason.NONE), unavailable(Reason.NONE)
"""Nobody knows the request yet, or nobody who could be asked; never given to a caller."""
STALE_ECHOING = unavailable(Reason.LAYOUT_CHANGING)
"""Another layout, of which the shard may hear before the lost try of the call runs."""
ECHOING = Answer(Outcome.INSUFFICIENT_STOCK)
"""Too few units at home, and an earlier try of the call was lost and may run yet."""
SHORT_AND_ALONE = unavailable(Reason.SHARDS_UNREACHABLE)
"""Too few units here, and another shard cannot be asked."""
_DID_NOTHING = frozenset((Reason.NOT_EXECUTED, Reason.PARTITION_FENCED))


VISIT_IN_VAIN = {
    id(INSUFFICIENT): SHORT_AND_ALONE,
    id(ECHOING): unavailable(Reason.OUTCOME_UNKNOWN),
    id(STALE_ECHOING): unavailable(Reason.OUTCOME_UNKNOWN),
}
"""What becomes of answers, told apart by identity, that a stand-in cannot improve."""
LOOKED_UP_IN_VAIN = {id(INSUFFICIENT): SOLD_OUT, id(ECHOING): SOLD_OUT, id(STALE_ECHOING): STALE}
"""The same where a proof said before that there are too few units; a look leaves no echo."""


def _others(positions: Container[int], size: int) -> list[int]:
    """All positions below `size` but these."""
    return [i for i in range(size) if i not in positions]


def _refused_by(note: Note, requests: Sequence[Deduction], given: Sequence[Answer]) -> list[Answer]:
    """The answers, with what home had too few units for refused by a proof from before home was asked.

    A retry is left short: its refusal must be remembered.
    """
    return [
        SOLD_OUT
        if answer is INSUFFICIENT and request[2] > note.available and request[5] <= 1
        else answer
        for request, answer in zip(requests, given, strict=True)
    ]


def _leads_astray(answer: Answer) -> bool:
    """Whether the shard may not be the one that the request belongs to any more."""
    return answer is STALE or answer is MISSING or answer is CLOSED


class _WaitingRoom:
    """Groups for a home that is away. Not in one call: so each one waits for its own time."""

    def __init__(
        self, cluster: Cluster, partition: int, ask: Callable[[Group], None], spawn: Spawn
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._ask = ask
        self._spawn = spawn
        self._patience_s = cluster.settings.redis_patience_ms / 1_000
        self._groups: list[Group] = []

    def put(self, group: Group) -> None:
        self._groups.append(group)
        if len(self._groups) == 1:
            self._spawn(self._wait(), "wait")

    async def _wait(self) -> None:
        while self._groups:
            await asyncio.sleep(WAITING_LOOK_S)
            self._refuse_late()
            if not self._cluster.is_down(self._partition):
                waiting, self._groups = self._groups, []
                for group in waiting:
                    self._ask(group)

    def _refuse_late(self) -> None:
        began_s = asyncio.get_running_loop().time() - self._patience_s
        late = [group for group in self._groups if group.since_s < began_s]
        self._groups = [group for group in self._groups if group.since_s >= began_s]
        for group in late:
            refuse(group, self._cluster.reason_down(self._partition))


class _Queue:
    """Groups that are worked on together, as many as wait, one lot after the other."""

    def __init__(
        self,
        work: Callable[[Sequence[Deduction]], Awaitable[list[Answer]]],
        hand_back: Callable[[Group, Sequence[Answer]], None],
        spawn: Spawn,
    ) -> None:
        self._work = work
        self._hand_back = hand_back
        self._spawn = spawn
        self._groups: deque[tuple[float, Group]] = deque()
        """Each with the time since when it waits."""
        self._now_s = asyncio.get_running_loop().time
        self._is_served = False

    def put(self, group: Group) -> None:
        self._groups.append((self._now_s(), group))
        if not self._is_served:
            self._is_served = True
            self._spawn(self._serve(), "serve")

    async def _serve(self) -> None:
        while self._groups:
            groups = self._next_groups()
            self._refuse_late()
            requests = [request for group in groups for request in group.requests]
            try:
                given = await self._work(requests)
            except Exception:  # noqa: BLE001 - the top of the loop: whoever waits must be answered
                _LOG.exception("serving a shard failed")
                given = [unavailable(Reason.OUTCOME_UNKNOWN)] * len(requests)
            start = 0
            for group in groups:
                end = start + len(group.requests)
                self._hand_back(group, given[start:end])
                start = end
        self._is_served = False

    def _refuse_late(self) -> None:
        """Of those who still wait; the next lot goes out, however late it is."""
        late_s = self._now_s() - QUEUE_S_MAX
        while self._groups and self._groups[0][0] < late_s:
            refuse(self._groups.popleft()[1], Reason.QUEUE_FULL)

    def _next_groups(self) -> list[Group]:
        groups = [self._groups.popleft()[1]]
        size = len(groups[0].requests)
        while self._groups and size + len(self._groups[0][1].requests) <= CALL_REQUESTS_MAX:
            _, group = self._groups.popleft()
            size += len(group.requests)
            groups.append(group)
        return groups


_LOG = logging.getLogger(__name__)


def refuse(group: Group, reason: Reason) -> None:
    """Answer a whole group that was not sent, unless a try of it was lost before."""
    answer = unknown_if_echoing(unavailable(reason), is_echoing=group.echoes)
    group.answer([answer] * len(group.requests))
