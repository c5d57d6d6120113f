"""One call while it is being tried: what happened to it so far, and how it goes on."""

from collections.abc import Callable, Sequence

from sharding.errors import StockUnavailableError
from sharding.lane import (
    LaneError,
    LostError,
    Node,
    NotReplicatedError,
    QueueFullError,
    TooLateError,
    packed,
    packed_script,
)
from sharding.outcomes import Reason
from sharding.scripts import Script

PAUSE_MAX_S = 0.1
PAUSE_MIN_S = 0.005
REDIRECTIONS_MAX = 16

_LANE_ERRORS = {
    LostError: ("lost", Reason.OUTCOME_UNKNOWN),
    NotReplicatedError: ("not_replicated", Reason.NOT_REPLICATED),
    QueueFullError: ("queue_full", Reason.QUEUE_FULL),
}
_HAD_NO_EFFECT = frozenset(
    (
        "ASK",
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "MOVED",
        "NOREPLICAS",
        "NOSCRIPT",
        "OOM",
        "READONLY",
        "TRYAGAIN",
    )
)
_MEANS_THE_NODE = frozenset(
    ("CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "READONLY")
)
_SLOT_ALONE = "CLUSTERDOWN Hash slot not served"
"""The one word of these that speaks of nothing but the slot."""
_REFUSED_CALLERS = frozenset(("NOAUTH", "NOPERM", "WRONGPASS"))


class PendingCall:
    """A call to one partition. Every script is safe to run twice, so only `deadline` ends its tries.

    What matters to whoever asked is whether any try may have run: then no later answer of another kind
    can say that nothing happened.
    """

    __slots__ = (
        "_command",
        "_detail",
        "_script",
        "_text_is_unknown",
        "_why",
        "attempts",
        "deadline",
        "each_time",
        "is_alone",
        "is_hasty",
        "is_script",
        "may_echo",
        "may_have_run",
        "packed",
        "partition",
        "pause_s",
        "redirected_to",
    )

    def __init__(
        self, partition: int, script: Script | None, deadline: float, *, hasty: bool = False
    ) -> None:
        self.partition = partition
        self.deadline = deadline
        self.is_hasty = hasty
        """What is away and has certainly done nothing is not waited for."""
        self.attempts = 0
        self.is_alone = False
        """The last try waited for no replica although others do."""
        self.pause_s = 0.0
        self.each_time: Callable[[], Sequence[str | bytes]] | None = None
        """What is sent, where that is another with each try: what was seen since the one before may be
        gone from the node."""
        self.packed = b""
        self.redirected_to: Node | None = None
        self.is_script = script is not None
        self._script = script
        self._text_is_unknown = False
        self._command: Sequence[str | bytes] = ()
        self.may_have_run = False
        self.may_echo = False
        """A try was lost: it may be on its way and run yet."""
        self._why = Reason.NOT_EXECUTED
        self._detail = ""

    def prepare(self, command: Sequence[str | bytes]) -> None:
        """Set what is sent from now on."""
        self._command = command
        if self._script is None:
            self.packed = packed(command)
            return
        if self._text_is_unknown:
            command = ("EVAL", self._script.source, *command[2:])
        self.packed = packed_script(command)

    def begin_try(self) -> None:
        """What goes out now is as it has to be now."""
        self.attempts += 1
        if self.each_time is not None:
            self.prepare(self.each_time())

    def note(self, why: Reason, detail: str) -> None:
        """A try did nothing; the next one comes after a pause."""
        self._why, self._detail = why, detail
        self.redirected_to = None
        self.pause_s = min(max(PAUSE_MIN_S, self.pause_s * 2), PAUSE_MAX_S)

    def note_lost(self, error: LaneError) -> str:
        """A try got no reply; returns what kind of trouble that is."""
        kind, why = _LANE_ERRORS.get(type(error), ("not_sent", Reason.NOT_EXECUTED))
        # That a call came too late for one more try says less than what the last one came to.
        is_news = not (isinstance(error, TooLateError) and self._detail)
        self.note(why, str(error) if is_news else self._detail)
        self.may_echo |= isinstance(error, LostError)
        self.may_have_run |= isinstance(error, LostError | NotReplicatedError)
        return kind

    def note_away(self, why: Reason, detail: str) -> None:
        """No try was made, or one met a partition that is shut. StockUnavailableError if nobody waits
        for what is away."""
        self.note(why, detail)
        if self.is_hasty and not self.may_have_run:
            raise self.failure()

    def may_go_on(self, now: float) -> bool:
        """Whether there is time for another try, after its pause; the first one is always made."""
        if not self.attempts and not self.pause_s:
            return True
        return now + self.pause_s <= self.deadline

    def note_error(self, node: Node, text: str) -> Node | None:
        """`node` answered with an error; returns where the partition is now, if the error says so.

        StockUnavailableError if trying again cannot help.
        """
        code, _, rest = text.partition(" ")
        if code in _REFUSED_CALLERS:
            raise self.failure(Reason.NOT_EXECUTED, text)
        if code not in _HAD_NO_EFFECT:
            # A script that failed where it must not: nobody can say what of it was done.
            self.may_have_run |= code != "WRONGTYPE"
            raise self.failure(Reason.SHARD_CORRUPT, text)
        self.note(Reason.NOT_EXECUTED, text)
        if self.attempts > REDIRECTIONS_MAX:
            return None
        if code == "NOSCRIPT" and self._script is not None:
            # The node remembers the text from then on.
            self._text_is_unknown = True
            self.prepare(self._command)
            self.pause_s = 0.0
        elif code == "ASK":
            self.redirected_to = _redirection(rest, node)
            self.pause_s = 0.0
        elif code == "MOVED":
            self.pause_s = 0.0
            return _redirection(rest, node)
        return None

    def failure(
        self, why: Reason | None = None, detail: str | None = None
    ) -> StockUnavailableError:
        """The end of all tries; without arguments for the reason of the last one."""
        reason = why or self._why
        if self.may_have_run and reason is not Reason.NOT_REPLICATED:
            reason = Reason.OUTCOME_UNKNOWN
        return StockUnavailableError(reason, f"p{self.partition:02d} {detail or self._detail}")


def means_the_node(text: str) -> bool:
    """Whether an error reply speaks against the node, and not against the call or its slot."""
    return text.partition(" ")[0] in _MEANS_THE_NODE and not text.startswith(_SLOT_ALONE)


def error_kind(code: str) -> str:
    """The label of an error reply in metrics."""
    return code.lower() if code in _HAD_NO_EFFECT else "other"


def _redirection(rest: str, node: Node) -> Node:
    """The node of `<slot> <host>:<port>`; an empty host means the one that answered."""
    host, _, port = rest.partition(" ")[2].rpartition(":")
    return Node(host or node.host, int(port))
