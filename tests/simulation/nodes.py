"""Redis nodes in memory: the service's own Lua files over the commands of fakeredis.

fakeredis makes a Lua runtime for each server and prepares it for each call; here one runtime serves all
nodes, every script is compiled once, and `redis.call` goes straight to fakeredis' commands.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, NamedTuple

from fakeredis import FakeServer
from fakeredis._helpers import SimpleError, SimpleString
from fakeredis._socket import FakeSocket
from fakeredis.model import Hash, XStream, ZSet, is_write_command
from hiredis import ReplyError
from lupa import lua51  # type: ignore[import-untyped]
from msgpack import ExtraData, UnpackException, unpackb
from redis import Redis

from sharding.scripts import script

WallClock = Callable[[], float]

_PRELUDE = b"""
local dispatch, sha1hex, msgpack_unpack = ...

local redis = { pcall = dispatch, sha1hex = sha1hex, LOG_WARNING = 3 }
function redis.call(...)
  local reply = dispatch(...)
  if type(reply) == "table" and reply.err then error(reply, 0) end
  return reply
end
function redis.log() end
function redis.status_reply(text) return { ok = text } end
function redis.error_reply(text) return { err = text } end

local cmsgpack = {}
function cmsgpack.unpack(packed)
  local value, trouble = msgpack_unpack(packed)
  if trouble then error(trouble) end
  return value
end

local shared = { redis = redis, cmsgpack = cmsgpack, string = string, table = table, math = math,
  type = type, tonumber = tonumber, tostring = tostring, pairs = pairs, ipairs = ipairs, next = next,
  unpack = unpack, select = select, error = error, assert = assert, pcall = pcall,
  setmetatable = setmetatable, getmetatable = getmetatable, rawget = rawget, rawset = rawset }
local function missing(_, name)
  error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
end
local function readonly() error("Attempt to modify a readonly table", 2) end
local environment = setmetatable(shared, { __index = missing, __newindex = readonly })

local function compile(source)
  local chunk, trouble = loadstring(source, "@user_script")
  if not chunk then error(trouble) end
  return setfenv(chunk, environment)
end

local function run(chunk, keys, argv)
  local is_done, reply = pcall(chunk, keys, argv)
  if is_done then return reply end
  if type(reply) == "table" and reply.err then return reply end
  return { err = "ERR " .. tostring(reply) }
end

local function array(...) return { ... } end
local function named(name, value) return { [name] = value } end

return { compile, run, array, named }
"""
_BAD_ARGUMENT = "ERR Lua redis lib command arguments must be strings or integers"
_READ_ONLY = "ERR Write commands are not allowed from read-only scripts."
_HASH_READS = frozenset(("hmget", "hget", "hlen", "hgetall"))
_NOT_A_HASH = object()
_NO_SCRIPT = "NOSCRIPT No matching script. Please use EVAL."


class Removed(NamedTuple):
    """A key that was removed, and what it held as far as a replica knows."""

    item: Any
    value: Any


class Compiled(NamedTuple):
    """A script as the runtime holds it."""

    function: Any
    writes: bool


class LuaEngine:
    """The one Lua 5.1 runtime of a Python process; scripts are compiled into it once."""

    def __init__(self, alter: Callable[[bytes], bytes] = bytes) -> None:
        """`alter` changes every script before it is compiled, to see whether that is noticed."""
        self._alter = alter
        self._runtime = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._compiled: dict[bytes, Compiled] = {}
        self._node: FakeNode | None = None
        parts = self._runtime.execute(_PRELUDE, self._dispatch, _sha1hex, self._unpack)
        self._compile, self._run, self._array, self._named = (parts[i] for i in range(1, 5))

    def add(self, source: bytes) -> bytes:
        """Compile a script unless it is known; returns its digest."""
        digest = _sha1hex(source)
        if digest not in self._compiled:
            source = self._alter(source)
            flags, _, body = source.partition(b"\n")
            # One line stands for the other, so error texts name the right lines.
            function = self._compile(b"local KEYS, ARGV = ...\n" + body)
            self._compiled[digest] = Compiled(function, b"no-writes" not in flags)
        return digest

    def writes(self, digest: bytes) -> bool:
        """Whether a script may write, by its own flags."""
        return self._compiled[digest].writes

    def run(
        self, node: "FakeNode", digest: bytes, keys: Sequence[bytes], args: Sequence[bytes]
    ) -> object:
        """Run a script on a node; an error is a ReplyError in its reply's place."""
        self._node = node
        compiled = self._compiled[digest]
        node.is_read_only = not compiled.writes
        table = self._runtime.table_from
        try:
            return _from_lua(self._run(compiled.function, table(keys), table(args)))
        finally:
            node.is_read_only = False

    def _dispatch(self, *words: object) -> object:
        """`redis.pcall`: the reply as Lua gets it."""
        assert self._node is not None
        command: list[bytes] = []
        for word in words:
            if isinstance(word, bytes):
                command.append(word)
            elif isinstance(word, int | float) and not isinstance(word, bool):
                command.append(_number(word))
            else:
                return self._named(b"err", _BAD_ARGUMENT.encode())
        return self._to_lua(self._node.command(command))

    def _to_lua(self, reply: object) -> object:
        if isinstance(reply, bytes | int):
            return reply
        if reply is None:
            return False
        if isinstance(reply, list):
            return self._array(*map(self._to_lua, reply))
        if isinstance(reply, SimpleString):
            return self._named(b"ok", reply.value)
        assert isinstance(reply, SimpleError), reply
        return self._named(b"err", reply.value.encode())

    def _unpack(self, packed: bytes) -> tuple[object, bytes | None]:
        if not packed:
            return None, None
        try:
            value = unpackb(packed, raw=True)
        except ExtraData as more:
            # Redis reads on to the end of the text; scripts want the first value.
            _, trouble = self._unpack(more.extra)
            return (None, trouble) if trouble else (self._to_lua(more.unpacked), None)
        except (ValueError, UnpackException):
            return None, b"Bad data format in input."
        return self._to_lua(value), None


def _sha1hex(text: bytes) -> bytes:
    return sha1(text, usedforsecurity=False).hexdigest().encode()


def _number(value: float) -> bytes:
    """A Lua number as an argument of a command."""
    return b"%d" % int(value) if value == int(value) else b"%.17g" % value


def _from_lua(value: Any) -> object:
    """A script's result as a client gets it."""
    if isinstance(value, bytes) or value is None:
        return value
    if isinstance(value, bool):
        return 1 if value else None
    if isinstance(value, int | float):
        return int(value)
    if value[b"err"] is not None:
        return ReplyError(value[b"err"].decode())
    if value[b"ok"] is not None:
        return value[b"ok"]
    return list(_items(value))


def _items(table: Any) -> Iterator[object]:
    """The array part, up to the first nil."""
    for i in range(1, len(table) + 1):
        item = table[i]
        if item is None:
            return
        yield (
            item if isinstance(item, bytes | int) and item not in (True, False) else _from_lua(item)
        )


class FakeNode:
    """One master. `run` takes what a connection carries, `command` what a script calls."""

    def __init__(
        self, number: int, engine: LuaEngine, wall_s: WallClock, *, after: "FakeNode | None" = None
    ) -> None:
        """`after`: the node that this one, its replica, takes over from."""
        self.number = number
        self.is_dead = False
        self.has_written = False
        """Whether the call that ran last wrote anything."""
        self.is_read_only = False
        """Whether a script that promised not to write is running."""
        self.identity = b"%040x" % (number + 1)
        self._runs = 0
        self._engine = engine
        self._wall_s = wall_s
        self._server: FakeServer = after._server if after else FakeServer(version=(7, 0))
        self._unconfirmed: dict[bytes, object] | None = {} if after and after.may_lose else None
        """What keys held that were written since; None: nothing is ever lost."""
        self._socket = FakeSocket(self._server, 0, client_class=Redis)
        self._known: set[bytes] = set()

    @property
    def run_id(self) -> bytes:
        """What it says of itself, another one after each start."""
        return b"%s%020x" % (self.identity[20:], self._runs)

    def restart(self) -> None:
        """Be the same node as before, in another run."""
        self._runs += 1

    @property
    def may_lose(self) -> bool:
        """Whether it remembers which writes no replica has confirmed."""
        return self._unconfirmed is not None

    def remember_unconfirmed(self) -> None:
        """From here on a replica has only what `confirm` has told it."""
        self._unconfirmed = {}

    def confirm(self) -> None:
        """A replica has everything that was written so far."""
        if self._unconfirmed:
            self._unconfirmed.clear()

    def lose_unconfirmed(self) -> None:
        """Go back to what a replica has for certain."""
        items = self._items
        for key, image in (self._unconfirmed or {}).items():
            if isinstance(image, Removed):
                image.item.value = image.value
                items[key] = image.item
            elif image is None:
                items.pop(key, None)
            else:
                items[key].value = _restored(items[key].value, image)
        self.confirm()

    @property
    def _items(self) -> dict[bytes, Any]:
        items: dict[bytes, Any] = self._server.dbs[0]._dict
        return items

    def _note_write(self, key: bytes, *, removes: bool = False) -> None:
        self.has_written = True
        if self._unconfirmed is None:
            return
        item = self._items.get(key)
        if key not in self._unconfirmed:
            self._unconfirmed[key] = None if item is None else _image(item.value)
        image = self._unconfirmed[key]
        if removes and item is not None and not (image is None or isinstance(image, Removed)):
            self._unconfirmed[key] = Removed(item, _restored(item.value, image))

    def snapshot(self, tag: bytes) -> dict[bytes, Any]:
        """What all keys of a partition hold now."""
        return {
            key: _restored(item.value, _image(item.value))
            for key, item in self._items.items()
            if b"{" + tag + b"}" in key
        }

    def set_back(self, tag: bytes, snapshot: dict[bytes, Any]) -> None:
        """Have a partition hold what it held before, on the replica, too; nothing: it is emptied."""
        items = self._items
        for key in [key for key in items if b"{" + tag + b"}" in key]:
            item = items.pop(key)
            if key in snapshot:
                item.value = snapshot[key]
                items[key] = item
        for key in [key for key in self._unconfirmed or () if b"{" + tag + b"}" in key]:
            assert self._unconfirmed is not None
            del self._unconfirmed[key]

    def hand_over(self, tag: bytes, to: "FakeNode") -> None:
        """Move all keys of a partition to another node."""
        for key in [key for key in self._items if b"{" + tag + b"}" in key]:
            to._items[key] = self._items.pop(key)

    def forget_scripts(self) -> None:
        """SCRIPT FLUSH."""
        self._known.clear()

    def run(self, words: Sequence[bytes]) -> object:
        """The reply to a whole command, as hiredis would parse it."""
        self.has_written = False
        name = words[0].upper()
        if name not in (b"EVAL", b"EVALSHA"):
            return _from_fake(self.command(words))
        digest = self._engine.add(words[1]) if name == b"EVAL" else words[1]
        if name == b"EVAL":
            self._known.add(digest)
        elif digest not in self._known:
            return ReplyError(_NO_SCRIPT)
        count = int(words[2])
        return self._engine.run(self, digest, words[3 : 3 + count], words[3 + count :])

    def command(self, words: Sequence[bytes]) -> object:
        """The reply to one plain command, as fakeredis gives it."""
        name = words[0].decode().lower()
        if name == "time":
            seconds, micros = divmod(round(self._wall_s() * 1_000_000), 1_000_000)
            return [b"%d" % seconds, b"%d" % micros]
        if name == "cluster":
            assert words[1].upper() == b"MYID", words
            return self.identity
        if _is_write(name):
            if self.is_read_only:
                return SimpleError(_READ_ONLY)
            for key in words[1:] if name == "unlink" else words[1:2]:
                self._note_write(key, removes=name == "unlink")
        args = words[1:]
        if name in _HASH_READS and (found := self._read_hash(name, args)) is not _NOT_A_HASH:
            return found
        if name == "xinfo":
            name, args = f"xinfo {words[1].decode().lower()}", words[2:]
        try:
            function, signature = self._socket._name_to_func(name)
        except SimpleError as error:
            return error
        with self._server.lock:
            return self._socket._run_command(function, signature, list(args), True)

    def _read_hash(self, name: str, args: Sequence[bytes]) -> object:
        """What fakeredis answers to the commonest commands, by a shorter way."""
        item = self._server.dbs[0]._dict.get(args[0])
        if item is None or type(item.value) is not Hash:
            return _NOT_A_HASH
        values = item.value._values
        if name == "hmget":
            return [values.get(field) for field in args[1:]]
        if name == "hget":
            return values.get(args[1])
        if name == "hlen":
            return len(values)
        return [part for pair in values.items() for part in pair]

    def hash_fields(self, key: bytes) -> dict[bytes, bytes]:
        """A hash as it is, empty where there is none."""
        flat = self.command((b"HGETALL", key))
        if not isinstance(flat, list):
            return {}
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def entries_after(self, key: bytes, last: bytes) -> list[tuple[bytes, list[bytes]]]:
        """A stream's entries above an id."""
        found = self.command((b"XRANGE", key, b"(" + last, b"+"))
        assert isinstance(found, list), found
        return [(entry_id, fields) for entry_id, fields in found]


@cache
def _is_write(name: str) -> bool:
    return bool(is_write_command(name.encode()))


def _image(value: Any) -> object:
    """What a hash, a sorted set or a string held, or how long a stream was: it is only appended to."""
    if type(value) is bytes:
        return value
    if type(value) is Hash:
        return dict(value._values)
    return tuple(value.items()) if type(value) is ZSet else len(value)


def _restored(value: Any, image: object) -> Any:
    if isinstance(image, bytes):
        return image
    if isinstance(image, dict):
        older = copy(value)
        older._values = dict(image)
        return older
    if isinstance(image, tuple):
        members = ZSet()
        for member, score in image:
            members.add(member, score)
        return members
    assert isinstance(image, int)
    stream = XStream()
    for entry_id in value._ids[:image]:
        stream.add(value._values_dict[entry_id], entry_id)
    return stream


def _from_fake(reply: object) -> object:
    if isinstance(reply, SimpleString):
        return reply.value
    if isinstance(reply, SimpleError):
        return ReplyError(reply.value)
    if isinstance(reply, list):
        return [_from_fake(item) for item in reply]
    return reply


@cache
def script_names() -> dict[bytes, str]:
    """The name of every script by its digest."""
    folder = files("sharding") / "lua"
    names = sorted(path.name[:-4] for path in folder.iterdir() if path.name.endswith(".lua"))
    return {script(name).digest.encode(): name for name in names}
