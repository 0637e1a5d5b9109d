"""A park store in memory."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .._core.park_store import ParkedRecord


class MemoryParkStore:
    """A store of parked records for tests.

    **A restart loses the parked records**: the consumer's position has passed them, so they are not
    delivered again. A consumer with this store logs a warning. Share one store between consumers of
    one event loop to test a restart.
    """

    is_durable = False

    def __init__(self) -> None:
        self._groups: defaultdict[str, dict[str, dict[str, ParkedRecord]]] = defaultdict(dict)
        """Group, key and coordinates; a key without records is absent."""

    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        """Append records to a key's queue; records already in it stay unchanged. Never suspends."""
        if records:
            queue = self._groups[group].setdefault(key, {})
            for record in records:
                queue.setdefault(record.coordinates, record)

    async def keys(self, group: str) -> frozenset[str]:
        """Return the keys with parked records."""
        return frozenset(self._groups[group])

    async def first(self, group: str, key: str, most: int) -> Sequence[ParkedRecord]:
        """Return the first `most` records of a key's queue."""
        return [*islice(self._groups[group].get(key, {}).values(), most)]

    async def remove(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        """Remove records from a key's queue; records not in it are ignored."""
        queue = self._groups[group].get(key, {})
        for record in records:
            queue.pop(record.coordinates, None)
        if not queue:
            self._groups[group].pop(key, None)

    async def counts(self, group: str) -> Mapping[str, int]:
        """Return the number of parked records by key."""
        return {key: len(queue) for key, queue in self._groups[group].items()}

    def __repr__(self) -> str:
        return "MemoryParkStore()"
