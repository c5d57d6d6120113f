"""The script calls that a simulation makes."""

from hashlib import sha1

from tests.simulation.nodes import script_names
from tests.simulation.run import run
from tests.simulation.world import Equipment

Words = list[bytes]
_SCRIPT_CALLS = (b"EVAL", b"EVALSHA")


def recorded(seed: int, equipment: Equipment) -> list[Words]:
    """All of a seed in their order, each by its script's digest."""
    calls: list[Words] = []
    run(seed, equipment, watch=lambda _, words, *__: calls.append(words))
    return [
        [b"EVALSHA", _digest(words), *words[2:]] for words in calls if words[0] in _SCRIPT_CALLS
    ]


def scripts_of(calls: list[Words]) -> set[str]:
    """The names of the scripts that are called."""
    return {script_names()[words[1]] for words in calls}


def _digest(words: Words) -> bytes:
    """A script that a node does not know yet comes with its text."""
    if words[0] == b"EVALSHA":
        return words[1]
    return sha1(words[1], usedforsecurity=False).hexdigest().encode()
