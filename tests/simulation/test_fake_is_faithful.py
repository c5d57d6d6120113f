"""The nodes of the simulation do what real ones do: the same commands, one after the other, on both.

The commands are what the kernel sent in a few simulations, so a new script is covered as soon as the
simulation uses it. Each script is then called with every key missing or of another type, with another
fence, and with arguments that make no sense.
"""

import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from hashlib import sha1

import pytest
from hiredis import ReplyError
from prometheus_client import CollectorRegistry

from deploy.local.stack import LocalStack
from sharding.cluster import Cluster, LaneKind
from sharding.events import anchor
from sharding.lane import packed
from sharding.metrics import StockMetrics
from sharding.scripts import script
from sharding.settings import StockSettings
from tests.simulation.nodes import FakeNode, LuaEngine, script_names
from tests.simulation.recording import Words, recorded, scripts_of
from tests.simulation.world import PARTITIONS, Equipment
from tests.waiting import eventually

SEEDS = (310, 416, 91, 97, 478)
"""They use every script, with few calls. Which do changes with the kernel: test_every_script_is_compared
names the scripts for which another seed has to be found."""
TIMES = re.compile(rb"\b1[0-9]{12}\b")
"""Milliseconds since 1970."""
IDENTITY = re.compile(rb"\b[0-9a-f]{40}\b")
"""Of a node."""
CLOCKS_DIFFER_MS = 20
"""So far apart may be the times at which both run a call."""
MASKED = frozenset((b"at", b"owner"))
"""What follows these names is another value on each node, as is what follows a name ending in _ms."""


class Recordings:
    """The script calls of simulations that use every script; made before a test's own loop runs."""

    def __init__(self) -> None:
        self.played: set[str] = set()
        self._seeds: dict[int, list[Words]] = {}
        equipment = Equipment()
        for seed in SEEDS:
            self._seeds[seed] = recorded(seed, equipment)
            self.played |= scripts_of(self._seeds[seed])

    def calls(self, *, under: str) -> Iterator[Words]:
        """All calls in their order, with their whole text and under keys of the test's own."""
        for seed, calls in self._seeds.items():
            for words in calls:
                yield renamed(words, f"{under}:{seed}:".encode())


@pytest.fixture(scope="module")
def recordings() -> Recordings:
    return Recordings()


def renamed(words: Words, prefix: bytes) -> Words:
    name, count = script_names()[words[1]], int(words[2])
    keys = [prefix + key for key in words[3 : 3 + count]]
    return [b"EVAL", script(name).source.encode(), words[2], *keys, *words[3 + count :]]


def keys_of(words: Words) -> Words:
    return words[3 : 3 + int(words[2])]


def name_of(words: Words) -> str:
    return script_names()[sha1(words[1], usedforsecurity=False).hexdigest().encode()]


class Pair:
    """A real cluster and fake nodes with the same clock, that are told the same."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._partitions = {tag.encode(): i for i, tag in enumerate(cluster.tags)}
        engine = LuaEngine()
        self._fakes = [FakeNode(i, engine, time.time) for i in range(PARTITIONS)]
        self._identities: dict[int, bytes] = {}
        """Of the real nodes, by partition."""

    async def both(self, key: bytes, *words: bytes) -> tuple[object, object]:
        """What the real node and the fake one that have the key answer."""
        return await self.real(key, *await self._to_real(key, words)), self.fake(key, *words)

    async def _to_real(self, key: bytes, words: Sequence[bytes]) -> Words:
        """A call that names the fake node, as it names the real one."""
        partition = self._partition(key)
        if partition not in self._identities:
            identity = await self.real(key, b"CLUSTER", b"MYID")
            assert isinstance(identity, bytes)
            self._identities[partition] = identity
        named = self._fakes[partition].identity
        return [word.replace(named, self._identities[partition]) for word in words]

    async def same(self, key: bytes, *words: bytes) -> object:
        """Their answer, which is the same."""
        await self._let_deadlines_pass(words)
        real, fake = await self.both(key, *words)
        assert comparable(fake) == comparable(real), words
        return real

    async def _let_deadlines_pass(self, words: Sequence[bytes]) -> None:
        """No deadline of a call's orders, and no shard's mark that it gathers, may be over on one node
        and not yet on the other."""
        for key in words:
            if key.endswith(b":deadlines") and self.fake(key, b"TYPE", key) == b"zset":
                await eventually(partial(self._is_clear, key))
            if b":stock:" in key and self.fake(key, b"TYPE", key) == b"hash":
                await eventually(partial(self._is_unmarked, key))

    def _is_clear(self, key: bytes) -> bool:
        now_ms = time.time() * 1_000
        near = (now_ms - CLOCKS_DIFFER_MS, now_ms + CLOCKS_DIFFER_MS)
        return not self.fake(key, b"ZRANGEBYSCORE", key, *(b"%d" % bound for bound in near))

    def _is_unmarked(self, key: bytes) -> bool:
        until = self.fake(key, b"HGET", key, b"gathering_until_ms")
        if not isinstance(until, bytes) or not until.isdigit():
            return True
        return abs(int(until) - time.time() * 1_000) > CLOCKS_DIFFER_MS

    async def real(self, key: bytes, *words: bytes) -> object:
        node = self._cluster._nodes[self._partition(key)]
        assert node is not None
        return await self._cluster._lane(node, LaneKind.READ).call(packed(words))

    def fake(self, key: bytes, *words: bytes) -> object:
        return self._fakes[self._partition(key)].run(list(words))

    async def same_content(self, key: bytes) -> None:
        """Both have the same under a key."""
        kind = await self.same(key, b"TYPE", key)
        if kind == b"hash":
            real, fake = await self.both(key, b"HGETALL", key)
            assert sorted_pairs(comparable(fake)) == sorted_pairs(comparable(real)), key
        elif kind == b"stream":
            await self.same(key, b"XRANGE", key, b"-", b"+")
        elif kind == b"zset":
            real, fake = await self.both(key, b"ZRANGE", key, b"0", b"-1")
            assert isinstance(real, list)
            assert isinstance(fake, list)
            assert sorted(fake) == sorted(real), key
        elif kind == b"string":
            await self.same(key, b"GET", key)

    def _partition(self, key: bytes) -> int:
        return self._partitions[key.split(b"{")[1].split(b"}")[0]]


def comparable(reply: object) -> object:
    """A reply without what is bound to differ: times, owners, the wording of errors."""
    if isinstance(reply, ReplyError):
        return "error", str(reply).partition(" ")[0]
    if isinstance(reply, bytes):
        return TIMES.sub(b"time", IDENTITY.sub(b"identity", reply))
    if isinstance(reply, int):
        return "time" if TIMES.fullmatch(b"%d" % reply) else reply
    if not isinstance(reply, list):
        return reply
    result: list[object] = []
    for i, item in enumerate(reply):
        before = reply[i - 1] if i else None
        is_masked = isinstance(before, bytes) and (before in MASKED or before.endswith(b"_ms"))
        result.append("masked" if is_masked else comparable(item))
    return result


def sorted_pairs(flat: object) -> list[tuple[object, object]]:
    assert isinstance(flat, list)
    return sorted(zip(flat[::2], flat[1::2], strict=True), key=repr)


@pytest.fixture(scope="module")
async def pair(services: LocalStack) -> AsyncIterator[Pair]:
    settings = StockSettings.model_validate(
        {
            "redis_nodes": ",".join(services.redis_nodes),
            "partitions": PARTITIONS,
            "default_shards": 6,
        }
    )
    cluster = await Cluster.connect(settings, StockMetrics(CollectorRegistry()))
    yield Pair(cluster)
    await cluster.close()


def test_every_script_is_compared(recordings: Recordings) -> None:
    missing = set(script_names().values()) - recordings.played
    assert not missing, (
        f"SEEDS needs one that plays {missing}: python -m tests.simulation --scripts"
    )


async def test_a_simulations_calls_do_the_same_on_real_nodes(
    pair: Pair, recordings: Recordings
) -> None:
    touched: dict[bytes, None] = {}
    for words in recordings.calls(under="replay"):
        keys = keys_of(words)
        touched.update(dict.fromkeys(keys))
        await pair.same(keys[0], *words)
    for key in touched:
        await pair.same_content(key)


def variants(words: Words) -> Iterator[Words]:
    """The same call with a later fence, with an earlier one, and with each argument made senseless."""
    first = 3 + int(words[2])
    for position in range(first, len(words)):
        for value in (b"", b"x", b"0", b"999999999999"):
            yield [*words[:position], value, *words[position + 1 :]]


async def test_scripts_answer_senseless_calls_as_on_real_nodes(
    pair: Pair, recordings: Recordings
) -> None:
    for words in await one_call_of_each(pair, recordings, under="senseless"):
        for variant in variants(words):
            keys = keys_of(variant)
            await pair.same(keys[0], *variant)
            for key in keys:
                await pair.same_content(key)


@pytest.mark.parametrize("instead", ["missing", "string", "list"])
async def test_scripts_meet_damaged_keys_as_on_real_nodes(
    pair: Pair, recordings: Recordings, instead: str
) -> None:
    for words in await one_call_of_each(pair, recordings, under=instead):
        keys = keys_of(words)
        for key in keys:
            await pair.same(key, b"RENAME", key, key + b":aside")
            if instead == "string":
                await pair.same(key, b"SET", key, b"a string")
            if instead == "list":
                await pair.same(key, b"RPUSH", key, b"an item")
            await pair.same(key, *words)
            for other in keys:
                await pair.same_content(other)
            await pair.same(key, b"DEL", key)
            await pair.same(key, b"RENAME", key + b":aside", key)


async def test_a_partition_is_opened_again_by_the_same_anchor(
    pair: Pair, recordings: Recordings
) -> None:
    calls = recordings.calls(under="anchor")
    opening = next(words for words in calls if name_of(words) == "open")
    *_, stream = keys_of(opening)
    await pair.same(stream, *opening)
    real, fake = await pair.both(stream, b"XREVRANGE", stream, b"+", b"-", b"COUNT", b"1")
    answers = []
    for newest, ask in ((real, pair.real), (fake, None)):
        assert isinstance(newest, list)
        entry_id, fields = newest[0]
        *others, run = opening
        again = [*others[:-5], b"2", b"0", b"", entry_id, anchor(fields).encode(), run]
        answers.append(await ask(stream, *again) if ask else pair.fake(stream, *again))
    assert answers[0] == answers[1] == [b"done", 2, 2]


async def one_call_of_each(pair: Pair, recordings: Recordings, *, under: str) -> list[Words]:
    """Play simulations on both; the last call of each script in them."""
    last: dict[str, Words] = {}
    for words in recordings.calls(under=under):
        last[name_of(words)] = words
        await pair.same(keys_of(words)[0], *words)
    return list(last.values())
