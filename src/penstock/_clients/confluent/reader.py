"""A client that reads partitions from given offsets, and is no member of the group.

1. librdkafka stops the fetching of all partitions while a member gives one of them up. Here a member
   reads nothing, and this client reads what it owns: partitions that stay are read on.
2. `take` never blocks, so it is called from the loop. Anything that may block runs in one thread,
   one call at a time, and `take` is not called meanwhile.
3. A call in the thread outlives the fetch that began it. What it has read is kept for the next one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from concurrent.futures import Executor

    from ..._core.source import TopicPartition
    from .options import GroupOptions

LOGGER = logging.getLogger("librdkafka")


class PartitionReader:
    """Partitions that are read, each from its offset on."""

    def __init__(
        self, options: GroupOptions, threads: Executor, failed: Callable[[KafkaError], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._failed = failed
        self._threads = threads
        self._client = Consumer({**options.of_reader(), "error_cb": self._tell, "logger": LOGGER})
        self._call: asyncio.Future[list[Any]] | None = None
        self._kept: list[Any] = []
        self._within = options.commit_timeout
        self._known: set[str] = set()
        """The topics whose leaders have been asked for; librdkafka asks up to 1 s later."""

    def _tell(self, error: KafkaError) -> None:
        """Called from whichever thread reads."""
        self._loop.call_soon_threadsafe(self._failed, error)

    async def idle(self) -> None:
        """Suspend until no call is in the thread. Raises the error of librdkafka of a read."""
        while (call := self._call) is not None:
            await asyncio.wait([call])
            if self._call is call:
                self._call = None
                self._kept += call.result()

    def kept(self) -> list[Any]:
        """The messages that calls in the thread have read; each once."""
        kept, self._kept = self._kept, []
        return kept

    def take(self, most: int) -> list[Any]:
        """The next messages that are there, at most so many. Raises the error of librdkafka.

        Never suspends; called only after `idle`.
        """
        return self._client.consume(most, 0.0)

    async def wait(self, seconds: float) -> None:
        """Suspend until something can be taken, for so many seconds at most."""
        await self._in_thread(lambda: self._client.consume(1, seconds))

    async def place(
        self, removed: Collection[TopicPartition], placed: Mapping[TopicPartition, int]
    ) -> None:
        """Read no more of some partitions, and others from these offsets on.

        Suspends until that holds: nothing that is taken later is from before.
        """

        def change() -> list[Any]:
            if removed:
                self._client.incremental_unassign([ClientPartition(*each) for each in removed])
            for topic in {each.topic for each in placed} - self._known:
                self._client.list_topics(topic, self._within)
                self._known.add(topic)
            if placed:
                wanted = [ClientPartition(*each, offset) for each, offset in placed.items()]
                self._client.incremental_assign(wanted)
            return []

        await self._in_thread(change)

    async def clear(self) -> None:
        """Read nothing any more."""

        def change() -> list[Any]:
            self._client.unassign()
            return []

        await self._in_thread(change)

    async def _in_thread(self, work: Callable[[], list[Any]]) -> None:
        await self.idle()
        self._call = self._loop.run_in_executor(self._threads, work)
        await self.idle()

    async def close(self) -> None:
        """Close the client. Suspends until that is done."""
        try:
            await self.idle()
        except KafkaException:
            pass  # of a read; it is told in the next session, if it lasts
        await self._loop.run_in_executor(self._threads, self._client.close)
