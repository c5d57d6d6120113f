"""What a node's settings mean for each durability, row by row."""

import pytest

from sharding.fitness import Demand, NodeReport, demands, judge
from sharding.settings import Durability

NODE = "10.0.0.1:7000"
MODES: tuple[Durability, ...] = ("replicated", "fast", "synced")
SOUND = {
    "maxmemory-policy": "noeviction",
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "min-replicas-to-write": "1",
    "min-replicas-max-lag": "2",
    "cluster-require-full-coverage": "no",
    "cluster-allow-reads-when-down": "no",
    "replica-read-only": "yes",
}
WELL = NodeReport(NODE, SOUND, version="7.0.15", clock_ahead_s=0.1, replicas=1)
LOSES, UNWISE, FINE = "loses", "unwise", "fine"


def verdict(report: NodeReport, durability: Durability) -> str:
    """What the only flaw is; fine without one."""
    flaws = list(judge(report, durability))
    if not flaws:
        return FINE
    (flaw,) = flaws
    return LOSES if flaw.loses_units else UNWISE


@pytest.mark.parametrize("durability", MODES)
def test_a_node_that_is_set_up_well_has_no_flaw(durability: Durability) -> None:
    assert verdict(WELL, durability) == FINE


@pytest.mark.parametrize(
    ("setting", "value", "replicated", "fast", "synced"),
    [
        ("maxmemory-policy", "allkeys-lru", LOSES, LOSES, LOSES),
        ("maxmemory-policy", "volatile-ttl", LOSES, LOSES, LOSES),
        ("appendonly", "no", LOSES, UNWISE, LOSES),
        ("appendfsync", "everysec", FINE, FINE, LOSES),
        ("appendfsync", "no", UNWISE, UNWISE, LOSES),
        ("no-appendfsync-on-rewrite", "yes", UNWISE, UNWISE, LOSES),
        ("min-replicas-to-write", "0", UNWISE, FINE, UNWISE),
        ("min-replicas-to-write", "2", FINE, FINE, FINE),
        ("min-replicas-max-lag", "1", UNWISE, UNWISE, UNWISE),
        ("min-replicas-max-lag", "60", UNWISE, UNWISE, UNWISE),
        ("cluster-require-full-coverage", "yes", UNWISE, UNWISE, UNWISE),
        ("cluster-allow-reads-when-down", "yes", UNWISE, UNWISE, UNWISE),
        ("replica-read-only", "no", UNWISE, UNWISE, UNWISE),
    ],
)
def test_a_setting_is_judged_by_what_the_durability_promises(
    setting: str, value: str, replicated: str, fast: str, synced: str
) -> None:
    report = WELL._replace(settings={**SOUND, setting: value})
    assert tuple(verdict(report, each) for each in MODES) == (replicated, fast, synced)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("6.2.14", LOSES), ("7.0.0", FINE), ("7.2.4", FINE), ("10.0.1", FINE), ("", FINE)],
)
def test_versions_are_compared_as_numbers(version: str, expected: str) -> None:
    assert verdict(WELL._replace(version=version), "replicated") == expected


@pytest.mark.parametrize(("ahead_s", "expected"), [(1.5, UNWISE), (-1.5, UNWISE), (0.9, FINE)])
def test_a_clock_may_differ_by_a_second(ahead_s: float, expected: str) -> None:
    assert verdict(WELL._replace(clock_ahead_s=ahead_s), "replicated") == expected


@pytest.mark.parametrize(("replicas", "expected"), [(None, FINE), (1, FINE), (0, UNWISE)])
def test_a_master_without_a_replica_is_named(replicas: int | None, expected: str) -> None:
    assert verdict(WELL._replace(replicas=replicas), "replicated") == expected


def test_a_degraded_node_is_not_told_to_demand_the_replica_that_it_lacks() -> None:
    settings = {**SOUND, "min-replicas-to-write": "0"}
    (flaw,) = judge(WELL._replace(settings=settings, replicas=0), "replicated")
    assert (flaw.what, "CONFIG SET" in flaw.remedy) == ("replicas", False)
    assert "INVENTORY_DEGRADED_WITHOUT_FAILOVER" in flaw.remedy


def test_a_node_that_does_not_say_is_unwise_and_judged_by_what_it_said() -> None:
    silent = NodeReport(NODE, {}, version="6.0.0", refusal="NOPERM this user has no permissions")
    flaws = list(judge(silent, "synced"))
    assert [(flaw.what, flaw.loses_units) for flaw in flaws] == [
        ("version", True),
        ("answer", False),
    ]
    assert flaws[1].value == silent.refusal


def test_a_node_that_does_not_answer_is_down_and_nobody_is_told_to_look_at_rights() -> None:
    (flaw,) = judge(NodeReport(NODE, {}, silence="Connection refused"), "replicated")
    assert (flaw.what, flaw.value) == ("node", "away")
    assert "down" in flaw.reason
    assert "Connection refused" in flaw.reason
    assert "CONFIG GET" not in flaw.remedy


def test_a_flaw_names_node_setting_value_and_the_command_that_mends_it() -> None:
    (flaw,) = judge(WELL._replace(settings={"appendfsync": "everysec"}), "synced")
    said = str(flaw)
    assert "10.0.0.1:7000" in said
    assert "appendfsync is 'everysec'" in said
    assert "`redis-cli -h 10.0.0.1 -p 7000 CONFIG SET appendfsync always`" in said


@pytest.mark.parametrize("durability", MODES)
def test_every_demand_is_met_by_what_it_recommends_and_asked_for_once(
    durability: Durability,
) -> None:
    asked: list[Demand] = list(demands(durability))
    assert len({each.setting for each in asked}) == len(asked)
    recommended = {each.setting: each.fits[0] for each in asked}
    assert verdict(WELL._replace(settings=recommended), durability) == FINE
