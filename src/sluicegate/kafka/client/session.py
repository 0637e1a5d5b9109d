"""One group membership through aiokafka.

1. aiokafka's `commit` retries, possibly in a later generation; here a commit is one request, in the
   generation that is current when it is sent.
2. aiokafka's `getmany` waits for the end of a rebalance, regardless of its timeout, and may return
   records of the next assignment. `take` calls it only while nothing is being reassigned, so it
   never suspends; `wait` is a separate call.
3. aiokafka's `stop` may hang, and may raise a foreign cancellation. `stop` here has a deadline.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from aiokafka import ConsumerRebalanceListener
from aiokafka import TopicPartition as ClientPartition
from aiokafka.errors import KafkaConnectionError, KafkaError

from ..._core.errors import ConfigError
from ..._core.logs import log_safely
from ..._core.runtime.threads import close_within
from ..._core.source import TopicPartition, UndecodableRecord
from .internals import (
    MemberConsumer,
    MemberInternals,
    close_client,
    decode_singly,
    end_task,
    is_undecodable,
    refusal_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from ..._core.source import SourceRecord
    from .options import MemberOptions

logger = logging.getLogger("sluicegate.kafka")

NOWHERE = ClientPartition("sluicegate-no-topic", 0)
"""A request for no partitions returns all of them, so this requests a nonexistent one."""
FORCED = 1.0
"""Time limit in seconds for each part of the client, if it has not ended by itself."""


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Forwards aiokafka's two callbacks."""

    def __init__(
        self,
        revoked: Callable[[], Awaitable[None]],
        assigned: Callable[[Collection[TopicPartition]], None],
    ) -> None:
        self._revoked = revoked
        self._assigned = assigned

    async def on_partitions_revoked(  # pyright: ignore[reportIncompatibleMethodOverride]  # awaited
        self, revoked: object
    ) -> None:
        """A rebalance begins."""
        await self._revoked()

    async def on_partitions_assigned(  # pyright: ignore[reportIncompatibleMethodOverride]  # awaited
        self, assigned: Iterable[tuple[str, int]]
    ) -> None:
        """A rebalance has ended."""
        self._assigned([TopicPartition(*each) for each in assigned])


class Undecodable(Exception):  # never leaves the source
    """aiokafka cannot decode a record that has arrived; see `Session.take_singly`."""


class Session(MemberInternals):
    """An `AIOKafkaConsumer` from start to stop. Can be used once, on one loop."""

    def __init__(self, options: MemberOptions) -> None:
        super().__init__(MemberConsumer(**options.arguments()))
        self._group = options.group

    @classmethod
    def of(cls, options: MemberOptions) -> Session:
        """Create a session, not started. Raises `ConfigError` if aiokafka refuses its options."""
        try:
            return cls(options)
        except (TypeError, ValueError, AssertionError) as error:
            raise ConfigError(f"AIOKafkaConsumer refuses its options: {error}") from error

    async def start(self, within: float) -> None:
        """Connect. On aiokafka errors, closes everything and raises them.

        A cancellation takes effect only after the connection has succeeded or failed, or after
        `within` seconds, since aiokafka would leave its connections open.
        """
        starting = asyncio.ensure_future(self._connect())
        try:
            await asyncio.shield(starting)
            self._begin()
        except BaseException:
            await end_task(starting, within)
            await close_client(self._client.stop(), within)
            raise

    async def _connect(self) -> None:
        try:
            await self._client.start()
        except KafkaConnectionError as error:
            if (refusal := await refusal_of(self._client.connections)) is not None:
                raise refusal from error
            raise

    def subscribe(self, topics: Sequence[str], pattern: str | None, listener: Listener) -> None:
        """Join the group for these topics, or those that match; the listener gets the events."""
        self._client.subscribe(topics, pattern=pattern, listener=listener)

    def topics(self) -> Collection[str]:
        """Return the subscribed topics, or those that match the pattern."""
        topics: Collection[str] = self._client.subscription()
        return topics

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions of these topics that a broker has reported."""
        return [
            TopicPartition(topic, partition)
            for topic in self.topics()
            for partition in self._client.partitions_for_topic(topic) or ()
        ]

    def unknown(self, topics: Iterable[str]) -> list[str]:
        """Return the topics that no broker has reported."""
        return [each for each in topics if not self._client.partitions_for_topic(each)]

    async def keep_alive(self) -> None:
        """Signal activity to the group. Raises the pending error of coordination."""
        if not self._is_reassigning:
            await self._client.getmany(NOWHERE, timeout_ms=0)

    # -- records -----------------------------------------------------------------------------------

    async def take(self, partition: TopicPartition, most: int) -> Sequence[SourceRecord]:
        """Return up to `most` fetched records of a partition. Raises its error, and `Undecodable` if
        aiokafka cannot decode one of the records; never suspends.
        """
        if self._is_reassigning:
            return ()
        key = ClientPartition(*partition)
        taken: dict[Any, Sequence[SourceRecord]]
        try:
            with self._without_others(key):
                taken = await self._client.getmany(key, timeout_ms=0, max_records=most)
        except Exception as error:
            if is_undecodable(error):
                raise Undecodable from error
            raise
        return taken.get(key, ())

    async def take_singly(
        self, partition: TopicPartition, offset: int, most: int
    ) -> tuple[Sequence[SourceRecord], int]:
        """Return up to `most` records from an offset on, each decoded by itself, and the next
        offset. Raises aiokafka errors.

        Suspends until a broker has answered, and leaves the position unchanged.
        """
        key = ClientPartition(*partition)
        records, errors, reached = await decode_singly(self._client, key, offset, most)
        return [
            each
            if each.offset not in errors
            else UndecodableRecord(
                *partition,
                each.offset,
                each.key,
                each.value,
                timestamp=each.timestamp,
                error=errors[each.offset],
            )
            for each in records
        ], reached

    def position(self, partition: TopicPartition) -> int | None:
        """Return the next offset to take; `None` while it is unknown or not assigned."""
        state = self._state(partition)
        return state.position if state is not None and state.has_valid_position else None

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at this offset; no effect on a partition that is not assigned."""
        if self._state(partition) is not None:
            self._client.seek(ClientPartition(*partition), offset)

    def pause(self, partition: TopicPartition) -> None:
        """Stop fetching this partition until its next assignment; no effect if not assigned."""
        if self._state(partition) is not None:
            self._client.pause(ClientPartition(*partition))

    # -- offsets -----------------------------------------------------------------------------------

    async def beginnings(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first retained offsets. Raises aiokafka errors."""
        return _ours(await self._client.beginning_offsets(_theirs(partitions)))

    async def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets after the last readable records. Raises aiokafka errors."""
        return _ours(await self._client.end_offsets(_theirs(partitions)))

    async def offsets_at(
        self, partitions: Collection[TopicPartition], milliseconds: int
    ) -> dict[TopicPartition, int]:
        """Return the first offsets at or after this time, if there are any.

        Raises aiokafka errors.
        """
        found = await self._client.offsets_for_times(
            dict.fromkeys(_theirs(partitions), milliseconds)
        )
        return _ours({key: at.offset for key, at in found.items() if at is not None})

    def known_end(self, partition: TopicPartition) -> int | None:
        """Return the offset after the last record, as of the last fetch."""
        state = self._state(partition)
        return None if state is None else state.highwater

    def answered_at(self, partition: TopicPartition) -> int | None:
        """Return the time of the last successful fetch of this partition, in the client's ms."""
        state = self._state(partition)
        return None if state is None else state.timestamp

    # -- the end -----------------------------------------------------------------------------------

    async def stop(self, within: float) -> None:
        """Leave the group and close, within `within` seconds. Idempotent.

        After that time, closes without leaving, in at most three times `FORCED`.
        """
        within = close_within(within)
        stopping = asyncio.ensure_future(self._client.stop())
        done, _ = await asyncio.wait([stopping], timeout=within)
        if done and not stopping.cancelled() and stopping.exception() is None:
            return
        log_safely(
            logger,
            logging.WARNING,
            "%s: the client did not leave the group in %.3g s; the group waits until its session "
            "expires",
            self._group,
            within,
        )
        stopping.cancel()
        if self._has_started:
            self._client.connections.cut()
        await end_task(stopping, FORCED)
        if self._has_started:
            await self._close_parts(FORCED)


def _theirs(partitions: Iterable[TopicPartition]) -> list[Any]:
    return [ClientPartition(*each) for each in partitions]


def _ours(offsets: Mapping[Any, int]) -> dict[TopicPartition, int]:
    return {TopicPartition(*key): offset for key, offset in offsets.items()}


__all__ = ["KafkaError", "Listener", "Session"]
