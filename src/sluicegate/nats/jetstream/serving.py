"""One connection of an open source, from opening to close.

1. There are three tasks: one requests messages where there is room, one extends held messages, and
   in a group, one moves partitions as members join and leave.
2. If held messages were not extended in time, everything is lost: all claims end, and new ones
   begin. No previously held message is settled after that.
3. After a reconnect, requests are sent again, held messages are extended, and the last
   acknowledgements are repeated, since the server may not have stored them.
4. Acknowledgements that could not be sent are sent with the next ones, unless all held messages
   were lost in the meantime.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from ..._core.clock import LOOP_CLOCK, Signal, wait_until
from ..._core.errors import ConfigError, UnavailableError
from ..._core.logs import log_safely
from ..._core.source import Unread
from .channel import GONE, RequestRefused
from .group import MemberGroup
from .moves import LEAST_SHARE, RETRY, Moves, logger
from .options import partitions_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..._core.source import Fetched, SourceClaim
    from .channel import Channel, StreamSession
    from .partition import StreamPartition
    from .puller import News

LATE = 0.1
"""Delay of a beat that shows a stopped or blocked process, as a share of the `ack_wait`."""
BEATS = 3
"""Number of extensions per acknowledgement wait."""
SOON = 0.01
"""The shortest time in seconds between checks of the partitions without an event."""

_LAPSED = (
    "%s: held messages could not be extended for %.3g s, the acknowledgement wait: they may be handled "
    "elsewhere, and are handled again"
)
_DIVIDED = (
    "the stream %r divides its subjects into %s partitions, but partitions=%d: give the number in the "
    "stream's subject_transform (see sluicegate.nats.partitioned)"
)
AT_ONCE = 250
"""Maximum number of acknowledgements that wait for their responses concurrently."""


class Serving:
    """The claims of one connection. `news` fires when records are ready."""

    def __init__(self, session: StreamSession, news: Signal) -> None:
        self._session = session
        self._options = session.options
        self._channel = session.channel
        self._news = news
        self.moves = Moves(session, self._handle)
        self._attention = Signal()
        """Fires when a partition may need an action."""
        self._acks = PendingAcks(session.channel, double=session.options.double_ack)
        self._group: MemberGroup | None = None

    # -- the run -----------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Check the stream and its first consumer.

        Raises `ConfigError` for a stream with a different division or a consumer that cannot be
        read, and client errors.
        """
        config = (await self._session.api.stream())["config"]
        if (wanted := self._options.partitions) is not None:
            transform = cast("Mapping[str, Any]", config.get("subject_transform") or {})
            there = partitions_of(transform.get("dest", ""))
            if there != wanted:
                raise ConfigError(_DIVIDED % (self._options.stream, there or "no", wanted))
        with suppress(RequestRefused):  # it is created or reported when its claim begins
            await self._session.api.consumer(0)

    async def run(self) -> None:
        """Serve until the connection is closed permanently. Raises `ConfigError`."""
        start = self.moves.start
        start(self._keep())
        start(self._beat())
        if self._options.partitions is None:
            self.moves.serve({0})
        else:
            self._group = MemberGroup(self._options, self._channel)
            start(self._group.run(self.moves.serve))
        try:
            while not self._channel.is_closed:
                if self.moves.failure is not None:
                    raise self.moves.failure
                self._note_rights()
                await wait_until(LOOP_CLOCK, math.inf, self._channel.changed)
        finally:
            await self.moves.stop()

    def is_lost(self) -> None:
        """Handle the loss of the connection: pause requests until the server reports its state."""
        for partition in self.moves:
            if partition.puller is not None:
                partition.puller.suspend()

    def is_back(self) -> None:
        """Handle a reconnect."""
        self.moves.start(self._repeat())

    async def _repeat(self) -> None:
        while self._channel.is_connected:
            try:
                lately = [each for partition in self.moves for each in partition.last_acks()]
                await self._acks.send(lately)
                await self._extend()
                await self._resume_all()
                break
            except ConfigError:
                raise
            except Exception:  # the connection failed, or the server is not ready
                await LOOP_CLOCK.sleep(RETRY)
        self._attention.fire()

    async def _resume_all(self) -> None:
        """Resume all partitions, then raise the first error, if any."""
        errors: list[Exception] = []
        for partition in self.moves:
            try:
                await self._resume(partition)
            except Exception as error:  # the others continue
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

    # -- background tasks --------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Request messages wherever there is room."""
        while True:
            now, due = LOOP_CLOCK.now(), math.inf
            for partition in self.moves:
                due = min(due, await self._tend(partition, now))
            await wait_until(LOOP_CLOCK, max(due, now + SOON), self._attention)

    async def _tend(self, partition: StreamPartition, now: float) -> float:
        try:
            return await partition.tend(now)
        except RequestRefused as error:
            if error.code in GONE:
                self.moves.deleted(partition.number)
        except ConfigError:
            raise
        except Exception:  # noqa: S110 - the connection failed; a beat reports it
            pass
        return now + RETRY

    async def _beat(self) -> None:
        """Extend held messages, and detect when this is no longer possible."""
        while True:
            due = LOOP_CLOCK.now() + self._channel.ack_wait / BEATS
            await wait_until(LOOP_CLOCK, due, self._channel.shortened)
            is_late = LOOP_CLOCK.now() - due > LATE * self._channel.ack_wait
            await self._extend()
            if is_late:  # include messages that had not been read at the first one
                await self._extend()

    async def _extend(self) -> None:
        self._check_lapse()
        self._channel.forget_denied()
        held = [each.reply for one in self.moves for each in one.intake.held.values()]
        reason = None
        try:
            await self._channel.beat(held)
        except Exception as error:  # the next beat is in time, or everything is lost
            reason = self._session.reason(error)
        self._session.troubles.note("connection", reason)
        self._note_rights()
        self._check_lapse()

    def _note_rights(self) -> None:
        """Report the permissions that the server has denied since the last beat."""
        denied = self._channel.denied
        place = self._session.connection.place
        told = None if denied is None else f"{place} denies it; {denied.repair}"
        self._session.troubles.note("rights", told)

    def _check_lapse(self) -> None:
        """Lose the held messages if they may be elsewhere by now."""
        if not self._channel.has_lapsed:
            return
        self._channel.begin_again()
        lost = [each for each in self.moves if each.claim is not None]
        if any(each.intake.held for each in lost):
            log_safely(
                logger, logging.WARNING, _LAPSED, self._options.stream, self._channel.ack_wait
            )
        self._acks.forget()
        for partition in lost:
            self.moves.lose(partition)

    def _handle(self, partition: StreamPartition, news: News | None) -> None:
        """Handle a message, a status or the beginning of a partition."""
        self._check_lapse()
        if partition.intake.is_out_of_place:
            self.moves.begin_again(partition)
        if news == "deleted":
            self.moves.deleted(partition.number)
        if news == "moved":  # the new leader may have forgotten deliveries
            self.moves.start(self._repeat())
        if news is not None or partition.intake.is_waiting:
            self._attention.fire()
        else:
            self._news.fire()

    # -- the consumer's calls ----------------------------------------------------------------------

    def take(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
        """Deliver records of these claims, a share of each. Does not suspend."""
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
        """Acknowledge the settled records of these claims; return the open claims.

        Raises client errors.
        """
        self._check_lapse()
        mine = [each for each in self.moves if each.claim in claims]
        named = [each.claim for each in mine if each.claim is not None]
        await self._acks.send([each for one in mine for each in one.take_acks()])
        if self._channel.has_lapsed:
            raise UnavailableError("held messages could not be extended in time")
        self._attention.fire()
        return [claim for claim in named if not claim.is_closed]

    def ends(self, claims: Collection[SourceClaim]) -> dict[SourceClaim, int]:
        """Return the sequence number after the last arrived message of each claim that has one."""
        ends = [(each.claim, each.intake.end) for each in self.moves]
        return {claim: end for claim, end in ends if claim is not None and claim in claims and end}

    async def lag(self, claims: Collection[SourceClaim]) -> dict[SourceClaim, Unread]:
        """Count the unsettled messages of each claim. Raises errors of the client and
        `RequestRefused`.
        """
        found: dict[SourceClaim, Unread] = {}
        for partition in self.moves:
            if (claim := partition.claim) is not None and claim in claims:
                found[claim] = await unread(self._session, partition)
        return found

    def extend(self, replies: Sequence[str]) -> None:
        """Extend held messages in the background."""
        self.moves.start(self._extend_now(replies))

    async def _extend_now(self, replies: Sequence[str]) -> None:
        with suppress(Exception):  # the next beat extends them
            await self._channel.extend(replies)

    async def close(self) -> None:
        """End all claims, and give back the remaining messages. Suspends until the server answers."""
        if self._group is not None:
            await self._group.leave()
        partitions = [*self.moves]
        for partition in partitions:
            partition.end()
        await asyncio.gather(*[self.moves.leave(each, 0.0) for each in partitions])


class PendingAcks:
    """The acknowledgements of one connection."""

    def __init__(self, channel: Channel, *, double: bool) -> None:
        self._channel = channel
        self._double = double
        self._owed: dict[str, bytes] = {}

    async def send(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Send these acknowledgements and the unsent ones; suspend until the server has received
        them.

        Raises client errors; then all of them remain unsent.
        """
        self._owed.update(messages)
        sent = dict(self._owed)
        if not sent:
            return
        if self._double:
            await self._confirmed([*sent.items()])
        else:
            await self._channel.send(sent.items())
        for reply in sent:
            self._owed.pop(reply, None)

    async def _confirmed(self, messages: Sequence[tuple[str, bytes]]) -> None:
        request = self._channel.request
        for at in range(0, len(messages), AT_ONCE):
            some = messages[at : at + AT_ONCE]
            await asyncio.gather(*[request(reply, payload) for reply, payload in some])

    def forget(self) -> None:
        """Drop the unsent acknowledgements, since the held messages were lost."""
        self._owed.clear()


async def unread(session: StreamSession, partition: StreamPartition) -> Unread:
    """Return the number of pending or undelivered messages, and the age of the oldest.

    Raises errors of the client and `RequestRefused`.
    """
    api = session.api
    state = await api.consumer(partition.number)
    messages = state.pending + state.unread
    if not messages:
        return Unread(0, 0.0)
    held = partition.intake.held
    if held:
        stored = held[min(held)].timestamp / 1000
    else:
        first = state.floor + 1 if state.pending else state.read_through + 1
        told = await api.stored_at(first, session.options.filters(partition.number))
        if told is None:
            return Unread(messages, 0.0)
        stored = datetime.fromisoformat(told).timestamp()
    return Unread(messages, max(0.0, LOOP_CLOCK.wall_time() - stored))
