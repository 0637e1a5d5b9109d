"""The sessions of an open source, one after the other, and a health check of each.

If a broker cannot be reached, or a session dies, the reason is reported and a new attempt follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import TYPE_CHECKING

from ..._core.clock import LOOP_CLOCK, Signal, wait_until
from ..._core.logs import for_log, log_safely
from ..._core.runtime.cuts import end_if_cut
from ..._core.source import Troubles
from .. import groups
from ..client.errors import reason_of
from ..client.session import KafkaError, Listener, Session
from ..groups import LOOK_EVERY, RECONNECT, SESSION_FAILED, History
from .fetching import Fetcher
from .membership import Membership

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ..._core.source import ClaimHost, Fetched, PositionStore, SourceClaim
    from ..arguments import StartPoint, Topics
    from ..client.options import MemberOptions

logger = logging.getLogger("sluicegate.kafka")


REFRESH_WITHIN = 1.0
"""Timeout in seconds for a response about topics."""
LOST_AFTER = 2.0
"""Seconds without a coordinator after which the reason is reported."""
REFRESH_EVERY = 5.0
"""Seconds between requests about missing topics."""


class Sessions:
    """The sessions of an open source, one at a time."""

    def __init__(
        self,
        options: MemberOptions,
        topics: Topics,
        start: StartPoint,
        host: ClaimHost,
        store: PositionStore | None = None,
    ) -> None:
        self._options = options
        self._topics = topics
        self._start = start
        self._host = host
        self._store = store
        self._troubles = Troubles(host, options.group, logger)
        self._history = History()
        self._session: Session | None = None
        self.membership: Membership | None = None
        self._fetcher: Fetcher | None = None
        self._joined = Signal()
        self._clock = LOOP_CLOCK

    async def run(self, first: Session) -> None:
        """Run sessions until cancelled; begin a new one whenever one has died."""
        session = first
        while True:
            try:
                await session.start(self._options.close_timeout)
                try:
                    await self._hold(session)
                finally:
                    await self._leave(session)
            except Exception as error:
                end_if_cut(error)
                self._troubles.note("broker", reason_of(error, self._options))
                level = logging.DEBUG if isinstance(error, (KafkaError, OSError)) else logging.ERROR
                log_safely(
                    logger, level, SESSION_FAILED, self._options.group, for_log(error), error=error
                )
            await self._clock.sleep(RECONNECT)
            session = Session(self._options)

    async def _hold(self, session: Session) -> None:
        parts = (self._options, self._start, self._troubles)
        membership = Membership(
            session, self._host, *parts, history=self._history, store=self._store
        )
        self._session, self.membership = session, membership
        self._fetcher = Fetcher(session, membership, *parts)
        self._joined.fire()
        listener = Listener(membership.on_revoked, membership.on_assigned)
        session.subscribe(self._topics.names, self._topics.pattern, listener)
        await self._watch(session)

    async def _leave(self, session: Session) -> None:
        if self.membership is not None:
            self.membership.close()
        self._session = self.membership = self._fetcher = None
        await session.stop(self._options.close_timeout)

    # -- the health of the session -----------------------------------------------------------------

    async def _watch(self, session: Session) -> None:
        """Suspend until the session has died; raise its error."""
        clock = self._clock
        seen, asked, was_silent = clock.now(), -math.inf, False
        while not session.has_died:
            if (fault := session.fault()) is not None:
                self._troubles.note("group", reason_of(fault, self._options))
            now = clock.now()
            seen = now if session.has_coordinator else seen
            is_silent = session.is_silent
            # once may mean that this loop was blocked, and has not read the responses yet
            is_lost = (is_silent and was_silent) or now - seen >= LOST_AFTER
            was_silent = is_silent
            self._troubles.note(
                "broker", groups.unreachable(self._options.bootstrap) if is_lost else None
            )
            if self._topics.missing(session) is not None and now - asked >= REFRESH_EVERY:
                asked = now
                await self._refresh(session)
            often = self._history.loses_often(now) and groups.lost_often(
                self._options.instance, self._options.session_timeout
            )
            self._troubles.note("losses", often or None)
            self._troubles.note("topics", None if is_lost else self._topics.missing(session))
            await clock.sleep(LOOK_EVERY)
        session.raise_death()

    async def _refresh(self, session: Session) -> None:
        with contextlib.suppress(TimeoutError, KafkaError):
            async with self._clock.timeout_at(self._clock.now() + REFRESH_WITHIN):
                await session.refresh()

    # -- the calls of the consumer -----------------------------------------------------------------

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
        """Deliver records of these claims; suspends between sessions."""
        while self._fetcher is None:
            await wait_until(self._clock, math.inf, self._joined)
        return await self._fetcher.fetch(claims, most)

    async def keep_alive(self) -> None:
        """Count as active in the group; the health check reports faults."""
        if self._session is not None:
            with contextlib.suppress(KafkaError):
                await self._session.keep_alive()

    async def ends(self, claims: Collection[SourceClaim]) -> dict[SourceClaim, int]:
        """Return the ends of the claims' logs: current ones, or in an outage the last known ones."""
        session, membership = self._session, self.membership
        if session is None or membership is None:
            return {}
        held = [claim for claim in claims if membership.owned(claim) is not None]
        try:
            async with asyncio.timeout(self._options.commit_timeout):
                found = await session.ends([claim.partition for claim in held])
        except (KafkaError, TimeoutError):
            known = {claim.partition: session.known_end(claim.partition) for claim in held}
            found = {partition: end for partition, end in known.items() if end is not None}
        return {claim: found[claim.partition] for claim in held if claim.partition in found}
