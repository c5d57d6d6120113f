"""The MySQL servers of one ledger, in the order of the setting: each product belongs to one of them."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from sharding.placement import ledger_of

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Place:
    """Which of how many servers one is, from 0 on."""

    index: int
    count: int

    def number(self, own: int) -> int:
        """What callers know a row's own id by: no other server has a row of that number."""
        return own * self.count + self.index

    def last_up_to(self, number: int) -> int:
        """The greatest own id whose number is not above this one; -1 where even 0 is above it."""
        return (number - self.index) // self.count


ALONE = Place(0, 1)


class Numbered(Protocol):
    """A row with an id."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def id(self) -> int: ...


R = TypeVar("R", bound=Numbered)


class PerServer(Generic[T]):
    """One of a kind for each server."""

    def __init__(self, parts: Sequence[T]) -> None:
        self.all = tuple(parts)

    def __len__(self) -> int:
        return len(self.all)

    def of(self, product_id: int) -> T:
        """That of the server that keeps a product."""
        return self.all[ledger_of(product_id, len(self.all))]

    def numbered(self, number: int) -> tuple[T, int]:
        """That of the server that has a row of this number, and the row's own id there."""
        own, index = divmod(number, len(self.all))
        return self.all[index], own

    def each(self, make: Callable[[T], U]) -> "PerServer[U]":
        """The same of another kind, made of these."""
        return PerServer([make(part) for part in self.all])

    def by_server(self, product_ids: Collection[int]) -> Sequence[tuple[T, Sequence[int]]]:
        """Each server that has some of these products, and which; in the order of the servers."""
        found: dict[int, list[int]] = {}
        for product_id in product_ids:
            found.setdefault(ledger_of(product_id, len(self.all)), []).append(product_id)
        return [(self.all[index], found[index]) for index in sorted(found)]

    async def from_all(self, ask: Callable[[T], Awaitable[U]]) -> list[U]:
        """What each server answers, asked at the same time; the first failure is raised as it is."""
        return await together([ask(part) for part in self.all])

    async def page(
        self, read: Callable[[T, int], Awaitable[Sequence[R]]], *, after: int, limit: int
    ) -> Sequence[R]:
        """The next rows of all servers by number, with their numbers as their ids.

        `read` gives a server's next `limit` rows above an own id, by id.
        """
        pages = await together(
            [read(part, place.last_up_to(after)) for part, place in self._placed()]
        )
        return self._merged(pages)[:limit]

    async def page_back(
        self, read: Callable[[T, int], Awaitable[Sequence[R]]], *, before: int, limit: int
    ) -> Sequence[R]:
        """The same from the greatest number down; `read` gives a server's rows below an own id."""
        pages = await together(
            [read(part, place.last_up_to(before - 1) + 1) for part, place in self._placed()]
        )
        return self._merged(pages)[::-1][:limit]

    def _placed(self) -> Iterator[tuple[T, Place]]:
        for index, part in enumerate(self.all):
            yield part, Place(index, len(self.all))

    def _merged(self, pages: Sequence[Sequence[R]]) -> list[R]:
        rows = [
            replace(row, id=place.number(row.id))
            for (_, place), page in zip(self._placed(), pages, strict=True)
            for row in page
        ]
        return sorted(rows, key=lambda row: row.id)


async def together(asked: Sequence[Awaitable[U]]) -> list[U]:
    """All answers, in their order; the first failure ends the others and is raised as it is."""
    if len(asked) == 1:
        return [await asked[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_awaited(each)) for each in asked]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


async def _awaited(asked: Awaitable[U]) -> U:
    return await asked
