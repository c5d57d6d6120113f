"""Orders, sold at once or held and then paid for, next to single deductions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.bench.figures import Topic
from tests.bench.load import PAY, SELL
from tests.bench.products import ORDERED
from tests.bench.service import Measure, Service
from tests.bench.shapes import SINGLES

LINES = (1, 3)
SHAPES = {"DeductOrder": SELL, "Reserve, then Confirm": PAY}


@dataclass(frozen=True, slots=True)
class Orders:
    """As many orders under way as single deductions in the row that they are compared with."""

    service: Service
    baseline: str

    def topics(self) -> Sequence[tuple[Topic, Measure]]:
        """One for each way to buy and number of lines, each line of another product."""
        return [
            (
                Topic(name=name_of(call, lines), what="orders", baselines=(self.baseline,)),
                self.service.serve(
                    replace(SINGLES, shape=shape, product_id=ORDERED.start, lines=lines)
                ),
            )
            for call, shape in SHAPES.items()
            for lines in LINES
        ]


def name_of(call: str, lines: int) -> str:
    """The name of a row."""
    return f"{call}, {lines} {'line' if lines == 1 else 'lines'}"
