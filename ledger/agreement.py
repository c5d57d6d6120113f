"""Whether the MySQL servers are those that this process takes them for."""

import asyncio

from ledger.checkpoints import Checkpoints
from ledger.database import Database
from ledger.errors import LedgerError, PartitionsDifferError, ServersDifferError
from ledger.migrate import require_schema
from ledger.servers import PerServer, together

ANSWER_S = 3.0
"""How long a server may take to answer before somebody goes on without it."""


class Agreement:
    """Compares tables, partition count and order of the servers with this process's settings."""

    def __init__(self, databases: PerServer[Database], *, partitions: int) -> None:
        self._databases = databases.all
        self._partitions = partitions

    async def confirm(self, index: int) -> None:
        """Make sure of one server, and record what it is when it has never been used.

        SchemaError, EngineDiffersError, PartitionsDifferError, ServersDifferError: it is another one,
        and stays so.
        """
        await require_schema(self._databases[index])
        if not await self._is_recorded(index):
            await self._require_others(index)
        await Checkpoints(self._databases[index]).prepare(self._partitions)

    async def _require_others(self, index: int) -> None:
        """What a new server is told to be it is for ever, so those are asked first that know."""
        others = [each for each in range(len(self._databases)) if each != index]
        await together([self._require_if_it_answers(each) for each in others])

    async def _require_if_it_answers(self, index: int) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._is_recorded(index)
        except (PartitionsDifferError, ServersDifferError):
            raise
        except (LedgerError, TimeoutError):
            pass  # its turn comes by itself

    async def _is_recorded(self, index: int) -> bool:
        return await Checkpoints(self._databases[index]).is_recorded(self._partitions)
