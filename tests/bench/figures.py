"""From measurements to figures: medians with their ranges, ratios run by run. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tests.bench.window import Measured

ACCEPTED, REFUSED = "accepted", "refused"


@dataclass(frozen=True, slots=True)
class Range:
    """A figure of several runs."""

    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One thing that is measured in every round."""

    name: str
    what: str
    """What is counted, for people."""
    counts: str = ACCEPTED
    """ACCEPTED or REFUSED."""
    baselines: Sequence[str] = ()
    """Names of the topics that it is compared with."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What all rounds together say about a topic."""

    topic: Topic
    per_s: Range
    cpu_us: Mapping[str, Range]
    """CPU of each group of processes, a piece of what is counted."""
    ratios: Mapping[str, Range]
    """To each baseline, from the two rates of the same round."""
    latency_ms: Mapping[str, Range]
    work: Mapping[str, Range]
    """What the servers did, by kind, for a piece of what is counted."""
    shares: Mapping[str, Range]
    """The busiest Redis master's parts of what all of them did."""


Rounds = Mapping[str, Sequence[Measured]]
"""By topic, in the order of the rounds."""


def figure_of(topic: Topic, rounds: Rounds) -> Figure:
    """Sum up one topic."""
    runs = rounds[topic.name]
    return Figure(
        topic,
        per_s=range_of([_per_s(topic, run) for run in runs]),
        cpu_us=_ranges([_cpu_us(topic, run) for run in runs]),
        ratios={name: _ratio(topic, runs, rounds[name]) for name in topic.baselines},
        latency_ms=_ranges([run.latency_ms for run in runs]),
        work=_ranges([_work(topic, run) for run in runs]),
        shares=_ranges([run.shares for run in runs]),
    )


def range_of(values: Sequence[float]) -> Range:
    return Range(median(values), min(values), max(values))


def _ranges(runs: Sequence[Mapping[str, float]]) -> Mapping[str, Range]:
    return {name: range_of([run[name] for run in runs]) for name in runs[0]}


def _per_s(topic: Topic, run: Measured) -> float:
    return _count(topic, run) / run.elapsed_s


def _count(topic: Topic, run: Measured) -> int:
    return run.accepted if topic.counts == ACCEPTED else run.refused


def _cpu_us(topic: Topic, run: Measured) -> Mapping[str, float]:
    count = _count(topic, run)
    return {name: spent_s * 1_000_000 / count for name, spent_s in run.cpu_s.items()}


def _work(topic: Topic, run: Measured) -> Mapping[str, float]:
    """The servers' own count divides it: it is of the same time, and a window's is not."""
    return {
        name: done / run.work[topic.counts]
        for name, done in run.work.items()
        if name not in (ACCEPTED, REFUSED)
    }


def _ratio(topic: Topic, runs: Sequence[Measured], baseline: Sequence[Measured]) -> Range:
    return range_of(
        [
            _per_s(topic, run) * base.elapsed_s / base.accepted
            for run, base in zip(runs, baseline, strict=True)
        ]
    )
