"""What metrics pages say."""

import asyncio
import re
from collections.abc import Mapping
from urllib.request import urlopen

READ_WITHIN_S = 5.0


async def figures(address: str, name: str) -> Mapping[str, float]:
    """The figures of one name at `host:port`, by their labels. OSError."""
    page = await asyncio.to_thread(_page, address)
    found = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", page, flags=re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def _page(address: str) -> str:
    with urlopen(f"http://{address}/metrics", timeout=READ_WITHIN_S) as reply:
        return str(reply.read().decode())
