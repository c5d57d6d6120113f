"""The MySQL servers of one ledger, in the order of the setting: each product belongs to one of them."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
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
        self,
        read: Callable[[T, int], Awaitable[Sequence[R]]],
        *,
        after: int,
        limit: int,
        product_id: int = 0,
    ) -> Sequence[R]:
        """The next rows of all servers by number, or of a product's, with their numbers as their ids.

        `read` gives a server's next `limit` rows above an own id, by id.
        """
        places = self._places(product_id)
        asked = [read(self.all[place.index], place.last_up_to(after)) for place in places]
        return _merged(places, await together(asked))[:limit]

    async def page_back(
        self,
        read: Callable[[T, int], Awaitable[Sequence[R]]],
        *,
        before: int,
        limit: int,
        product_id: int = 0,
    ) -> Sequence[R]:
        """The same from a number down; 0: from the newest. `read` takes the own id in the same way."""
        places = [
            place
            for place in self._places(product_id)
            if not before or place.last_up_to(before - 1) >= 0
        ]
        asked = [
            read(self.all[place.index], place.last_up_to(before - 1) + 1 if before else 0)
            for place in places
        ]
        return _merged(places, await together(asked))[::-1][:limit]

    def _places(self, product_id: int) -> Sequence[Place]:
        count = len(self.all)
        indexes = [ledger_of(product_id, count)] if product_id else range(count)
        return [Place(index, count) for index in indexes]


def _merged(places: Sequence[Place], pages: Sequence[Sequence[R]]) -> list[R]:
    rows = [
        replace(row, id=place.number(row.id))
        for place, page in zip(places, pages, strict=True)
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
