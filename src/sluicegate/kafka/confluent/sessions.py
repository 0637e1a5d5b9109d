"""The sessions of an open source, one after the other.

If a session dies, a trouble is reported and a new session follows.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from ..._core.clock import LOOP_CLOCK, Signal, wait_until
from ..._core.logs import for_log, log_safely
from ..._core.runtime.cuts import end_if_cut
from ..._core.source import Troubles
from ..groups.history import History
from .client.errors import trouble_of
from .session import GroupSession

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..._core.source import ClaimHost, Fetched, Position, SourceClaim
    from ..groups.starts import StartPoint
    from ..groups.topics import Topics
    from .client.options import GroupOptions

logger = logging.getLogger("sluicegate.kafka")

RECONNECT = 1.0
"""Delay in seconds before a new session."""

_FAILED = "%s: a session has failed (%s); a new one follows"


class GroupSessions:
    """The sessions of an open source, one at a time. Raises `ConfigError` for rejected options."""

    def __init__(
        self, options: GroupOptions, topics: Topics, start: StartPoint, host: ClaimHost
    ) -> None:
        self._options = options
        self._topics = topics
        self._start = start
        self._host = host
        self._troubles = Troubles(host, options.group, logger)
        self._history = History()
        self._begun = Signal()
        self._ends: dict[SourceClaim, int] = {}
        """The last known ends."""
        self._session: GroupSession | None = self._new()

    def _new(self) -> GroupSession:
        return GroupSession(
            self._options,
            self._topics,
            self._start,
            self._host,
            troubles=self._troubles,
            history=self._history,
        )

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
                self._troubles.note("session", trouble_of(error, self._options))
                level = logging.DEBUG if isinstance(error, KafkaException) else logging.ERROR
                log_safely(logger, level, _FAILED, self._options.group, for_log(error), error=error)
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
            session.unanswered(error)
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
            session.unanswered(error)
            return {claim: self._ends[claim] for claim in held if claim in self._ends}
        self._ends = {claim: found[claim.partition] for claim in held if claim.partition in found}
        return dict(self._ends)
