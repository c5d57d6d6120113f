"""How often a server process looks for garbage in cycles. A worker does as Python does: nothing waits
there by the thousand, and what a failed round holds until it is found are whole batches of events."""

import gc

MADE = 100_000
"""Objects made and not dropped between two looks. Python's 700 are what a hundred requests consist of:
while thousands wait, each look goes through all of them, for garbage that hardly ever is there."""
LOOKS = 3
"""So many looks at what is young go with one at what has outlived some. Python's 10 would let what was
waiting for long, and then failed, lie for ten million objects."""


def look_rarely() -> None:
    """To be called once, when all is imported: look again only after much has been made, and not at what
    is there now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(MADE, LOOKS, LOOKS)
