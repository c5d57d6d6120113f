"""What callers ask of the live stock and what it answers. Outcomes are values, failures exceptions."""

from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """What one request came to."""

    DEDUCTED = "deducted"
    INSUFFICIENT_STOCK = "insufficient_stock"
    UNKNOWN_PRODUCT = "unknown_product"
    FROZEN = "frozen"
    REQUEST_MISMATCH = "request_mismatch"
    INVALID = "invalid"
    USER_LIMIT = "user_limit"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    HELD = "held"
    """From here on of orders; see sharding/orders.py."""
    CONFIRMED = "confirmed"
    RELEASED = "released"
    EXPIRED = "expired"
    RETAKEN = "retaken"
    REFUND_REQUIRED = "refund_required"
    UNKNOWN_ORDER = "unknown_order"


class Reason(StrEnum):
    """Why, where the outcome alone does not say it. Part of the contract with callers."""

    NONE = ""
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    """The request may have taken effect; the same id decides it."""
    NOT_EXECUTED = "NOT_EXECUTED"
    """A node could not be reached or refused to run anything; nothing happened."""
    PARTITION_FENCED = "PARTITION_FENCED"
    """The partition waits for a worker to compare it with the ledger; nothing happened."""
    SHARD_CORRUPT = "SHARD_CORRUPT"
    """A key does not hold what it must; nothing happened."""
    SHARDS_UNREACHABLE = "SHARDS_UNREACHABLE"
    """Home is short and another shard cannot be asked; nothing happened."""
    CONTENDED = "CONTENDED"
    """Units kept moving while they were counted; nothing happened."""
    LEDGER_BEHIND = "LEDGER_BEHIND"
    """Too many events of the partition wait for the ledger; nothing happened."""
    LAYOUT_CHANGING = "LAYOUT_CHANGING"
    """The product is being split anew; nothing happened."""
    NOT_REPLICATED = "NOT_REPLICATED"
    """No replica confirmed the write in time; it may take effect."""
    PRODUCT_CLOSED = "PRODUCT_CLOSED"
    PRODUCT_LOADING = "PRODUCT_LOADING"
    PRODUCT_FROZEN = "PRODUCT_FROZEN"
    QUEUE_FULL = "QUEUE_FULL"
    RECORDS_FULL = "RECORDS_FULL"
    """The partition remembers as many requests as it may."""
    USER_REQUIRED = "USER_REQUIRED"
    """The product has a limit per user and the request names none."""
    TTL_TOO_LONG = "TTL_TOO_LONG"
    """A hold must end well before requests are forgotten: within three
    quarters of `record_ttl_s`, its grace included."""
    ORDER_PENDING = "ORDER_PENDING"
    """The order is being decided just now; nothing happened."""
    ORDER_AMBIGUOUS = "ORDER_AMBIGUOUS"
    """Several orders of different first products have this id; name a product."""
    LIVE_STOCK_AWAY = "LIVE_STOCK_AWAY"
    """No Redis node can be reached, and the ledger cannot do this in its place; nothing happened."""
    LIVE_STOCK_RETURNING = "LIVE_STOCK_RETURNING"
    """Redis is back and is told what was sold meanwhile; nothing happened."""
    BUFFER_EMPTY = "BUFFER_EMPTY"
    """No Redis node can be reached, and the buffer in the ledger has fewer units; nothing happened."""
    RESOLVED_NEVER = "RESOLVED_NEVER"
    """ResolveRequest decided that this request takes nothing; this is a late copy of it."""


MAY_HAVE_RUN = frozenset((Reason.OUTCOME_UNKNOWN, Reason.NOT_REPLICATED))
"""Reasons of a step that may have had its effect; all others say that it had none."""


class Deduction(NamedTuple):
    """A request for units. A tuple and not a dataclass: a hundred thousand are made a second.

    A line of an order has its terms in place of `order_id`, see sharding/lua/include/orders.lua.
    """

    request_id: str
    product_id: int
    quantity: int
    user_id: int = 0
    order_id: int | str = 0
    attempt: int = 0


def is_line(request: Deduction) -> bool:
    """Whether a request is for a line of an order."""
    return isinstance(request.order_id, str)


class Answer(NamedTuple):
    """What one request came to; `shard` and `available` only where units were taken.

    Of an order's line `shard` is the partition that holds it. `at_ms`: when a line was taken, by the
    node's clock.
    """

    outcome: Outcome
    replayed: bool = False
    shard: int = 0
    available: int = 0
    reason: Reason = Reason.NONE
    at_ms: int = 0


class Resolution(StrEnum):
    """What became of a request whose answer was lost."""

    DEDUCTED = "deducted"
    REFUSED = "refused"
    """For shortage, and a late copy of it will be, too."""
    NEVER = "never"
    """It took nothing, and no late copy of it will."""


class Resolved(NamedTuple):
    """A request's end; `quantity` in units, 0 unless DEDUCTED."""

    resolution: Resolution
    quantity: int = 0


class State(StrEnum):
    """Where a shard is in its life."""

    LOADING = "loading"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class ShardStock(NamedTuple):
    """One shard's counts, in units. A number at or above the layout's shard count: it left in a change
    of the layout and serves nobody any more."""

    shard: int
    partition: int
    available: int
    held: int
    sold: int
    loaded: int
    in_transit: int
    """Units that left it and have not arrived elsewhere; below zero: that arrived, and are here as well,
    because it has forgotten that it gave them."""


class ProductStock(NamedTuple):
    """A product's live counts, added up over its shards, in units.

    `buffer`: units that the ledger kept back when the product was loaded, less those that came on sale
    since. `sold_before`: units sold before it was last loaded, as the ledger said then.
    """

    product_id: int
    state: State
    frozen: bool
    layout_version: int
    epoch: int
    buffer: int
    sold_before: int
    shards: tuple[ShardStock, ...]
    serving: int
    """How many of the shards, from the first on, take requests; the others have left."""
    exact: bool
    sold_elsewhere: int = 0
    """Units sold since the load that no shard knows of, in units; they were part of the buffer."""
    unread: tuple[int, ...] = ()
    """Partitions of shards that did not answer and are in none of the sums."""

    @property
    def available(self) -> int:
        return sum(shard.available for shard in self.shards)

    @property
    def held(self) -> int:
        return sum(shard.held for shard in self.shards)

    @property
    def in_transit(self) -> int:
        return sum(shard.in_transit for shard in self.shards)

    @property
    def sold(self) -> int:
        return self.sold_before + self.sold_elsewhere + sum(shard.sold for shard in self.shards)

    @property
    def total(self) -> int:
        """Units loaded and restocked less those removed, by the shards' own book-keeping."""
        before = self.buffer + self.sold_before + self.sold_elsewhere
        return before + sum(shard.loaded for shard in self.shards)
