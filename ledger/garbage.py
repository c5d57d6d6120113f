"""How often a process looks for garbage in cycles."""

import gc

GROWTH = 100_000
"""Objects made and not dropped between two looks. Python's 700 are what a hundred requests consist of:
while thousands wait, each look goes through all of them, for garbage that hardly ever is there."""


def look_rarely() -> None:
    """To be called once, when all is imported: look again only after much has been made, and not at what
    is there now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GROWTH)
