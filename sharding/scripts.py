"""The Lua scripts as they are sent: each file with its includes, and its digest."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

_INCLUDE = re.compile(r"^-- @include (\w+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One script. `digest` is what EVALSHA names it by."""

    name: str
    source: str
    digest: str

    def call(self, keys: Sequence[str], args: Sequence[str | bytes]) -> tuple[str | bytes, ...]:
        """The command that runs it."""
        return ("EVALSHA", self.digest, str(len(keys)), *keys, *args)


@cache
def script(name: str) -> Script:
    """The script of sharding/lua/<name>.lua with its includes in place."""
    root = files("sharding") / "lua"
    source = _INCLUDE.sub(
        lambda match: (root / "include" / f"{match[1]}.lua").read_text().rstrip(),
        (root / f"{name}.lua").read_text(),
    )
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())
