"""A park store that outlives the consumers of a test."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sluicegate.consumer import MemoryParkStore, ParkedRecord, Poison

if TYPE_CHECKING:
    from collections.abc import Sequence


class DurableParkStore(MemoryParkStore):
    """A store that outlives the consumers of a test and can be unavailable."""

    is_durable = True

    def __init__(self) -> None:
        super().__init__()
        self.is_down = False
        self.gates: dict[str, asyncio.Event] = {}
        """Gates that calls of these methods wait for."""
        self.calls: list[str] = []

    async def _call(self, what: str) -> None:
        self.calls.append(what)
        if what in self.gates:
            await self.gates[what].wait()
        if self.is_down:
            raise ConnectionError("the store is down")

    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        await self._call("park")
        await super().park(group, key, records)

    async def keys(self, group: str) -> frozenset[str]:
        await self._call("keys")
        return await super().keys(group)

    async def first(self, group: str, key: str, most: int) -> Sequence[ParkedRecord]:
        await self._call("first")
        return await super().first(group, key, most)

    async def remove(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        await self._call("remove")
        await super().remove(group, key, records)

    def offsets(self, key: str = "a", scope: str = "t/0 ", group: str = "billing") -> list[int]:
        """The parked offsets of a key, in order."""
        queue = self._groups[group].get(f"{scope}{key}", {})
        return [record.offset for record in queue.values()]


def parking(store: DurableParkStore, dead_letters: Any = None, **options: Any) -> dict[str, Any]:
    """Options of a consumer that parks keys in this store."""
    return {
        "name": "billing",
        "poison": Poison(parked=store, dead_letters=dead_letters),
        **options,
    }
