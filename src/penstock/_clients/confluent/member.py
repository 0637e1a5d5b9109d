"""A member of a group on `AIOConsumer`, which owns partitions and reads none of them.

1. To librdkafka nothing is ever assigned, so it fetches nothing and has nothing to stop; the group
   counts the partitions as this member's all the same.
2. A revoke lasts as long as its listener. The other calls of that time, such as commits of the
   partitions that stay, go through the context of the revoke: librdkafka admits no others then.
3. A poll and other calls take turns, since librdkafka serves one at a time. What a commit stores is
   decided when its turn comes, without another wait.
4. Callbacks reach the listener on the loop's thread.
5. A commit is sent without waiting, and its answer arrives with a poll: librdkafka keeps a commit for
   as long as a session while no broker answers, and would poll no more. One is out at a time. Within
   a revoke nothing is polled, so there a commit waits.
6. The client writes metadata with the NUL at its end, and reads it without.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from ..._core.clock import LOOP_CLOCK, Signal, wait_until
from ..._core.source import Position, TopicPartition
from . import AIOConsumer
from .errors import is_rebalanced
from .reader import LOGGER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Executor

    from .options import GroupOptions

T = TypeVar("T")

POLL = 0.05
"""Seconds of a poll; other calls wait for so long at most."""
_EARLIEST, _LATEST = -2, -1
"""Times that mean the ends of a log."""


class CommitAnswer(NamedTuple):
    """The answer to a commit."""

    error: KafkaError | None
    partitions: Sequence[Any]


class GroupListener(Protocol):
    """What a member tells. Calls come from the loop's thread."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are the member's."""

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These are its own until this returns."""

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """These are others' already."""

    def failed(self, error: KafkaError, topic: str | None) -> None:
        """Something cannot work now, of this topic or of all."""


class GroupMember:
    """One membership, from subscribing to leaving. Used once, on one loop."""

    def __init__(self, options: GroupOptions, threads: Executor, listener: GroupListener) -> None:
        self._options = options
        self._listener = listener
        given = {
            **options.of_member(),
            "error_cb": self._failed,
            "on_commit": self._answered,
            "logger": LOGGER,
        }
        self._client: Any = AIOConsumer(given, executor=threads)
        self._turn = Signal()
        self._is_polling = self._is_leaving = False
        self._calls = self._ended_calls = 0
        self._commits = asyncio.Lock()
        self._sent: asyncio.Future[CommitAnswer] | None = None
        """The answer to the commit that is out."""
        self._inside: contextvars.Context | None = None
        """The context of a revoke that is under way."""

    # -- membership --------------------------------------------------------------------------------

    async def run(self, topics: Sequence[str]) -> None:
        """Be a member for these topics until `leave`. Raises a fatal error of librdkafka."""
        await self._client.subscribe(
            list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
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
                self._listener.failed(error, message.topic())

    async def listen(self) -> None:
        """Tell the errors of until now, before `run`, which does that from then on."""
        await self._call(lambda: self._client.poll(0))

    def leave(self) -> None:
        """Let `run` end after its poll."""
        self._is_leaving = True

    async def close(self) -> None:
        """Leave the group and close, after `run`. Suspends until that is done."""
        await self._client.close()

    async def _assigned(self, _: Any, partitions: Sequence[Any]) -> None:
        await self._client.incremental_assign([])
        self._listener.assigned(_ours(partitions))

    async def _revoked(self, _: Any, partitions: Sequence[Any]) -> None:
        self._inside = contextvars.copy_context()
        self._turn.fire()
        try:
            await self._listener.revoked(_ours(partitions))
        finally:
            self._inside = None
            await self._client.incremental_unassign([])

    async def _lost(self, _: Any, partitions: Sequence[Any]) -> None:
        self._listener.lost(_ours(partitions))
        await self._client.incremental_unassign([])

    async def _failed(self, error: KafkaError) -> None:
        self._listener.failed(error, None)

    async def _answered(self, error: KafkaError | None, partitions: Sequence[Any]) -> None:
        sent, self._sent = self._sent, None
        if sent is not None and not sent.done():
            sent.set_result(CommitAnswer(error, partitions))

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call when it is its turn."""
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
        self, positions: Callable[[], Mapping[TopicPartition, Position]]
    ) -> list[TopicPartition]:
        """Send one commit; return the partitions whose positions are stored.

        Raises the error of librdkafka, unless it says that the group has been rebalanced. A
        cancelled commit may have been stored.
        """
        if self._inside is not None:
            return await self._call(lambda: self._commit_within(positions))
        async with self._commits:
            if self._sent is not None:
                await asyncio.wait([self._sent])  # its caller has given up
            answer = await self._call(lambda: self._send(positions))
            if answer is None:
                return []
            await asyncio.wait([answer])
        error, stored = answer.result()
        if error is not None:
            raise KafkaException(error)
        return _stored(stored)

    async def _commit_within(
        self, positions: Callable[[], Mapping[TopicPartition, Position]]
    ) -> list[TopicPartition]:
        """Send a commit within a revoke, and suspend until its answer."""
        offsets = _theirs(positions())
        if not offsets:
            return []
        return _stored(await self._client.commit(offsets=offsets, asynchronous=False))

    async def _send(
        self, positions: Callable[[], Mapping[TopicPartition, Position]]
    ) -> asyncio.Future[CommitAnswer] | None:
        """Send a commit; return its answer to come, or `None` with nothing to store."""
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
    ) -> dict[TopicPartition, Position]:
        """The stored positions with their maps, where there are any. Raises librdkafka's error."""
        asked = [ClientPartition(*each) for each in partitions]
        within = self._options.commit_timeout
        found = await self._call(lambda: self._client.committed(asked, within))
        return {
            TopicPartition(at.topic, at.partition): Position(at.offset, at.metadata or "")
            for at in _answered(found)
            if at.offset >= 0
        }

    async def beginnings(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offsets that are retained. Raises the error of librdkafka."""
        return await self.offsets_at(partitions, _EARLIEST)

    async def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets after the last readable records. Raises the error of librdkafka."""
        return await self.offsets_at(partitions, _LATEST)

    async def offsets_at(
        self, partitions: Collection[TopicPartition], milliseconds: int
    ) -> dict[TopicPartition, int]:
        """The first offsets of this time or later, where there are any.

        Raises the error of librdkafka.
        """
        if not partitions:
            return {}
        asked = [ClientPartition(*each, milliseconds) for each in partitions]
        within = self._options.commit_timeout
        found = await self._call(lambda: self._client.offsets_for_times(asked, within))
        return {
            TopicPartition(at.topic, at.partition): at.offset
            for at in _answered(found)
            if at.offset >= 0
        }

    # -- topics ------------------------------------------------------------------------------------

    async def described(self, topic: str | None, within: float) -> dict[str, Any]:
        """What a broker tells of a topic, or of all. Raises the error of librdkafka."""
        given = {"timeout": within} if topic is None else {"topic": topic, "timeout": within}
        found: dict[str, Any] = (await self._call(lambda: self._client.list_topics(**given))).topics
        return found


def _ours(partitions: Iterable[Any]) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in partitions]


def _theirs(positions: Mapping[TopicPartition, Position]) -> list[ClientPartition]:
    return [
        ClientPartition(*each, at.offset, at.metadata)
        if at.metadata
        else ClientPartition(*each, at.offset)
        for each, at in positions.items()
    ]


def _stored(answers: Iterable[Any]) -> list[TopicPartition]:
    """The partitions that are stored. Raises the first error that is about something else than a
    rebalance.
    """
    for at in answers:
        if at.error is not None and not is_rebalanced(at.error):
            raise KafkaException(at.error)
    return [TopicPartition(at.topic, at.partition) for at in answers if at.error is None]


def _answered(found: Iterable[Any]) -> list[Any]:
    """The answers of partitions. Raises the first error."""
    answers = list(found)
    for at in answers:
        if at.error is not None:
            raise KafkaException(at.error)
    return answers
