"""The loads that rows are measured with; product and time are filled in when one is used."""

from tests.bench.load import BATCH, STREAM, UNARY, LoadPlan

BATCH_ITEMS = 500
UNARY_IN_FLIGHT, BATCHES_IN_FLIGHT, MESSAGES_IN_FLIGHT = 64, 16, 8
CHANNELS, STREAMS = 4, 2


def _plan(shape: str, *, size: int, in_flight: int, channels: int) -> LoadPlan:
    return LoadPlan(
        target="",
        shape=shape,
        product_id=0,
        size=size,
        in_flight=in_flight,
        channels=channels,
        warm_up_s=0,
        seconds=0,
    )


SINGLES = _plan(UNARY, size=1, in_flight=UNARY_IN_FLIGHT, channels=CHANNELS)
MESSAGES = _plan(STREAM, size=1, in_flight=UNARY_IN_FLIGHT // STREAMS, channels=STREAMS)
BATCHES = _plan(BATCH, size=BATCH_ITEMS, in_flight=BATCHES_IN_FLIGHT, channels=CHANNELS)
STREAMED = _plan(STREAM, size=BATCH_ITEMS, in_flight=MESSAGES_IN_FLIGHT, channels=STREAMS)
