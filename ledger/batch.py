"""What one transaction writes to the ledger: events of several partitions, merged. Data only."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ledger.products import JournalKind
from ledger.service_events import Notice
from sharding.events import BEFORE_ALL, Counts, EventId, Repair, Sale
from sharding.partitions import Checkpoint, Entry

NO_COUNTS = Counts(0, 0, 0, 0)
ENDS = (JournalKind.CONFIRM, JournalKind.RELEASE)
"""A hold ends once: of these two a request has one effect, whichever comes first."""


class Move(NamedTuple):
    """One partition's checkpoint: where the batch started from and where it ends."""

    partition: int
    start: EventId
    end: Checkpoint


class EffectKey(NamedTuple):
    """What the journal has at most once."""

    product_id: int
    request_id: str
    kind: str


class Effects(NamedTuple):
    """The journal rows of one event. A tuple and not a dataclass: thousands are made a second."""

    partition: int
    event_id: EventId
    product_id: int
    kind: JournalKind
    at_ms: int
    remark: str
    sales: Sequence[Sale]
    actor: str = ""

    def keys(self) -> list[EffectKey]:
        """What the journal is to have."""
        return [EffectKey(self.product_id, sale.request_id, self.kind.value) for sale in self.sales]

    @property
    def rivals(self) -> Sequence[JournalKind]:
        """Kinds of which the journal must not have an effect of these requests yet."""
        return ENDS if self.kind in ENDS else (self.kind,)


@dataclass(slots=True)
class ProductChange:
    """Units to add to a product's row, signed."""

    total: int = 0
    available: int = 0
    held: int = 0
    sold: int = 0


class ShardKey(NamedTuple):
    """One shard; in this order rows are locked."""

    product_id: int
    partition: int


@dataclass(slots=True)
class ShardChange:
    """Units to add to a shard's row, signed, after it was set to zero where `reset` says so."""

    reset: bool = False
    epoch: int = 0
    """Of a reset, or of the first event."""
    layout_version: int = 0
    """0: as it was."""
    available: int = 0
    held: int = 0
    sold: int = 0
    loaded: int = 0
    in_transit: int = 0
    released: int = 0
    """Units of the buffer that arrived."""
    serves: int = -1
    """1 or 0; -1: as it was."""
    began: int = 0
    """Of a reset: the number of its event."""
    state: str = ""
    """Empty: as it was."""
    last_event: EventId = BEFORE_ALL
    """BEFORE_ALL: as it was."""
    counts: Counts = NO_COUNTS
    """What the shard itself said after its last event of the batch."""
    first_event: EventId = BEFORE_ALL
    base: tuple[int, ...] = NO_COUNTS
    """What the shard had before the batch, by its first event: the counts there less what that did."""
    parted: EventId = BEFORE_ALL
    """The first event by which the shard had something else before the batch than by the first one."""
    ahead: Counts = NO_COUNTS
    """What repairs add here and did not add to the live counts."""
    damaged: str = ""
    """Counts that the last event found damaged, with spaces between their names."""


class SecondEffect(NamedTuple):
    """Units that one request took although the journal has its effect already; they go back."""

    product_id: int
    partition: int
    epoch: int
    event_id: EventId
    request_id: str
    quantity: int


class Undone(NamedTuple):
    """A second effect (`undone` is its event) whose units have come back, as `event_id` tells."""

    product_id: int
    partition: int
    undone: EventId
    request_id: str
    event_id: EventId
    quantity: int
    available_after: int
    at_ms: int
    remark: str
    actor: str = ""


class Repaired(NamedTuple):
    """A compensation that was entered at a shard."""

    shard: ShardKey
    event_id: EventId
    repair: Repair
    reason: str
    available_after: int


class Pair(NamedTuple):
    """Two shards of a product, of which one gives the other units; by partitions."""

    product_id: int
    donor: int
    receiver: int


class Moved(NamedTuple):
    """All units that one of a pair has given the other in an epoch."""

    epoch: int
    units: int


class HoldKey(NamedTuple):
    """A line that an order holds at one shard."""

    product_id: int
    partition: int
    request_id: str


class Hold(NamedTuple):
    """Units that are held, and since when."""

    order_id: int
    user_id: int
    quantity: int
    at_ms: int
    decision: str = ""
    """The order's record, of its first line."""


class TransferSide(NamedTuple):
    """One of the two shards of their transfers in one direction: that which gives where `is_out`."""

    partition: int
    product_id: int
    peer: int
    is_out: bool


class TransferNote(NamedTuple):
    """Units that a side has given, or that have come to it, in an epoch; of those that it has given,
    what it knows to have arrived."""

    epoch: int = 0
    moved: int = 0
    arrived: int = 0


class Refusal(NamedTuple):
    """A request that takes nothing, for good: `kind` refused (`quantity` units, to a user) or never."""

    product_id: int
    request_id: str
    kind: str
    quantity: int = 0
    user_id: int = 0


class NewLayout(NamedTuple):
    """The layout that a product has from a reshard event on."""

    version: int
    shards: int
    former_shards: str


class Letter(NamedTuple):
    """An event that is set aside, or one request of it."""

    partition: int
    entry: Entry
    product_id: int
    request_id: str
    reason: str
    """Starts with one word for its class."""
    shard_followed: bool
    """Whether the shard's row took over what the event says of its counts all the same."""

    @property
    def reason_class(self) -> str:
        return self.reason.partition(" ")[0]


@dataclass(slots=True)
class LedgerBatch:
    """Events of several partitions, merged per product and per shard."""

    moves: list[Move] = field(default_factory=list)
    effects: list[Effects] = field(default_factory=list)
    products: dict[int, ProductChange] = field(default_factory=dict)
    shards: dict[ShardKey, ShardChange] = field(default_factory=dict)
    raw: list[tuple[int, Entry]] = field(default_factory=list)
    """Entries to keep for recovery, with their partitions."""
    letters: list[Letter] = field(default_factory=list)
    seconds: list[SecondEffect] = field(default_factory=list)
    undone: list[Undone] = field(default_factory=list)
    opened: dict[Pair, Moved] = field(default_factory=dict)
    """What is not known to have arrived after the batch."""
    ended: dict[Pair, Moved] = field(default_factory=dict)
    """What was not known to have arrived before the batch, and is after it."""
    held: dict[HoldKey, Hold] = field(default_factory=dict)
    """Holds that were begun and not ended."""
    freed: list[HoldKey] = field(default_factory=list)
    """Holds that were ended and had been begun before the batch."""
    decisions: dict[HoldKey, str] = field(default_factory=dict)
    """New records of orders whose first lines have been held since before the batch."""
    transfers: dict[TransferSide, TransferNote] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    """What must not be sold from the buffer either."""
    layouts: dict[int, NewLayout] = field(default_factory=dict)
    repairs: list[Repaired] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    """What callers are to be told of orders."""

    @property
    def rows(self) -> int:
        """Journal rows to write."""
        return sum(len(effects.sales) for effects in self.effects) + len(self.undone)

    @property
    def product_ids(self) -> list[int]:
        """Every product that the batch touches."""
        of_shards = {key.product_id for key in self.shards}
        return sorted(self.products.keys() | of_shards | self.layouts.keys())
