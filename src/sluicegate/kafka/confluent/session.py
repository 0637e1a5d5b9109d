"""One membership of a group: a member, and a reader of the partitions that it owns.

1. It joins once a broker has described the topics. Topics are requested again only while one is
   missing, or after a client has reported an error. Otherwise one of them is requested regularly:
   librdkafka reports a silent connection only when it is closed.
2. It ends within a deadline: first the claims end, then the member leaves, and the reader closes.
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from ..._core.clock import LOOP_CLOCK
from ..._core.logs import log_safely
from ..._core.runtime.threads import AbandonableThreads, close_within
from ..._core.source import TopicPartition
from ..groups import words
from .client.errors import is_about_topics, is_denied, is_refused_login, is_unreachable, trouble_of
from .client.member import GroupMember
from .client.reader import PartitionReader
from .fetching import ShareFetcher
from .membership import GroupClaims

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Sequence

    from confluent_kafka import KafkaError

    from ..._core.source import ClaimHost, Troubles
    from ..groups.history import History
    from ..groups.starts import StartPoint
    from ..groups.topics import Topics
    from .client.options import GroupOptions

logger = logging.getLogger("sluicegate.kafka")

THREADS = 8
"""Threads of a session: a poll, a revoke's calls, the reader's call, and waiting calls."""
LOOK_EVERY = 0.5
"""Seconds between health checks of a session."""
ANSWER_WITHIN = 1.0
"""Timeout in seconds for a response about topics."""
REFRESH_EVERY = 5.0
"""Seconds between requests about topics."""

_NOT_LEFT = "%s: the client did not leave the group within %.3g s; the group waits until its session expires"


class GroupSession:
    """One session, used once, on one loop. Raises `ConfigError` if librdkafka rejects its options."""

    def __init__(
        self,
        options: GroupOptions,
        topics: Topics,
        start: StartPoint,
        host: ClaimHost,
        *,
        troubles: Troubles,
        history: History,
    ) -> None:
        self._options = options
        self._topics = topics
        self._troubles = troubles
        self._history = history
        self._found: dict[str, Any] = {}
        self._asks = True
        self._refusal: str | None = None
        self._fatal: KafkaError | None = None
        self.membership = GroupClaims(host, options, start, troubles, history)
        self._threads = AbandonableThreads(THREADS, "sluicegate-kafka")
        with _refused(options):
            self._reader = PartitionReader(options, self._threads, self._reader_failed)
            self.member = GroupMember(options, self._threads, self)
        self.membership.join(self.member)
        self.fetcher = ShareFetcher(
            self._reader,
            self.member,
            self.membership,
            options=options,
            start=start,
            troubles=troubles,
        )

    # -- callbacks of the member -------------------------------------------------------------------

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle an assignment of partitions."""
        self._history.begin([*self.partitions(), *partitions])
        self.membership.assigned(partitions)

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle a revoke. The member owns the partitions until this returns."""
        await self.membership.revoked(partitions)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle a loss. Other members already own the partitions."""
        self.membership.lost(partitions)

    def failed(self, error: KafkaError, topic: str | None) -> None:
        """Handle an error of a client."""
        if error.fatal():
            self._fatal = error
        elif is_refused_login(error):
            self._refusal = trouble_of(error, self._options)
        elif not is_unreachable(error) and not is_about_topics(error):
            self.membership.failed(error, topic)
        self._asks = True

    def _reader_failed(self, error: KafkaError) -> None:
        self.failed(error, None)

    # -- topics ------------------------------------------------------------------------------------

    def topics(self) -> Collection[str]:
        """The existing topics."""
        return self._found

    def unknown(self, topics: Iterable[str]) -> list[str]:
        """Return those of these topics that no broker has described."""
        return [each for each in topics if each not in self._found]

    def partitions(self) -> list[TopicPartition]:
        """The partitions of the existing topics."""
        return [
            TopicPartition(topic, partition)
            for topic, told in self._found.items()
            for partition in told.partitions
        ]

    async def _look(self) -> bool:
        """Request the topics from a broker; return whether it has answered."""
        try:
            told = await self._described()
        except KafkaException as error:
            reason = self._refusal or trouble_of(error, self._options)
            self._troubles.note("broker", reason)
            return False
        self._refusal = None
        self._troubles.note("broker", None)
        self._found = {name: each for name, each in told.items() if each.error is None}
        denied = [name for name, each in told.items() if is_denied(each.error)]
        missing = words.no_right_to_topics(denied) if denied else self._topics.missing(self)
        self._troubles.note("topics", missing)
        self._asks = missing is not None
        return True

    async def _probe(self) -> None:
        """Request one of the topics, and report if no broker answers."""
        try:
            await self.member.described(next(iter(self._found), None), ANSWER_WITHIN)
        except KafkaException as error:
            self.unanswered(error)

    def unanswered(self, error: Exception) -> None:
        """Report that a broker has not answered a request, until it describes the topics."""
        self._troubles.note("broker", trouble_of(error, self._options))
        self._asks = True

    async def _described(self) -> dict[str, Any]:
        if (pattern := self._topics.pattern) is not None:
            every = await self.member.described(None, ANSWER_WITHIN)
            return {name: each for name, each in every.items() if re.match(pattern, name)}
        told: dict[str, Any] = {}
        for name in self._topics.names:
            told |= await self.member.described(name, ANSWER_WITHIN)
        return told

    # -- lifecycle ---------------------------------------------------------------------------------

    async def hold(self) -> None:
        """Stay a member until cancelled. Raises the error that ends the session."""
        while not await self._look():
            await self.member.listen()
            await LOOP_CLOCK.sleep(LOOK_EVERY)
        joined = asyncio.get_running_loop().create_task(self.member.run(self._subscription()))
        try:
            await self._watch(joined)
        finally:
            self.membership.close()
            self.member.leave()
            await asyncio.wait([joined], timeout=close_within(self._options.stop_timeout))
            joined.cancel()

    def _subscription(self) -> Sequence[str]:
        pattern = self._topics.pattern
        return self._topics.names if pattern is None else [f"^({pattern})"]

    async def _watch(self, joined: asyncio.Task[None]) -> None:
        clock, asked = LOOP_CLOCK, LOOP_CLOCK.now()
        while not joined.done():
            await asyncio.wait([joined], timeout=LOOK_EVERY)
            if self._fatal is not None:
                raise KafkaException(self._fatal)
            now = clock.now()
            often = self._history.loses_often(now) and words.lost_often(
                self._options.instance, self._options.rebalance_timeout
            )
            self._troubles.note("losses", often or None)
            if not self._asks and now - asked >= REFRESH_EVERY:
                await self._probe()
                asked = clock.now()
            is_due = now - asked >= REFRESH_EVERY or self._troubles.has("broker")
            if self._asks and (is_due or self._topics.missing(self) is None):
                await self._look()
                asked = clock.now()
        joined.result()

    async def close(self) -> None:
        """End the claims and leave the group, within `stop_timeout` seconds; then abandon it."""
        self.membership.close()
        loop, within = asyncio.get_running_loop(), close_within(self._options.stop_timeout)
        closing = [loop.create_task(self.member.close()), loop.create_task(self._reader.close())]
        _, late = await asyncio.wait(closing, timeout=within)
        if late:
            log_safely(logger, logging.WARNING, _NOT_LEFT, self._options.group, within)
        for task in closing:
            if not task.cancel() and not task.cancelled():
                task.exception()
        self._threads.shutdown()


@contextmanager
def _refused(options: GroupOptions) -> Generator[None]:
    try:
        yield
    except (KafkaException, TypeError, ValueError) as error:
        raise options.refused(error) from None
