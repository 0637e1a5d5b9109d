"""One connection of an open source, from its opening to its end.

1. Three tasks: one asks for messages where there is room, one extends what is held, and, in a group,
   one moves partitions as members come and go.
2. If what is held could not be extended in time, everything is lost: all claims end, and new ones
   begin. Nothing that was held is settled after that.
3. When the connection is back, requests are sent again, what is held is extended, and the last
   acknowledgements are repeated: the server may not have stored them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from ..._core.clock import Signal, wait_until
from ..._core.errors import ConfigError, UnavailableError
from ..._core.say import say
from .api import GONE, RequestRefused
from .group import MemberGroup
from .lag import unread
from .moves import LEAST_SHARE, RETRY, Moves, logger
from .settling import Settling
from .subjects import partitions_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..._core.source import Fetched, SourceClaim, Unread
    from .partition import StreamPartition
    from .puller import News
    from .session import Connected

LATE = 0.1
"""The share of the acknowledgement wait by which a beat is late: the process was stopped, or blocked."""
BEATS = 3
"""How often what is held is extended in the acknowledgement wait."""
SOON = 0.01
"""Seconds between looks at the partitions, at least, unless something happens."""

_LAPSED = (
    "%s: what was held could not be extended for %.3g s, the acknowledgement wait: it may be handled "
    "elsewhere, and is handled again"
)
_DIVIDED = (
    "the stream %r divides its subjects into %s partitions, and partitions=%d: give the number that the "
    "stream's subject_transform has (see penstock.sources.jetstream.partitioned)"
)


class Serving:
    """The claims of one connection. `news` fires when records are ready."""

    def __init__(self, session: Connected, news: Signal) -> None:
        self._session = session
        self._options = session.options
        self._channel = session.channel
        self._clock = session.clock
        self._news = news
        self.moves = Moves(session, self._told)
        self._attention = Signal()
        """A partition may have something to do."""
        self._settling = Settling(session.channel, double=session.options.double_ack)
        self._group: MemberGroup | None = None

    # -- the run -----------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Check the stream and its first consumer. Raises `ConfigError` for a stream that is divided
        otherwise and a consumer that cannot be read, and errors of the client.
        """
        config = (await self._session.api.stream())["config"]
        if (wanted := self._options.partitions) is not None:
            transform = cast("Mapping[str, Any]", config.get("subject_transform") or {})
            there = partitions_of(transform.get("dest", ""))
            if there != wanted:
                raise ConfigError(_DIVIDED % (self._options.stream, there or "no", wanted))
        with suppress(RequestRefused):  # it is made, or told, when its claim begins
            await self._session.api.consumer(0)

    async def run(self) -> None:
        """Serve until the connection is closed for good. Raises `ConfigError`."""
        start = self.moves.start
        start(self._keep())
        start(self._beat())
        if self._options.partitions is None:
            self.moves.serve({0})
        else:
            self._group = MemberGroup(self._options, self._channel, self._clock)
            start(self._group.run(self.moves.serve))
        try:
            while not self._channel.is_closed:
                if self.moves.failure is not None:
                    raise self.moves.failure
                self._note_rights()
                await wait_until(self._clock, math.inf, self._channel.changed)
        finally:
            await self.moves.stop()

    def is_lost(self) -> None:
        """The connection is lost: ask for nothing until the server has said where it stands."""
        for partition in self.moves:
            if partition.puller is not None:
                partition.puller.suspend()

    def is_back(self) -> None:
        """The connection is there again."""
        self.moves.start(self._repeat())

    async def _repeat(self) -> None:
        while self._channel.is_connected:
            try:
                lately = [each for partition in self.moves for each in partition.settled_lately()]
                await self._settling.send(lately)
                await self._extend()
                await self._resume_all()
                break
            except ConfigError:
                raise
            except Exception:  # of the connection, or of a server that is not ready
                await self._clock.sleep(RETRY)
        self._attention.fire()

    async def _resume_all(self) -> None:
        """Resume each partition. Raises the first error after all have been tried."""
        errors: list[Exception] = []
        for partition in self.moves:
            try:
                await self._resume(partition)
            except Exception as error:  # the others go on
                errors.append(error)
        if errors:
            raise errors[0]

    async def _resume(self, partition: StreamPartition) -> None:
        try:
            is_same = await partition.is_back()
        except RequestRefused as error:
            is_same = error.code not in GONE
            if is_same:
                raise
        if not is_same:
            self.moves.deleted(partition.number)

    # -- what keeps it -----------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Ask for messages wherever there is room."""
        while True:
            now, due = self._clock.now(), math.inf
            for partition in self.moves:
                due = min(due, await self._tended(partition, now))
            await wait_until(self._clock, max(due, now + SOON), self._attention)

    async def _tended(self, partition: StreamPartition, now: float) -> float:
        try:
            return await partition.tend(now)
        except RequestRefused as error:
            if error.code in GONE:
                self.moves.deleted(partition.number)
        except ConfigError:
            raise
        except Exception:  # noqa: S110 - of the connection, which a beat tells
            pass
        return now + RETRY

    async def _beat(self) -> None:
        """Extend what is held, and see whether that is still possible."""
        while True:
            due = self._clock.now() + self._channel.ack_wait / BEATS
            await wait_until(self._clock, due, self._channel.shortened)
            is_late = self._clock.now() - due > LATE * self._channel.ack_wait
            await self._extend()
            if is_late:  # also for what had arrived and was not read when the first one was sent
                await self._extend()

    async def _extend(self) -> None:
        self._check_lapse()
        self._channel.forget_denied()
        held = [each.reply for one in self.moves for each in one.intake.held.values()]
        trouble = None
        try:
            await self._channel.beat(held)
        except Exception as error:  # the next one comes in time, or everything is lost
            trouble = self._session.trouble(error)
        self._session.troubles.note("connection", trouble)
        self._note_rights()
        self._check_lapse()

    def _note_rights(self) -> None:
        """Tell what the server has denied since the last beat."""
        denied = self._channel.denied
        place = self._session.connection.place
        told = None if denied is None else f"{place} denies it; {denied.repair}"
        self._session.troubles.note("rights", told)

    def _check_lapse(self) -> None:
        """If what is held may be elsewhere by now, lose it."""
        if not self._channel.has_lapsed:
            return
        self._channel.begin_again()
        lost = [each for each in self.moves if each.claim is not None]
        if any(each.intake.held for each in lost):
            say(logger, logging.WARNING, _LAPSED, self._options.stream, self._channel.ack_wait)
        self._settling.forget()
        for partition in lost:
            self.moves.lose(partition)

    def _told(self, partition: StreamPartition, news: News | None) -> None:
        """A message of a partition has arrived, or a status, or it has begun."""
        self._check_lapse()
        if partition.intake.is_astray:
            self.moves.begin_again(partition)
        if news == "deleted":
            self.moves.deleted(partition.number)
        if news == "moved":  # another server has the consumer, which may have forgotten deliveries
            self.moves.start(self._repeat())
        if news is not None or partition.intake.is_waiting:
            self._attention.fire()
        else:
            self._news.fire()

    # -- the consumer's calls ----------------------------------------------------------------------

    def take(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
        """Deliver records of these claims, each its share. Does not suspend."""
        order = {id(claim): at for at, claim in enumerate(claims)}
        ready = [each for each in self.moves if id(each.claim) in order and not each.is_leaving]
        ready.sort(key=lambda each: order[id(each.claim)])
        share = max(LEAST_SHARE, -(-most // max(1, len(ready))))
        fetched: list[Fetched] = []
        for partition in ready:
            if most <= 0:
                break
            taken = partition.take(min(share, most))
            most -= sum([len(each.records) for each in taken])
            fetched += taken
        if fetched:
            self._attention.fire()
        return fetched

    async def settle(self, claims: Collection[SourceClaim]) -> list[SourceClaim]:
        """Settle what the claims say; return those that are still open. Raises errors of the client."""
        self._check_lapse()
        mine = [each for each in self.moves if each.claim in claims]
        named = [each.claim for each in mine if each.claim is not None]
        await self._settling.send([each for one in mine for each in one.settled()])
        if self._channel.has_lapsed:
            raise UnavailableError("what was held could not be extended in time")
        self._attention.fire()
        return [claim for claim in named if not claim.is_closed]

    def ends(self, claims: Collection[SourceClaim]) -> dict[SourceClaim, int]:
        """The sequence numbers after the last messages that have arrived, of claims with any."""
        ends = [(each.claim, each.intake.end) for each in self.moves]
        return {claim: end for claim, end in ends if claim is not None and claim in claims and end}

    async def lag(self, claims: Collection[SourceClaim]) -> dict[SourceClaim, Unread]:
        """What is not settled of each claim. Raises errors of the client and `RequestRefused`."""
        found: dict[SourceClaim, Unread] = {}
        for partition in self.moves:
            if (claim := partition.claim) is not None and claim in claims:
                found[claim] = await unread(self._session, partition)
        return found

    def extend(self, replies: Sequence[str]) -> None:
        """Extend the time of held messages, in the background."""
        self.moves.start(self._extend_now(replies))

    async def _extend_now(self, replies: Sequence[str]) -> None:
        with suppress(Exception):  # the next beat does
            await self._channel.extend(replies)

    async def close(self) -> None:
        """End all claims, and give back what is left. Suspends as long as the server does."""
        if self._group is not None:
            await self._group.leave()
        partitions = [*self.moves]
        for partition in partitions:
            partition.end()
        await asyncio.gather(*[self.moves.leave(each, 0.0) for each in partitions])
