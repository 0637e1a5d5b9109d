"""One partition of a stream, read through one durable consumer: its claim and held messages.

1. A claim begins with the consumer's state on the server. It ends by a drain, whose remaining
   messages are given back in the order of the stream, or by a loss, after which none of its
   messages is settled.
2. A message that can no longer be delivered in its place (for example, because an acknowledgement
   by another process was undone) ends the claim by a drain. The next claim delivers all held
   messages.
3. Messages are given back after the server has stopped delivering here, so that none is in transit.
4. After the loss of a claim, messages may still arrive that were redelivered to another process in
   the meantime. The inbox is therefore dropped with the claim, and later messages are ignored.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..._core.source import Fetched, Position, TopicPartition
from ..client import RawHeaders
from .channel import ACK, NAK, TERM
from .intake import AckSubject, NoKey, StreamIntake, StreamRecord
from .puller import MOST_BYTES, Puller

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ..._core.source import SourceClaim
    from .channel import Channel, ConsumerState, StreamSession
    from .puller import News

PIN = "Nats-Pin-Id"
_NO_HEADERS = RawHeaders({}, b"")
PATIENCE = 2.0
"""Number of acknowledgement waits to wait for messages of a consumer that pins no process."""
RECENT = 1_000
"""Number of last settled messages whose acknowledgements may be lost with a connection."""
CHECK_EVERY = 0.1
"""Seconds between requests while messages are pending elsewhere."""


class Identity(NamedTuple):
    """Creation times of the stream and the consumer; a different time means a different object."""

    stream: str | None = None
    consumer: str | None = None


class StreamPartition:
    """A partition that this process serves."""

    def __init__(
        self,
        number: int,
        session: StreamSession,
        notify: Callable[[StreamPartition, News | None], None],
    ) -> None:
        self.number = number
        self.claim: SourceClaim | None = None
        self.intake = StreamIntake()
        self.puller: Puller | None = None
        self.is_leaving = False
        """Whether requests and deliveries are paused: its claim drains, or will begin again."""
        self._among = 1
        """The number of partitions that share the room of the consumer."""
        self.is_left = False
        """Whether this process leaves the partition: no claim begins any more."""
        self._options = session.options
        self._channel = session.channel
        self._api = session.api
        self._host = session.host
        self._notify = notify
        self._inbox: ClaimInbox | None = None
        self._checks = PendingChecks()
        self._group: str | None = None
        self._identity = Identity()

    @property
    def name(self) -> str:
        """The name of its consumer."""
        return self._options.consumer(self.number)

    async def begin(self) -> ConsumerState:
        """Find or create the consumer, begin a claim unless the partition is left, and receive.

        Raises client errors, `RequestRefused` and `ConfigError`.
        """
        stream = (await self._api.stream())["created"]
        if self._identity.stream != stream:
            self.intake = StreamIntake()
        state = await self._api.ensure(self.number, self.intake.floor or None)
        if self._identity.consumer != state.created:
            self.intake.renumber()
        self._identity = Identity(stream, state.created)
        self._group = state.group
        self._channel.expect(state.ack_wait)
        if self._inbox is None or self._inbox.is_dropped:
            await self._open_inbox(state)
        elif self.puller is not None:
            self.puller.begin_again(state.pinned)
        self.intake.begin(state.delivered)
        await self._look(state)
        if not self.is_left:
            partition = TopicPartition(self._options.stream, self.number)
            (self.claim,) = self._host.assigned({partition: Position(state.floor + 1)})
        return state

    async def _open_inbox(self, state: ConsumerState) -> None:
        pin = None if self.puller is None else self.puller.pin
        old, inbox = self._inbox, ClaimInbox(self._channel, self._received)
        await inbox.open()
        self._inbox = inbox
        subject = f"{self._api.prefix}.CONSUMER.MSG.NEXT.{self._options.stream}.{state.name}"
        self.puller = Puller(self._channel, subject, inbox.subject, state)
        if pin is not None and pin == state.pinned:
            self.puller.stay(pin)
        if old is not None:
            await old.close()

    async def is_back(self) -> bool:
        """Send requests again after a reconnect; return false if the consumer is a different one.
        Raises the errors of `begin`.
        """
        state = await self._api.consumer(self.number)
        if self._identity.consumer != state.created:
            return False
        self.intake.resume(state.delivered)
        if self.puller is not None:
            self.puller.begin_again(state.pinned)
        return True

    # -- receiving ---------------------------------------------------------------------------------

    async def _received(self, message: Any) -> None:
        if self._channel.has_lapsed:  # it may have arrived earlier, and be elsewhere by now
            self._notify(self, None)
            return
        headers = _NO_HEADERS if message.headers is None else cast("RawHeaders", message.headers)
        puller, now = self.puller, asyncio.get_running_loop().time()
        if puller is None:
            return
        if not message.reply.startswith("$JS.ACK."):
            self._notify(self, puller.status(message.subject, headers, now))
            return
        puller.message(headers.get(PIN), now)
        delivery = AckSubject.of(message.reply)
        intake = self.intake
        kind = intake.kind(delivery)
        if kind == "held":
            intake.redeliver(delivery, message.reply)
        elif kind == "settled":
            await self._channel.publish(message.reply, ACK)
        else:
            intake.receive(self._record(message, delivery, headers))
        self._notify(self, None)

    def _record(self, message: Any, delivery: AckSubject, headers: RawHeaders) -> StreamRecord:
        subject, error = cast("str", message.subject), headers.error
        if not subject.isascii():
            try:
                subject.encode()
            except UnicodeEncodeError as raised:  # it has escaped bytes
                return self._of_bad_subject(message, delivery, headers, raised)
        if self._options.partitions is not None:
            subject = subject.partition(".")[2]
        return StreamRecord(
            self._options.stream,
            self.number,
            delivery,
            subject=subject,
            key=self._key(subject, headers),
            value=message.data,
            headers=_own(headers),
            reply=message.reply,
            error=error,
        )

    def _of_bad_subject(
        self, message: Any, delivery: AckSubject, headers: RawHeaders, error: UnicodeEncodeError
    ) -> StreamRecord:
        """Return the record of a message whose subject is not UTF-8, without a key."""
        raw = message.subject.encode(errors="surrogateescape")
        return StreamRecord(
            self._options.stream,
            self.number,
            delivery,
            subject=raw.decode(errors="backslashreplace"),
            key=NoKey(error),
            value=message.data,
            headers=[*_own(headers), ("subject", raw)],
            reply=message.reply,
            error=error,
        )

    def _key(self, subject: str, headers: Mapping[str, str]) -> object:
        try:
            return self._options.key(subject, headers)
        except Exception as error:  # the message becomes poison
            return NoKey(error)

    # -- delivering --------------------------------------------------------------------------------

    def take(self, most: int) -> list[Fetched]:
        """Deliver up to `most` records. Does not suspend."""
        fetched: list[Fetched] = []
        claim = self.claim
        while claim is not None and most > 0:
            records, failed = self.intake.take(most)
            if not records:
                break
            most -= len(records)
            delivered = [record.delivered() for record in records]
            fetched.append(Fetched(claim, delivered, failed=failed))
        return fetched

    def share(self, prefetch: int, among: int) -> None:
        """Set the messages to fetch ahead, and the number of partitions that share the room."""
        self._among = among
        if self.puller is not None:
            self.puller.window.share(prefetch)

    async def tend(self, now: float) -> float:
        """Request messages if there is room, and check the server if messages wait; return the time
        of the next check. Raises the errors of `begin`.
        """
        puller, intake = self.puller, self.intake
        if puller is None or self.claim is None or self.is_leaving:
            return now + CHECK_EVERY
        looks = intake.is_waiting and intake.received > 0
        if looks and now >= self._checks.due:
            await self._look(await self._api.consumer(self.number))
        puller.check_heard(now)
        if wanted := puller.window.wanted(intake.received, len(intake.held), self._checks.away):
            is_empty = not intake.received
            room = self._host.room_bytes // self._among - intake.received_bytes
            if self._checks.away:  # nothing is taken before those messages arrive
                room, is_empty = MOST_BYTES, True
            await puller.ask(wanted, now, room, is_empty=is_empty)
        await puller.stay_pinned(now)
        due = puller.next_due(now)
        return min(due, self._checks.due) if looks else due

    async def _look(self, state: ConsumerState) -> None:
        """Compare the held messages with those pending at the server. Raises the errors of `begin`."""
        now, intake = asyncio.get_running_loop().time(), self.intake
        if state.group is not None and self._is_delivered_elsewhere(state):
            # otherwise both processes would wait for each other's messages
            await self._channel.send([(each.reply, NAK) for each in intake.let_go()])
        self._checks.record(intake.away(state.pending, state.delivered), now)
        # with other readers of the same consumer, messages may be away forever
        is_shared = (
            state.group is None and self._checks.pending_for(now) > PATIENCE * state.ack_wait
        )
        if intake.look(0 if is_shared else state.pending, state.delivered):
            self._checks.record(0, now)
            self._notify(self, None)

    def _is_delivered_elsewhere(self, state: ConsumerState) -> bool:
        pin = None if self.puller is None else self.puller.pin
        return state.pinned is not None and state.pinned != pin

    # -- settling ----------------------------------------------------------------------------------

    def take_acks(self) -> list[tuple[str, bytes]]:
        """Return the acknowledgements for the records settled since the last call."""
        if self.claim is None or self.claim.is_closed:
            return []
        offsets, given_up = self.claim.take_settled()
        done = self.intake.settle(offsets)
        return [(reply, TERM if offset in given_up else ACK) for offset, reply in done]

    def last_acks(self) -> list[tuple[str, bytes]]:
        """Return the last acknowledgements, to be repeated after a reconnect."""
        return [(reply, ACK) for reply in self.intake.last_settled(RECENT)]

    # -- the end of a claim ------------------------------------------------------------------------

    async def drain(self, within: float) -> None:
        """Wait for the running messages of the claim, settle them, and end the claim."""
        if (claim := self.claim) is None:
            return
        await self._host.revoked([claim], within)
        try:
            await self._channel.send(self.take_acks())
        finally:
            self.end()

    def end(self) -> None:
        """End the claim: none of its messages is settled any more."""
        claim, self.claim = self.claim, None
        if claim is not None:
            self._host.ended([claim])

    def begin_leaving(self) -> None:
        """Pause requests and deliveries."""
        self.is_leaving = True

    def leave(self) -> None:
        """Pause requests and deliveries, and begin no further claim."""
        self.is_leaving = self.is_left = True

    def stay(self) -> None:
        """Resume requests and deliveries."""
        self.is_leaving = False

    def restart(self) -> None:
        """Deliver all held messages again, to the next claim."""
        self.intake.restart()

    def lose(self) -> None:
        """End the claim without a drain, and drop its messages, including those in transit."""
        if self._inbox is not None:
            self._inbox.drop()
        self.end()
        self.intake.give_up()

    async def give_back(self) -> None:
        """Give back the remaining messages in the order of the stream. Its claim has ended.

        Raises client errors, and `RequestRefused`; held messages are then redelivered
        elsewhere after the acknowledgement wait.
        """
        try:
            if self._group is not None and self.puller is not None and self.puller.pin is not None:
                await self._api.unpin(self.name, self._group)
            else:
                await self._close_inbox()
            await self._channel.flush()
            await self._channel.send([(each.reply, NAK) for each in self.intake.give_up()])
        finally:
            await self._close_inbox()

    async def _close_inbox(self) -> None:
        inbox, self._inbox, self.puller = self._inbox, None, None
        if inbox is not None:
            await inbox.close()


def _own(headers: RawHeaders) -> list[tuple[str, bytes]]:
    """Return the headers of a message without the one that the server adds."""
    return [entry for entry in headers.entries if entry[0] != PIN]


class ClaimInbox:
    """The inbox of a claim's deliveries. `received` is called for each message until it is dropped."""

    def __init__(self, channel: Channel, received: Callable[[Any], Awaitable[None]]) -> None:
        self._channel = channel
        self._received = received
        self.subject = channel.inbox()
        self.is_dropped = False
        self._subscription: Any = None

    async def open(self) -> None:
        """Subscribe. Raises client errors."""
        self._subscription = await self._channel.subscribe(f"{self.subject}.*", self._call)

    async def _call(self, message: Any) -> None:
        if not self.is_dropped:
            await self._received(message)

    def drop(self) -> None:
        """Ignore all further messages."""
        self.is_dropped = True

    async def close(self) -> None:
        """Drop it, and unsubscribe. Raises client errors."""
        self.drop()
        subscription, self._subscription = self._subscription, None
        if subscription is not None and self._channel.is_connected:
            await subscription.unsubscribe()


class PendingChecks:
    """The requests for the messages that are pending at other processes."""

    def __init__(self) -> None:
        self.due = 0.0
        """The time of the next request while messages wait."""
        self.away = 0
        """Number of messages pending elsewhere at the last request."""
        self._since: float | None = None
        """The time since when there have been such messages without interruption."""

    def record(self, away: int, now: float) -> None:
        """Record the result of a request."""
        self.due = now + CHECK_EVERY
        self.away = max(0, away)
        if not self.away:
            self._since = None
        elif self._since is None:
            self._since = now

    def pending_for(self, now: float) -> float:
        """Return how long messages have been pending elsewhere, in seconds."""
        return 0.0 if self._since is None else now - self._since
