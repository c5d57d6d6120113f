"""Which of the settings in its environment a stack takes over."""

from collections.abc import Mapping
from typing import NamedTuple

SETTINGS = "INVENTORY_"
_OPTIONS = {
    "INVENTORY_ENGINE": "--engine",
    "INVENTORY_DURABILITY": "--durability",
    "INVENTORY_SERVER_PROCESSES": "--processes",
    "INVENTORY_GRPC_ADDRESS": "--base-port",
    "INVENTORY_METRICS_ADDRESS": "--base-port",
}
_OF_ITS_OWN_STORES = frozenset(
    (
        "INVENTORY_MYSQL_URLS",
        "INVENTORY_REDIS_NODES",
        "INVENTORY_REDIS_PASSWORD",
        "INVENTORY_REDIS_TLS",
        "INVENTORY_REDIS_USERNAME",
    )
)
_TLS = "INVENTORY_GRPC_TLS_"
_OF_OTHERS = frozenset(("INVENTORY_TARGET", "INVENTORY_TEST_REDIS"))
"""For the caller's commands and the choice of a Redis, and no settings of the service."""


class Given(NamedTuple):
    """Settings that somebody has for the service."""

    taken: Mapping[str, str]
    ignored: Mapping[str, str]
    """Those that the stack sets itself, each with why."""


def given(environment: Mapping[str, str]) -> Given:
    """What of an environment is for servers and workers of a stack."""
    settings = {
        name: value
        for name, value in environment.items()
        if name.startswith(SETTINGS) and name not in _OF_OTHERS
    }
    ignored = {name: why for name in settings if (why := _why_ignored(name))}
    taken = {name: value for name, value in settings.items() if name not in ignored}
    return Given(taken, ignored)


def _why_ignored(name: str) -> str:
    if name in _OPTIONS:
        return f"use {_OPTIONS[name]}"
    if name in _OF_ITS_OWN_STORES:
        return "this stack has its own Redis and MySQL"
    return "this stack has no TLS" if name.startswith(_TLS) else ""
