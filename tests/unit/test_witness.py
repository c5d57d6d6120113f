"""What a process says of the last event that it saw of a partition."""

import asyncio

from sharding.errors import StockUnavailableError
from sharding.events import EventId
from sharding.outcomes import Reason
from sharding.witness import Witness
from tests.waiting import eventually

FIRST, SECOND = EventId(1, 1), EventId(1, 2)


async def test_what_is_seen_while_a_word_is_on_its_way_is_said_behind_it_and_nothing_twice() -> (
    None
):
    said: list[EventId] = []
    may_go_on = asyncio.Event()

    async def tell(_: int, seen: EventId) -> None:
        await may_go_on.wait()
        said.append(seen)

    witness = Witness(tell)
    witness.tell(3, FIRST)
    await asyncio.sleep(0)
    for _ in range(2):
        witness.tell(3, SECOND)
    may_go_on.set()
    await eventually(lambda: said == [FIRST, SECOND])
    witness.tell(3, FIRST)
    await witness.close()
    assert said == [FIRST, SECOND]


async def test_what_is_seen_in_the_very_moment_when_a_word_was_said_is_said_as_well() -> None:
    said: list[EventId] = []
    loop = asyncio.get_running_loop()

    async def tell(_: int, seen: EventId) -> None:
        said.append(seen)
        # Comes between the end of the task and whoever waits for that.
        loop.call_soon(loop.call_soon, witness.tell, 3, SECOND)
        loop.call_soon(witness.tell, 3, SECOND)

    witness = Witness(tell)
    witness.tell(3, FIRST)
    await eventually(lambda: said == [FIRST, SECOND])
    await witness.close()


async def test_another_node_that_has_the_partition_is_told_as_well() -> None:
    said: list[EventId] = []

    async def tell(_: int, seen: EventId) -> None:
        said.append(seen)

    witness = Witness(tell)
    for _ in range(2):
        witness.tell(3, FIRST)
        await eventually(lambda: not witness._telling)
    witness.forget(3)
    witness.tell(3, FIRST)
    await eventually(lambda: not witness._telling)
    assert said == [FIRST, FIRST]


async def test_what_could_not_be_said_is_said_another_time() -> None:
    tries = 0

    async def tell(_: int, seen: EventId) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise StockUnavailableError(Reason.NOT_EXECUTED, "away")

    witness = Witness(tell)
    for expected in (1, 2, 2):
        witness.tell(3, FIRST)
        await asyncio.gather(*witness._telling.values())
        assert tries == expected
