"""Which tests one process runs where several share the suite (`make test`)."""

from xdist.scheduler import LoadScopeScheduling

BUSY = ("tests/acceptance/", "tests/bench/", "tests/chaos/")
"""These run whole services under load; two of them at once would be too much for a small machine."""
ALONE = ("tests/mutations/test_mutations.py", "tests/simulation/test_simulation.py")
"""Long files whose tests share nothing, so that each may run anywhere."""
SEEDS = (
    "test_every_promise_is_kept_whatever_the_network_does",
    "test_what_is_rare_is_played",
)
"""These share the simulations that were played."""


def group_of(test: str) -> str:
    """What a test is to be run together with; by default the rest of its file."""
    file, _, name = test.partition("::")
    if file.startswith(BUSY):
        return "busy"
    if file not in ALONE:
        return file
    return SEEDS[0] if name.startswith(SEEDS) else test


class ByGroup(LoadScopeScheduling):
    """Hands out groups in the order of the run."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
