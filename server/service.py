"""InventoryService: the contract's messages in, calls of the stock out. Protobuf ends here."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from grpc import aio

from inventory.v1 import inventory_pb2 as messages
from server import validation
from server.calls import Context, was_sent_before
from server.errors import refused
from server.intake import Answers, Intake
from server.metrics import Metrics
from server.resolving import Resolver
from server.stocks import StockReader
from server.streams import Answer, Lives, Pipeline, explain, sent
from server.wire import OUTCOMES, ResultEncoder
from sharding.outcomes import Answer as DeductionAnswer
from sharding.outcomes import Outcome, Reason, Resolution

_VALUES = frozenset((Outcome.DEDUCTED, Outcome.INSUFFICIENT_STOCK))
"""Outcomes that are values in a unary call."""

_FULL = DeductionAnswer(Outcome.OVERLOADED, reason=Reason.QUEUE_FULL)
_RESOLUTIONS: Mapping[Resolution, messages.ResolveRequestResponse.Resolution.ValueType] = {
    resolution: messages.ResolveRequestResponse.Resolution.Value(f"RESOLUTION_{resolution.name}")
    for resolution in Resolution
}


@dataclass(frozen=True, slots=True)
class InventoryService:
    """One method for each call of the contract, by its name in snake_case; those on orders are in
    server/orders.py, events in server/events.py."""

    intake: Intake
    reader: StockReader
    resolver: Resolver
    lives: Lives
    metrics: Metrics
    batches_max: int
    """Batches of one stream that are under way at the same time."""
    encoder: ResultEncoder

    def before_deduct(self) -> None:
        """RefusedError for what is not even to be parsed."""
        self.intake.admit()

    def before_batch_deduct(self) -> None:
        """RefusedError for what is not even to be parsed."""
        self.intake.admit()

    async def deduct(
        self, request: messages.DeductRequest, context: Context
    ) -> messages.DeductResponse:
        """One request; what is no value ends the call with a status."""
        wanted = validation.deduction(request, resent=was_sent_before(context))
        (answer,) = await self.intake.submit([wanted])
        if answer.outcome not in _VALUES:
            raise refused(answer)
        return messages.DeductResponse(
            outcome=OUTCOMES[answer.outcome],
            replayed=answer.replayed,
            shard=answer.shard,
            shard_available=answer.available,
        )

    async def batch_deduct(self, request: messages.BatchDeductRequest, context: Context) -> bytes:
        """Many requests in one call."""
        answer = self._submit(request.items, resent=was_sent_before(context))
        return await answer()

    async def stream_deduct(self, _requests: object, context: Context) -> None:
        """Many batches in one call."""
        resent = was_sent_before(context)

        async def read() -> Answer | None:
            request = await context.read()
            if request is aio.EOF:
                return None
            if not self.intake.has_room:
                return partial(self._overloaded, len(request.items))
            return self._submit(request.items, resent=resent)

        pipeline = Pipeline(self.lives, read, context.write, batches_max=self.batches_max)
        explain(context, await pipeline.run())

    async def resolve_request(
        self, request: messages.ResolveRequestRequest, _context: Context
    ) -> messages.ResolveRequestResponse:
        """Decide a request whose answer was lost."""
        validation.check(
            validation.at_least("product_id", request.product_id, 1),
            validation.request_id(request.request_id),
        )
        found = await self.resolver.resolve(request.product_id, request.request_id)
        return messages.ResolveRequestResponse(
            resolution=_RESOLUTIONS[found.resolution], quantity=found.quantity
        )

    async def get_stock(
        self, request: messages.GetStockRequest, _context: Context
    ) -> messages.GetStockResponse:
        """One product's counts."""
        validation.product_id(request.product_id)
        return messages.GetStockResponse(stock=await self.reader.read(request.product_id))

    async def batch_get_stock(
        self, request: messages.BatchGetStockRequest, _context: Context
    ) -> messages.BatchGetStockResponse:
        """Several products' counts, without those that are unknown."""
        validation.product_ids(request.product_ids)
        async with asyncio.TaskGroup() as group:
            reads = [
                group.create_task(self.reader.find(product_id))
                for product_id in request.product_ids
            ]
        stocks = (read.result() for read in reads)
        return messages.BatchGetStockResponse(stocks=filter(None, stocks))

    async def watch_stock(self, request: messages.WatchStockRequest, context: Context) -> None:
        """One product's counts at once, and whenever they have changed."""
        validation.product_id(request.product_id)
        interval_s = validation.watch_interval_s(request.interval_ms)
        async with self.lives.bounded() as life:
            told = None
            while True:
                stock = await self.reader.read(request.product_id)
                if stock != told:
                    await sent(context.write(messages.WatchStockResponse(stock=stock)))
                    told = stock
                await asyncio.sleep(interval_s)
        explain(context, life.ending)

    def _submit(self, items: Sequence[validation.DeductionFields], *, resent: bool) -> Answer:
        """Hand a batch to the stock now; the answer waits for it."""
        self.metrics.batch(len(items))
        deductions, invalid = validation.batch(items, resent=resent)
        if invalid:
            self.metrics.invalid(len(invalid))
        answers = self.intake.submit(deductions) if deductions else None
        return partial(self._encoded, answers, invalid)

    async def _overloaded(self, items: int) -> bytes:
        """A stream goes on: whoever sends on it would only come again with all that is under way."""
        answers = [_FULL] * items
        self.metrics.answers(answers)
        return self.encoder.results(answers, {})

    async def _encoded(self, answers: Answers | None, invalid: Mapping[int, str]) -> bytes:
        return self.encoder.results(await answers if answers else [], invalid)
