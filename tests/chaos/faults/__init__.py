"""The faults, by their numbers, in the order in which they are played."""

from tests.chaos.faults import demand, floods, layouts, ledger, mixes, network, nodes, processes
from tests.chaos.faults.register import REGISTER
from tests.chaos.scene import Fault

__all__ = [
    "FAULTS",
    "demand",
    "floods",
    "layouts",
    "ledger",
    "mixes",
    "network",
    "nodes",
    "processes",
]

FAULTS: dict[str, Fault] = dict(sorted(REGISTER.items()))
