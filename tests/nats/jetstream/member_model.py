"""A process that reads the consumer of `server_model`: its intake, its puller and a minimal
consumer.

White box: the intake and the puller.

It does the same as the real surrounding code, in the same order, without a connection or tasks. Its
consumer has a lane for each key; only the first record of a lane can be handled.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from tests.nats.jetstream.server_model import TICK, WAIT, Arrival, Request

from sluicegate.nats.jetstream.channel import ConsumerState
from sluicegate.nats.jetstream.intake import AckSubject, StreamIntake, StreamRecord
from sluicegate.nats.jetstream.puller import Puller

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from tests.nats.jetstream.server_model import ServerModel
    from tests.nats.jetstream.truth import Truth


class MemberModel:
    """One process, with its connection."""

    def __init__(self, name: str, server: ServerModel, truth: Truth, prefetch: int) -> None:
        self.name = name
        self.server = server
        self.truth = truth
        self.prefetch = prefetch
        self.intake = StreamIntake()
        self.puller = Puller(cast("Any", self), "next", "inbox", self.state())
        self.puller.window.share(prefetch)
        self.away = 0
        self.lanes: dict[object, deque[StreamRecord]] = {}
        """The records taken in this claim but not handled."""
        self.handled: set[int] = set()
        """The records handled in this claim but not settled."""
        self.is_claimed = False
        self.is_leaving = False
        """Whether the claim has to be restarted."""
        self.is_frozen = False
        self.is_connected = True
        self.wire: deque[Arrival] = deque()
        self.owed: dict[str, None] = {}
        """Acknowledgements that may not have arrived, in order."""
        self.alive_at = server.now
        server.wires[name] = self.wire
        self.begin()

    @property
    def is_up(self) -> bool:
        """Whether it runs and is connected."""
        return self.is_connected and not self.is_frozen

    @property
    def has_lapsed(self) -> bool:
        """Whether held messages may have been delivered to another member."""
        return self.server.now - self.alive_at >= WAIT

    @property
    def now(self) -> float:
        """The time, in seconds."""
        return self.server.now * TICK

    def state(self) -> ConsumerState:
        """The consumer as the server reports it."""
        return ConsumerState.of(self.server.info())

    async def publish(self, subject: str, payload: bytes, reply: str) -> None:
        """Send a request of the puller."""
        assert subject == "next"
        asked = json.loads(payload)
        if reply == "inbox.m":
            self.server.ask(Request(self.name, asked["batch"], asked.get("id")))
        else:
            self.server.sign(asked["id"])

    # -- the claim ---------------------------------------------------------------------------------

    def begin(self, arriving: int = 0) -> None:
        """Begin a claim with the server's state while messages arrive."""
        state = self.state()
        self.server.deliver(arriving)
        self.receive(arriving)
        self.puller.begin_again(state.pinned)
        self.intake.begin(state.delivered)
        self.look(state)
        self.is_claimed, self.is_leaving = True, False

    def end(self) -> None:
        """End the claim: none of its messages is settled any more."""
        self.is_claimed = False
        self.lanes.clear()
        self.handled.clear()

    def check_lapse(self) -> None:
        """If held messages may be elsewhere, lose the claim and begin another one."""
        if not self.has_lapsed:
            return
        self.alive_at = self.server.now
        if self.intake.held:
            self.owed.clear()
            self.end()
            self.intake.give_up()
            self.is_leaving = True

    def go_on(self, arriving: int) -> None:
        """Begin the next claim if one has ended or must be restarted, while messages arrive."""
        if self.is_up and (self.is_leaving or not self.is_claimed):
            if self.is_claimed:
                self.settle()
                self.end()
                self.intake.restart()
            self.begin(arriving)

    # -- arrivals ----------------------------------------------------------------------------------

    def receive(self, most: int) -> None:
        """Process up to this many arrivals."""
        for _ in range(min(most, len(self.wire))):
            self._received(self.wire.popleft())

    def _received(self, arrival: Arrival) -> None:
        if not arrival.reply:
            told = {"Status": arrival.status, "Nats-Pending-Messages": str(arrival.left)}
            self.puller.status("inbox.m", told, self.now)
            return
        self.puller.message(arrival.pin, self.now)
        delivery, intake = AckSubject.of(arrival.reply), self.intake
        kind = intake.kind(delivery)
        if kind == "held":
            intake.redeliver(delivery, arrival.reply)
        elif kind == "settled":
            self.truth.ack(self.name, arrival.reply)
        else:
            intake.receive(record_of(delivery, arrival))
        self.check_lapse()
        if intake.is_out_of_place:
            self.is_leaving = True

    # -- requests ----------------------------------------------------------------------------------

    def look(self, state: ConsumerState) -> None:
        """Compare with the server's state; release waiting messages if another member is pinned."""
        if state.pinned not in {None, self.puller.pin}:
            self.truth.give_back(self.name, [each.reply for each in self.intake.let_go()])
        self.away = self.intake.away(state.pending, state.delivered)
        if self.intake.look(state.pending, state.delivered):
            self.away = 0

    def tend(self, arriving: int) -> None:
        """Query the server if messages wait, while others arrive; request as many as there is
        capacity for.
        """
        if not self.is_claimed or self.is_leaving:
            return
        if self.intake.is_waiting and self.intake.received:
            state = self.state()
            self.server.deliver(arriving)
            self.receive(arriving)
            self.look(state)
        self.puller.check_heard(self.now)
        held, received = len(self.intake.held), self.intake.received
        if not (wanted := self.puller.window.wanted(received, held, self.away)):
            return
        before = self.puller.window.credit
        run_now(self.puller.ask(wanted, self.now))
        if (credit := self.puller.window.credit) == before:
            return
        assert credit + held <= self.most_held, "asked for too much: more may not be pending"
        fits = credit + received <= self.prefetch + self.away or credit <= self.away
        assert fits, "asked for too much: there is no room for it"

    @property
    def most_held(self) -> int:
        """The largest number of messages that it may hold and have requested."""
        return self.server.max_pending + (self.away > 0)

    def beat(self) -> None:
        """Extend the held messages, and stay pinned."""
        self.check_lapse()
        self.receive(len(self.wire))
        for record in self.intake.held.values():
            self.server.extend(record.reply)
        self.alive_at = self.server.now

    # -- the consumer ------------------------------------------------------------------------------

    def take(self, most: int) -> None:
        """Move up to this many records into their lanes."""
        if self.is_claimed and not self.is_leaving:
            records, _ = self.intake.take(most)
            for record in records:
                self.lanes.setdefault(record.key, deque()).append(record)

    def handle(self, which: int) -> None:
        """Handle the first record of a lane; a failed one stays in place."""
        self.check_lapse()
        lanes = [key for key, lane in self.lanes.items() if lane]
        if not lanes:
            return
        record = self.lanes[lanes[which % len(lanes)]].popleft()
        self.handled.add(record.offset)
        self.truth.handle(record.offset)

    def settle(self, cut: int | None = None) -> None:
        """Acknowledge handled messages; if the connection is cut, only the first acknowledgements
        arrive.
        """
        self.check_lapse()
        if not self.is_claimed:
            return
        done = self.intake.settle(sorted(self.handled))
        self.handled.clear()
        self.owed.update(dict.fromkeys(reply for _, reply in done))
        self._send_owed(cut if self.is_connected else 0)

    def _send_owed(self, cut: int | None = None) -> None:
        for reply in [*self.owed][:cut]:
            self.truth.ack(self.name, reply)
        if cut is None:
            self.owed.clear()

    # -- the connection ----------------------------------------------------------------------------

    def disconnect(self, *, is_noticed: bool) -> None:
        """Lose the connection and everything in flight; the server may still deliver for a
        while.
        """
        self.puller.suspend()
        self.is_connected = False
        self.wire.clear()
        self.server.wires.pop(self.name, None)
        self.truth.may_repeat(self.name)
        if is_noticed:
            self.server.drop_requests(self.name)

    def reconnect(self, late: Sequence[str]) -> None:
        """Reconnect: late writes arrive first, then lost ones are sent again."""
        self.is_connected = True
        self.server.wires[self.name] = self.wire
        for reply in late:
            self.truth.ack(self.name, reply)
        self.truth.may_repeat(self.name)
        self.owed.update(dict.fromkeys(self.intake.last_settled(1_000)))
        self._send_owed()
        self.beat()
        self.intake.resume(self.server.delivered)
        self.puller.begin_again(self.server.pinned)

    def give_back(self, cut: int | None = None) -> None:
        """Leave: settle, stop the deliveries, and nak the rest in order; if the connection is cut,
        only the first messages arrive.
        """
        self.settle()
        self.end()
        if self.puller.pin is not None:
            self.server.unpin()
        self.server.drop_requests(self.name)
        self.receive(len(self.wire))
        rest = [each.reply for each in self.intake.give_up()]
        self.truth.give_back(self.name, rest[:cut])
        self.vanish()

    def vanish(self) -> None:
        """Disappear together with the connection."""
        self.server.wires.pop(self.name, None)
        self.server.drop_requests(self.name)


def run_now(call: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that does not suspend."""
    try:
        call.send(None)
    except StopIteration:
        return
    raise AssertionError("it has suspended")


def record_of(delivery: AckSubject, arrival: Arrival) -> StreamRecord:
    """The record of a message."""
    return StreamRecord(
        "s", 0, delivery, subject=arrival.key, key=arrival.key, value=b"", headers=(),
        reply=arrival.reply,
    )  # fmt: skip
