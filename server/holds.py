"""The operator's calls on holds. Protobuf ends here."""

from dataclasses import dataclass

from inventory.v1 import admin_pb2 as messages
from ledger.holds import HoldRow, Holds
from ledger.servers import PerServer, together
from server import validation
from server.calls import Context
from server.errors import refused
from server.intake import Intake
from server.orders import LiveOrders, order_message
from sharding.orders import Order, OrderAnswer
from sharding.outcomes import Outcome

_OVER = frozenset((Outcome.RELEASED, Outcome.EXPIRED))


@dataclass(frozen=True, slots=True)
class HoldService:
    """One method for each call of the contract on holds, by its name in snake_case."""

    holds: PerServer[Holds]
    orders: LiveOrders
    intake: Intake
    grace_s: float

    async def list_holds(
        self, request: messages.ListHoldsRequest, _context: Context
    ) -> messages.ListHoldsResponse:
        """Read a page of units that orders hold."""
        validation.check(
            validation.at_least("product_id", request.product_id, 0),
            validation.at_least("user_id", request.user_id, 0),
            validation.at_least("after_id", request.after_id, 0),
        )
        size = validation.page_size(request.page_size)
        rows = await self.holds.page(
            lambda each, after: each.page(
                product_id=request.product_id,
                user_id=request.user_id,
                after_id=after,
                limit=size,
            ),
            after=request.after_id,
            limit=size,
            product_id=request.product_id,
        )
        return messages.ListHoldsResponse(
            holds=map(_hold, rows), next_after_id=rows[-1].id if len(rows) == size else 0
        )

    async def force_release(
        self, request: messages.ForceReleaseRequest, _context: Context
    ) -> messages.ForceReleaseResponse:
        """Release an order and say in the journal who wanted it, and why.

        The journal comes second: if that fails, the same call again finds the order released.
        """
        validation.check(
            validation.at_least("order_id", request.order_id, 1),
            *validation.why_and_who(reason=request.reason, actor=request.actor),
        )
        answer = await self.intake.order("force_release", self.orders.release(request.order_id))
        order = _released(answer)
        if answer.outcome is Outcome.RELEASED:
            await self._note(order, request)
        return messages.ForceReleaseResponse(order=order_message(order, grace_s=self.grace_s))

    async def _note(self, order: Order, request: messages.ForceReleaseRequest) -> None:
        products = [line.product_id for line in order.lines]
        await together(
            [
                holds.note_force_release(
                    order.order_id,
                    user_id=order.user_id,
                    first_product=min(products),
                    product_ids=its,
                    actor=request.actor,
                    reason=request.reason,
                )
                for holds, its in self.holds.by_server(products)
            ]
        )


def _released(answer: OrderAnswer) -> Order:
    if answer.outcome not in _OVER:
        raise refused(answer)
    if answer.order is None:  # a tombstone now keeps a late copy of its Reserve out
        raise refused(OrderAnswer(Outcome.UNKNOWN_ORDER))
    return answer.order


def _hold(row: HoldRow) -> messages.Hold:
    return messages.Hold(
        id=row.id,
        order_id=row.order_id,
        product_id=row.product_id,
        user_id=row.user_id,
        quantity=row.quantity,
        partition=row.partition,
        created_ms=row.created_ms,
        age_ms=max(0, row.age_ms),
    )
