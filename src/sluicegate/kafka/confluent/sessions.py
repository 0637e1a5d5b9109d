"""The sessions of an open source, one after the other: each is one membership of a group, with a
member, and a reader of the partitions that it owns.

1. If a session dies, the reason is reported and a new session follows.
2. A session joins once a broker has described the topics. Topics are requested again only while one
   is missing, or after a client has reported an error. Otherwise one of them is requested
   regularly: librdkafka reports a silent connection only when it is closed.
3. The ids of the topics are requested as often, by a third client. A changed id means that the topic
   was deleted and created again: the broker has forgotten its positions, but librdkafka reads the
   new topic from the next offset of the old one, and does not report it.
4. It ends within a deadline: first the claims end, then the member leaves, and the reader closes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from ..._core.clock import LOOP_CLOCK, Signal, wait_until
from ..._core.logs import for_log, log_safely
from ..._core.runtime.cuts import end_if_cut
from ..._core.runtime.threads import AbandonableThreads, close_within
from ..._core.source import TopicPartition, Troubles
from .. import groups
from ..groups import LOOK_EVERY, RECONNECT, SESSION_FAILED, History
from .errors import is_about_topics, is_denied, is_refused_login, is_unreachable, reason_of
from .fetching import ShareFetcher
from .member import GroupMember
from .membership import GroupClaims
from .reader import PartitionReader

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from confluent_kafka import KafkaError

    from ..._core.source import ClaimHost, Fetched, Position, SourceClaim
    from ..arguments import StartPoint, Topics
    from .options import ConfluentOptions

logger = logging.getLogger("sluicegate.kafka")
THREADS = 8
"""Threads of a session: a poll, a revoke's calls, the reader's call, and waiting calls."""
ANSWER_WITHIN = 1.0
"""Timeout in seconds for a response about topics."""
REFRESH_EVERY = 5.0
"""Seconds between requests about topics."""
_NOT_LEFT = "%s: the client did not leave the group within %.3g s; the group waits until its session expires"


class GroupSessions:
    """The sessions of an open source, one at a time. Raises `ConfigError` for rejected options."""

    def __init__(
        self, options: ConfluentOptions, topics: Topics, start: StartPoint, host: ClaimHost
    ) -> None:
        self._options = options
        self._troubles = Troubles(host, options.group, logger)
        self._new = partial(
            GroupSession, options, topics, start, host, troubles=self._troubles, history=History()
        )
        self._begun = Signal()
        self._ends: dict[SourceClaim, int] = {}
        """The last known ends."""
        self._session: GroupSession | None = self._new()

    async def run(self) -> None:
        """Run sessions until cancelled; begin a new one whenever one has died."""
        while True:
            try:
                if self._session is None:
                    self._session = self._new()
                    self._begun.fire()
                await self._session.hold()
            except Exception as error:
                end_if_cut(error)
                self._troubles.note("session", reason_of(error, self._options))
                level = logging.DEBUG if isinstance(error, KafkaException) else logging.ERROR
                log_safely(
                    logger, level, SESSION_FAILED, self._options.group, for_log(error), error=error
                )
            await self.close()
            await LOOP_CLOCK.sleep(RECONNECT)
            self._troubles.note("session", None)

    async def close(self) -> None:
        """Close the current session."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # -- the calls of the consumer -----------------------------------------------------------------

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
        """Deliver records of these claims; suspends between sessions."""
        while self._session is None:
            await wait_until(LOOP_CLOCK, math.inf, self._begun)
        return await self._session.fetcher.fetch(claims, most)

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Store positions of open claims."""
        session = self._session
        if session is None:
            return ()
        try:
            return await session.membership.commit(positions)
        except TimeoutError as error:
            session.note_unanswered(error)
            raise

    async def ends(self, claims: Collection[SourceClaim]) -> dict[SourceClaim, int]:
        """Return the ends of the claims' logs: current ones, or in an outage the last known ones."""
        session = self._session
        if session is None:
            return {}
        held = [claim for claim in claims if session.membership.owned(claim) is not None]
        try:
            async with asyncio.timeout(self._options.commit_timeout):
                found = await session.member.ends([claim.partition for claim in held])
        except (KafkaException, TimeoutError) as error:
            session.note_unanswered(error)
            return {claim: self._ends[claim] for claim in held if claim in self._ends}
        self._ends = {claim: found[claim.partition] for claim in held if claim.partition in found}
        return dict(self._ends)


class GroupSession:
    """One session, used once, on one loop. Raises `ConfigError` if librdkafka rejects its options."""

    def __init__(
        self,
        options: ConfluentOptions,
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
        with _check_options(options):
            self._reader = PartitionReader(options, self._threads, self._on_reader_error)
            self.member = GroupMember(options, self._threads, self)
            self._admin: Any = AdminClient(options.of_admin())
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

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle an assignment of partitions."""
        self._history.begin([*self.partitions(), *partitions])
        self.membership.on_assigned(partitions)

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle a revoke. The member owns the partitions until this returns."""
        await self.membership.on_revoked(partitions)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle a loss. Other members already own the partitions."""
        self.membership.on_lost(partitions)

    def on_error(self, error: KafkaError, topic: str | None) -> None:
        """Handle an error of a client."""
        if error.fatal():
            self._fatal = error
        elif is_refused_login(error):
            self._refusal = reason_of(error, self._options)
        elif not is_unreachable(error) and not is_about_topics(error):
            self.membership.on_error(error, topic)
        self._asks = True

    def _on_reader_error(self, error: KafkaError) -> None:
        self.on_error(error, None)

    # -- topics ------------------------------------------------------------------------------------

    def topics(self) -> Collection[str]:
        """The existing topics."""
        return self._found

    def unknown(self, topics: Iterable[str]) -> list[str]:
        """Return those of these topics that no broker has described: they do not exist, or this
        client may not read them, according to the last responses.
        """
        return [each for each in topics if each not in self._found]

    def partitions(self) -> list[TopicPartition]:
        """The partitions of the existing topics."""
        return [
            TopicPartition(topic, partition)
            for topic, told in self._found.items()
            for partition in told.partitions
        ]

    async def _check_topics(self) -> bool:
        """Request the topics from a broker; return whether it has answered."""
        try:
            told = await self._describe_topics()
        except KafkaException as error:
            reason = self._refusal or reason_of(error, self._options)
            self._troubles.note("broker", reason)
            return False
        self._refusal = None
        self._troubles.note("broker", None)
        self._found = {name: each for name, each in told.items() if each.error is None}
        denied = [name for name, each in told.items() if is_denied(each.error)]
        missing = groups.no_right_to_topics(denied) if denied else self._topics.missing(self)
        self._troubles.note("topics", missing)
        self._asks = missing is not None
        return True

    async def _check_ids(self) -> None:
        """Begin the partitions of recreated topics again."""
        if not self._found:
            return
        named = TopicCollection([*self._found])
        asked: dict[str, Future[Any]] = self._admin.describe_topics(
            named, request_timeout=ANSWER_WITHIN
        )
        answers = [asyncio.wrap_future(each) for each in asked.values()]
        told = await asyncio.gather(*answers, return_exceptions=True)
        ids = {
            topic: str(each.topic_id)
            for topic, each in zip(asked, told, strict=True)
            if not isinstance(each, BaseException)
        }
        self.fetcher.begin_again(self._history.recreated(ids, self.membership.held))

    async def _probe(self) -> None:
        """Request one of the topics, and report if no broker answers."""
        try:
            await self.member.describe(next(iter(self._found), None), ANSWER_WITHIN)
        except KafkaException as error:
            self.note_unanswered(error)

    def note_unanswered(self, error: Exception) -> None:
        """Report that a broker has not answered a request, until it describes the topics."""
        self._troubles.note("broker", reason_of(error, self._options))
        self._asks = True

    async def _describe_topics(self) -> dict[str, Any]:
        if (pattern := self._topics.pattern) is not None:
            every = await self.member.describe(None, ANSWER_WITHIN)
            return {name: each for name, each in every.items() if re.match(pattern, name)}
        told: dict[str, Any] = {}
        for name in self._topics.names:
            told |= await self.member.describe(name, ANSWER_WITHIN)
        return told

    # -- lifecycle ---------------------------------------------------------------------------------

    async def hold(self) -> None:
        """Stay a member until cancelled. Raises the error that ends the session."""
        while not await self._check_topics():
            await self.member.listen()
            await LOOP_CLOCK.sleep(LOOK_EVERY)
        joined = asyncio.get_running_loop().create_task(self.member.run(self._subscription()))
        try:
            await self._watch(joined)
        finally:
            self.membership.close()
            self.member.leave()
            await asyncio.wait([joined], timeout=close_within(self._options.close_timeout))
            joined.cancel()

    def _subscription(self) -> Sequence[str]:
        pattern = self._topics.pattern
        return self._topics.names if pattern is None else [f"^({pattern})"]

    async def _watch(self, joined: asyncio.Task[None]) -> None:
        clock, asked = LOOP_CLOCK, LOOP_CLOCK.now()
        await self._check_ids()
        while not joined.done():
            await asyncio.wait([joined], timeout=LOOK_EVERY)
            if self._fatal is not None:
                raise KafkaException(self._fatal)
            now = clock.now()
            often = self._history.loses_often(now) and groups.lost_often(
                self._options.instance, self._options.rebalance_timeout
            )
            self._troubles.note("losses", often or None)
            if not self._asks and now - asked >= REFRESH_EVERY:
                await self._probe()
                await self._check_ids()
                asked = clock.now()
            is_due = now - asked >= REFRESH_EVERY or self._troubles.has("broker")
            if self._asks and (is_due or self._topics.missing(self) is None):
                await self._check_topics()
                await self._check_ids()
                asked = clock.now()
        joined.result()

    async def close(self) -> None:
        """End the claims and leave the group, within `close_timeout` seconds; then abandon it."""
        self.membership.close()
        del self._admin  # closes it
        loop, within = asyncio.get_running_loop(), close_within(self._options.close_timeout)
        closing = [loop.create_task(self.member.close()), loop.create_task(self._reader.close())]
        _, late = await asyncio.wait(closing, timeout=within)
        if late:
            log_safely(logger, logging.WARNING, _NOT_LEFT, self._options.group, within)
        for task in closing:
            if not task.cancel() and not task.cancelled():
                task.exception()
        self._threads.shutdown()


@contextmanager
def _check_options(options: ConfluentOptions) -> Generator[None]:
    try:
        yield
    except (KafkaException, TypeError, ValueError) as error:
        raise options.refusal(error) from None
