"""A group member on `AIOConsumer`, which owns partitions but does not read them.

1. No partition is ever assigned within librdkafka, so it fetches nothing and has nothing to stop;
   for the group, the partitions still belong to this member.
2. A revoke lasts as long as its listener. Other calls in that time, such as commits of the
   remaining partitions, run in the context of the revoke, since librdkafka then accepts no others.
3. Polls and other calls alternate, since librdkafka serves one at a time. The positions of a commit
   are determined when its turn begins, without another wait.
4. Callbacks reach the listener on the loop's thread.
5. A commit is sent without waiting, and its answer arrives with a poll: without an answer of a
   broker, librdkafka holds a commit for up to a session timeout, during which it could not poll. At
   most one commit is in flight. Within a revoke nothing is polled, so a commit waits there.
6. The client appends a NUL to metadata when writing, and removes it when reading.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.aio import AIOConsumer

from ..._core.clock import LOOP_CLOCK, Signal, wait_until
from ..._core.source import Position, TopicPartition
from .errors import LOGGER, is_rebalanced

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Executor

    from .options import ConfluentOptions

T = TypeVar("T")

POLL = 0.05
"""Duration of a poll in seconds; other calls wait at most this long."""
UNKNOWN_EPOCH = -1
_EARLIEST, _LATEST = -2, -1
"""Special timestamps for the two ends of a log."""


class CommitAnswer(NamedTuple):
    """The answer to a commit."""

    error: KafkaError | None
    partitions: Sequence[Any]


class EpochPosition(NamedTuple):
    """A position, and the epoch of the leader that stored the record before it."""

    position: Position
    epoch: int = UNKNOWN_EPOCH


class GroupListener(Protocol):
    """Receives the events of a member, on the loop's thread."""

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions were assigned to the member."""

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are being revoked; the member owns them until this returns."""

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are lost; others may already own them."""

    def on_error(self, error: KafkaError, topic: str | None) -> None:
        """An error has occurred, for this topic or for all."""


class GroupMember:
    """One membership, from subscribing to leaving. Used once, on one loop."""

    def __init__(
        self, options: ConfluentOptions, threads: Executor, listener: GroupListener
    ) -> None:
        self._options = options
        self._listener = listener
        given = {
            **options.of_member(),
            "error_cb": self._on_error,
            "on_commit": self._on_commit,
            "logger": LOGGER,
        }
        self._client: Any = AIOConsumer(given, executor=threads)
        self._turn = Signal()
        self._is_polling = self._is_leaving = False
        self._calls = self._ended_calls = 0
        self._commits = asyncio.Lock()
        self._sent: asyncio.Future[CommitAnswer] | None = None
        """The future answer to the commit in flight."""
        self._inside: contextvars.Context | None = None
        """The context of a running revoke."""

    # -- membership --------------------------------------------------------------------------------

    async def run(self, topics: Sequence[str]) -> None:
        """Join the group for these topics, until `leave`. Raises fatal librdkafka errors."""
        await self._client.subscribe(
            list(topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )
        while not self._is_leaving:
            ahead = self._ended_calls + self._calls
            while self._ended_calls < ahead:
                await wait_until(LOOP_CLOCK, math.inf, self._turn)
            self._is_polling = True
            try:
                message = await self._client.poll(POLL)
            finally:
                self._is_polling = False
                self._turn.fire()
            if message is not None and (error := message.error()) is not None:
                self._listener.on_error(error, message.topic())

    async def listen(self) -> None:
        """Report errors that occurred before `run`, which reports later ones."""
        await self._call(lambda: self._client.poll(0))

    def leave(self) -> None:
        """Make `run` end after its current poll."""
        self._is_leaving = True

    async def close(self) -> None:
        """Leave the group and close, after `run`. Suspends until closed."""
        await self._client.close()

    async def _on_assign(self, _: Any, partitions: Sequence[Any]) -> None:
        await self._client.incremental_assign([])
        self._listener.on_assigned(_ours(partitions))

    async def _on_revoke(self, _: Any, partitions: Sequence[Any]) -> None:
        self._inside = contextvars.copy_context()
        self._turn.fire()
        try:
            await self._listener.on_revoked(_ours(partitions))
        finally:
            self._inside = None
            await self._client.incremental_unassign([])

    async def _on_lost(self, _: Any, partitions: Sequence[Any]) -> None:
        self._listener.on_lost(_ours(partitions))
        await self._client.incremental_unassign([])

    async def _on_error(self, error: KafkaError) -> None:
        self._listener.on_error(error, None)

    async def _on_commit(self, error: KafkaError | None, partitions: Sequence[Any]) -> None:
        sent, self._sent = self._sent, None
        if sent is not None and not sent.done():
            sent.set_result(CommitAnswer(error, partitions))

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call when its turn comes."""
        self._calls += 1
        try:
            while self._is_polling and self._inside is None:
                await wait_until(LOOP_CLOCK, math.inf, self._turn)
            if (inside := self._inside) is None:
                return await call()

            async def called() -> T:
                return await call()

            return await asyncio.get_running_loop().create_task(called(), context=inside)
        finally:
            self._calls -= 1
            self._ended_calls += 1
            self._turn.fire()

    # -- offsets -----------------------------------------------------------------------------------

    async def commit(
        self, positions: Callable[[], Mapping[TopicPartition, EpochPosition]]
    ) -> list[TopicPartition]:
        """Send one commit; return the partitions whose positions are stored.

        Raises librdkafka errors, except for a rebalance of the group. A cancelled commit may
        have been stored.
        """
        if self._inside is not None:
            return await self._call(lambda: self._commit_within(positions))
        async with self._commits:
            if self._sent is not None:
                await asyncio.wait([self._sent])  # its caller was cancelled
            answer = await self._call(lambda: self._send(positions))
            if answer is None:
                return []
            await asyncio.wait([answer])
        error, stored = answer.result()
        if error is not None:
            raise KafkaException(error)
        return _stored_partitions(stored)

    async def _commit_within(
        self, positions: Callable[[], Mapping[TopicPartition, EpochPosition]]
    ) -> list[TopicPartition]:
        """Send a commit within a revoke; suspend until its answer."""
        offsets = _theirs(positions())
        if not offsets:
            return []
        return _stored_partitions(await self._client.commit(offsets=offsets, asynchronous=False))

    async def _send(
        self, positions: Callable[[], Mapping[TopicPartition, EpochPosition]]
    ) -> asyncio.Future[CommitAnswer] | None:
        """Send a commit; return its future answer, or `None` if there is nothing to store."""
        offsets = _theirs(positions())
        if not offsets:
            return None
        answer: asyncio.Future[CommitAnswer] = asyncio.get_running_loop().create_future()
        self._sent = answer
        try:
            await self._client.commit(offsets=offsets, asynchronous=True)
        except KafkaException:
            self._sent = None  # it was not sent
            raise
        return answer

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, EpochPosition]:
        """Return the existing stored positions with their maps. Raises librdkafka errors."""
        asked = [ClientPartition(*each) for each in partitions]
        within = self._options.commit_timeout
        found = await self._call(lambda: self._client.committed(asked, within))
        return {
            TopicPartition(at.topic, at.partition): EpochPosition(
                Position(at.offset, at.metadata or ""),
                UNKNOWN_EPOCH if at.leader_epoch is None else at.leader_epoch,
            )
            for at in _checked(found)
            if at.offset >= 0
        }

    async def beginnings(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first retained offsets. Raises librdkafka errors."""
        return await self.offsets_at(partitions, _EARLIEST)

    async def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets after the last readable records. Raises librdkafka errors."""
        return await self.offsets_at(partitions, _LATEST)

    async def offsets_at(
        self, partitions: Collection[TopicPartition], milliseconds: int
    ) -> dict[TopicPartition, int]:
        """Return the first offsets at or after this time, if there are any.

        Raises librdkafka errors.
        """
        if not partitions:
            return {}
        asked = [ClientPartition(*each, milliseconds) for each in partitions]
        within = self._options.commit_timeout
        found = await self._call(lambda: self._client.offsets_for_times(asked, within))
        return {
            TopicPartition(at.topic, at.partition): at.offset
            for at in _checked(found)
            if at.offset >= 0
        }

    # -- topics ------------------------------------------------------------------------------------

    async def describe(self, topic: str | None, within: float) -> dict[str, Any]:
        """Request metadata of a topic, or of all, from a broker. Raises librdkafka errors."""
        given = {"timeout": within} if topic is None else {"topic": topic, "timeout": within}
        found: dict[str, Any] = (await self._call(lambda: self._client.list_topics(**given))).topics
        return found


def _ours(partitions: Iterable[Any]) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in partitions]


def _theirs(positions: Mapping[TopicPartition, EpochPosition]) -> list[ClientPartition]:
    return [
        ClientPartition(*each, at.offset, at.metadata, epoch)
        if at.metadata
        else ClientPartition(*each, at.offset, leader_epoch=epoch)
        for each, (at, epoch) in positions.items()
    ]


def _stored_partitions(answers: Iterable[Any]) -> list[TopicPartition]:
    """Return the stored partitions. Raises the first error that is not about a rebalance."""
    for at in answers:
        if at.error is not None and not is_rebalanced(at.error):
            raise KafkaException(at.error)
    return [TopicPartition(at.topic, at.partition) for at in answers if at.error is None]


def _checked(found: Iterable[Any]) -> list[Any]:
    """Return the answers for partitions. Raises the first error."""
    answers = list(found)
    for at in answers:
        if at.error is not None:
            raise KafkaException(at.error)
    return answers
