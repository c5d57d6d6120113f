"""Whether Redis nodes are set up so that a durability keeps its promise; judged from what they say."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sharding.settings import Durability

VERSION_MIN = (7, 0)
MIN_REPLICAS = "min-replicas-to-write"
CLOCK_DIFFERENCE_S_MAX = 1.0
"""Deadlines are kept by the nodes' clocks: after a failover another one counts."""


class NodeReport(NamedTuple):
    """What one node says of itself. What it does not say is not judged."""

    node: str
    """host:port."""
    settings: Mapping[str, str]
    version: str = ""
    clock_ahead_s: float = 0.0
    """Of the process that asked; below zero: behind it."""
    replicas: int | None = None
    """Connected to it; None: it is no master."""
    refusal: str = ""
    """Why it did not say everything; empty where it did."""
    silence: str = ""
    """Why nobody could ask it; empty where it answered."""


class Flaw(NamedTuple):
    """One thing that is not as it should be."""

    node: str
    what: str
    """The setting, or "version", "replicas", "clock", "answer", "node"."""
    value: str
    reason: str
    """What can come of it."""
    remedy: str
    loses_units: bool = False
    """Nothing may start on such a node; otherwise it is merely unwise."""

    def __str__(self) -> str:
        return (
            f"Redis node {self.node}: {self.what} is {self.value!r}: {self.reason}. {self.remedy}"
        )


class Demand(NamedTuple):
    """What one setting has to be."""

    setting: str
    fits: Sequence[str]
    """Values that are well; the first is recommended."""
    reason: str
    loses_units: bool = False


def demands(durability: Durability) -> Sequence[Demand]:
    """What is asked of every node, master or replica: each may be the other one tomorrow."""
    return (*_against_loss(durability), *_wise(durability))


def _against_loss(durability: Durability) -> Iterator[Demand]:
    is_synced, confirms = durability == "synced", durability != "fast"
    syncs = ("always",) if is_synced else ("everysec", "always")
    crash = "a machine's crash loses what was answered"
    yield Demand(
        "maxmemory-policy", ("noeviction",), "units are evicted from memory", loses_units=True
    )
    yield Demand("appendonly", ("yes",), "a node that restarts comes back empty", confirms)
    yield Demand("appendfsync", syncs, crash, is_synced)
    yield Demand("no-appendfsync-on-rewrite", ("no",), f"during a rewrite {crash}", is_synced)


def _wise(durability: Durability) -> Iterator[Demand]:
    replicas = _numbers(0 if durability == "fast" else 1, 5)
    yield Demand(MIN_REPLICAS, replicas, "a master that is cut off goes on writing")
    yield Demand(
        "min-replicas-max-lag", _numbers(2, 10), "it writes on for long after it is cut off"
    )
    yield Demand("cluster-require-full-coverage", ("no",), "one lost master stops all of them")
    old = "a node that is cut off answers, and an old count refuses a buyer"
    yield Demand("cluster-allow-reads-when-down", ("no",), old)
    yield Demand("replica-read-only", ("yes",), "others can write to replicas")


def judge(report: NodeReport, durability: Durability) -> Iterator[Flaw]:
    """All flaws of a node, those that lose units first."""
    found = [
        *_settings(report, durability),
        *_version(report),
        *_replicas(report),
        *_clock(report),
        *_refusal(report),
        *_silence(report),
    ]
    return iter(sorted(found, key=lambda flaw: not flaw.loses_units))


def _settings(report: NodeReport, durability: Durability) -> Iterator[Flaw]:
    for setting, fits, reason, loses_units in demands(durability):
        value = report.settings.get(setting)
        if setting == MIN_REPLICAS and report.replicas == 0:
            continue  # a worker has it demand none while it is degraded
        if value is not None and value not in fits:
            command = f"{_shell(report.node)} CONFIG SET {setting} {fits[0]}"
            remedy = f"`{command}`, and the same in its redis.conf"
            yield Flaw(report.node, setting, value, reason, remedy, loses_units)


def _version(report: NodeReport) -> Iterator[Flaw]:
    if report.version and _numbers_of(report.version) < VERSION_MIN:
        reason = "the scripts need Redis 7.0 or Valkey"
        yield Flaw(report.node, "version", report.version, reason, "Upgrade it", loses_units=True)


def _replicas(report: NodeReport) -> Iterator[Flaw]:
    if report.replicas == 0:
        reason = "it sells nothing, or is degraded and its loss loses what it sold"
        remedy = (
            "Start its replica, a worker does the rest; or, to sell without one, set "
            "INVENTORY_DEGRADED_WITHOUT_FAILOVER=on for the workers"
        )
        yield Flaw(report.node, "replicas", "0", reason, remedy)


def _clock(report: NodeReport) -> Iterator[Flaw]:
    if abs(report.clock_ahead_s) > CLOCK_DIFFERENCE_S_MAX:
        value = f"{report.clock_ahead_s:+.1f} s"
        reason = "after a failover holds end earlier or later by so much"
        yield Flaw(report.node, "clock", value, reason, "See that NTP runs on both machines")


def _refusal(report: NodeReport) -> Iterator[Flaw]:
    if report.refusal:
        remedy = "Let INVENTORY_REDIS_USERNAME use INFO, TIME and CONFIG GET"
        reason = "nobody knows how it is set up"
        yield Flaw(report.node, "answer", report.refusal, reason, remedy)


def _silence(report: NodeReport) -> Iterator[Flaw]:
    if report.silence:
        reason = f"it is down, or the service cannot reach it or log in ({report.silence})"
        remedy = "Start it; if it runs, see its log, the network and INVENTORY_REDIS_PASSWORD"
        yield Flaw(report.node, "node", "away", reason, remedy)


def _numbers(least: int, most: int) -> Sequence[str]:
    return tuple(map(str, range(least, most + 1)))


def _numbers_of(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _shell(node: str) -> str:
    host, _, port = node.rpartition(":")
    return f"redis-cli -h {host} -p {port}"
