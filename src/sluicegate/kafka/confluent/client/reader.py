"""A client that reads partitions from given offsets, and is not a group member.

1. librdkafka stops fetching all partitions while a member gives up one of them. So the member reads
   nothing, and this client reads the member's partitions: the remaining ones are read without
   interruption.
2. `take` never blocks, so it is called from the loop. Calls that may block run in one thread, one
   at a time, and `take` is not called meanwhile.
3. A call in the thread may outlast the fetch that started it. Its messages are kept for the next
   fetch.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from .log_lines import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from concurrent.futures import Executor

    from ...._core.source import TopicPartition
    from .options import GroupOptions


class PartitionReader:
    """Reads partitions, each from its own offset."""

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
        """Topics whose leaders were requested here; librdkafka would request them up to 1 s later.
        """

    def _tell(self, error: KafkaError) -> None:
        """Report an error; called on the thread that reads."""
        self._loop.call_soon_threadsafe(self._failed, error)

    async def idle(self) -> None:
        """Suspend until no call is in the thread. Raises librdkafka's error of a read."""
        while (call := self._call) is not None:
            await asyncio.wait([call])
            if self._call is call:
                self._call = None
                self._kept += call.result()

    def kept(self) -> list[Any]:
        """Return the messages read by calls in the thread, each once."""
        kept, self._kept = self._kept, []
        return kept

    def take(self, most: int) -> list[Any]:
        """Return up to `most` available messages. Raises errors of librdkafka.

        Never suspends; call it only after `idle`.
        """
        return self._client.consume(most, 0.0)

    async def wait(self, seconds: float) -> None:
        """Suspend until messages are available, for at most `seconds`."""
        await self._in_thread(lambda: self._client.consume(1, seconds))

    async def place(
        self, removed: Collection[TopicPartition], placed: Mapping[TopicPartition, int]
    ) -> None:
        """Stop reading the removed partitions; read the others from these offsets.

        Suspends until the change is complete: later messages all follow it.
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
        """Stop reading all partitions."""

        def change() -> list[Any]:
            self._client.unassign()
            return []

        await self._in_thread(change)

    async def _in_thread(self, work: Callable[[], list[Any]]) -> None:
        await self.idle()
        self._call = self._loop.run_in_executor(self._threads, work)
        await self.idle()

    async def close(self) -> None:
        """Close the client. Suspends until it is closed."""
        try:
            await self.idle()
        except KafkaException:
            pass  # an error of a read; if it persists, the next session reports it
        await self._loop.run_in_executor(self._threads, self._client.close)
