"""One hot product next to many cold ones, over more and more shards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from tests.bench.figures import Topic
from tests.bench.masters import largest_shares, script_loads
from tests.bench.products import HOT
from tests.bench.sender import send
from tests.bench.service import Measure, Service
from tests.bench.shapes import BATCH_ITEMS, BATCHES
from tests.bench.window import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class HotProduct:
    """Nine of ten requests are for the hot product, the tenth is for one of the cold ones."""

    service: Service
    baseline: str
    """The topic that it is compared with."""
    cold: range
    alone: int
    """Requests by which the masters' shares of the hot product alone are told: so many that what servers
    ask by themselves meanwhile is little."""

    def topics(self) -> Sequence[tuple[Topic, Measure]]:
        """One for each number of shards."""
        return [
            (
                Topic(name=name_of(shards), what="deductions", baselines=(self.baseline,)),
                partial(self._measure, product_id),
            )
            for shards, product_id in HOT.items()
        ]

    async def _measure(self, product_id: int) -> Measured:
        plan = replace(
            BATCHES,
            product_id=product_id,
            cold_first=self.cold.start,
            cold_products=len(self.cold),
        )
        first = await script_loads(self.service.masters)
        measured = await self.service.serve(plan)()
        second = await script_loads(self.service.masters)
        address = self.service.stack.grpc_address()
        await send(address, product_id, total=self.alone, size=BATCH_ITEMS)
        third = await script_loads(self.service.masters)
        shares = {
            **{f"{what}, with cold": part for what, part in largest_shares(first, second).items()},
            **{f"{what}, hot alone": part for what, part in largest_shares(second, third).items()},
        }
        return replace(measured, shares=shares)


def name_of(shards: int) -> str:
    """The name of the row for a hot product of that many shards."""
    return f"hot over {shards}, and cold products"
