"""Which partitions are on a node without a replica, so that nobody waits for one: degraded ones.

What counts is the generation that a reply names, never what was believed when the call was sent.
"""

_IN_DOUBT = 0
"""Stands for a generation; those of partitions count from 1."""


class Alone:
    """What one process knows of it. A partition in doubt is asked before its next call is sent."""

    def __init__(self) -> None:
        self._generations: dict[int, int] = {}
        """Of each partition that does not wait, the only generation in which it need not."""

    def __contains__(self, partition: int) -> bool:
        """Whether it is degraded or in doubt; asked for every call."""
        return partition in self._generations

    def is_in_doubt(self, partition: int) -> bool:
        return self._generations.get(partition) == _IN_DOUBT

    def doubt(self, partition: int) -> None:
        """Something has happened that may have another generation follow."""
        self._generations[partition] = _IN_DOUBT

    def note_degraded(self, partition: int, generation: int) -> None:
        """In this generation nobody waits."""
        self._generations[partition] = generation

    def note_replicated(self, partition: int) -> None:
        """Replicas are waited for."""
        self._generations.pop(partition, None)

    def counts(self, partition: int, named: list[object]) -> bool:
        """Whether a reply that waited for no replica is an answer. `named`: what it names, first the
        generation, or nothing because nothing was done. One of another generation is none, and from
        here on the partition is in doubt."""
        if not named or named[0] == self._generations.get(partition):
            return True
        self.doubt(partition)
        return False
