"""All rows of a list that the ledger gives page by page."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

PAGE = 1_000

Row = TypeVar("Row")
Row_co = TypeVar("Row_co", covariant=True)


class ReadPage(Protocol[Row_co]):
    """Reads rows with greater ids than `after`, by id."""

    def __call__(self, *, after: int, limit: int) -> Awaitable[Sequence[Row_co]]: ...


async def pages(read: ReadPage[Row], id_of: Callable[[Row], int]) -> AsyncIterator[Sequence[Row]]:
    """Page after page until one is not full. Whatever `read` raises."""
    after = 0
    while True:
        page = await read(after=after, limit=PAGE)
        yield page
        if len(page) < PAGE:
            return
        after = id_of(page[-1])
