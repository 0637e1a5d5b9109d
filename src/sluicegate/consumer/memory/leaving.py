"""The claims of a memory source whose positions are in a store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..._core.runtime.cuts import end_if_cut

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ..._core.clock import Clock
    from ..._core.source import Position, PositionStore, TopicPartition

RETRY_AFTER = 0.5
"""Delay in seconds before another attempt after an error of the store."""


class LeftPositions:
    """Takes over partitions in the store, then begins their claims."""

    def __init__(
        self,
        store: PositionStore,
        clock: Clock,
        begin: Callable[[Mapping[TopicPartition, Position]], None],
        report: Callable[[str | None], None],
    ) -> None:
        self.store = store
        self._clock = clock
        self._begin = begin
        self._report = report
        self._taking: dict[TopicPartition, asyncio.Task[None]] = {}

    def take(
        self, wanted: Sequence[TopicPartition], start: Callable[[TopicPartition], Position]
    ) -> None:
        """Begin claims of these partitions, at `start` if the store has no position."""
        task = asyncio.get_running_loop().create_task(self._take(wanted, start))
        self._taking.update(dict.fromkeys(wanted, task))

    async def _take(
        self, wanted: Sequence[TopicPartition], start: Callable[[TopicPartition], Position]
    ) -> None:
        while True:
            try:
                known = await self.store.take(wanted)
            except Exception as error:  # like an error of a broker: reported, and tried again
                end_if_cut(error)
                self._report(str(error))
                await self._clock.sleep(RETRY_AFTER)
            else:
                break
        self._report(None)
        me = asyncio.current_task()
        mine = [each for each in wanted if self._taking.get(each) is me]
        for each in mine:
            del self._taking[each]
        self._begin({each: known[each] if each in known else start(each) for each in mine})

    @property
    def pending(self) -> list[TopicPartition]:
        """The partitions whose claims have not begun."""
        return list(self._taking)

    def end(self, partitions: Collection[TopicPartition]) -> None:
        """Forget these partitions, whether or not their claims have begun."""
        for each in partitions:
            task = self._taking.pop(each, None)
            if task is not None and task not in self._taking.values():
                task.cancel()
        self.store.release(partitions)
