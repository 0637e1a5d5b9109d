"""Planted bugs in message ordering: each is a small change of one method, with the law that detects
it.

White box: the bugs are planted in private code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.nats.jetstream import order_programs
from tests.nats.jetstream.member_model import MemberModel

from sluicegate.nats.jetstream.intake import StreamIntake
from sluicegate.nats.jetstream.puller import Puller, PullWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pytest
    from tests.nats.jetstream.order_machine import OrderMachine

    from sluicegate.nats.jetstream.intake import AckSubject, StreamRecord

    Program = Callable[[OrderMachine], None]

    Mutant = Callable[[pytest.MonkeyPatch], None]


class Planted(NamedTuple):
    """A mutant, the complaint that detects it, and the program or the settings in which it
    shows.
    """

    plant: Mutant
    law: str
    program: Program | None
    where: dict[str, Any]


ALL: dict[str, Planted] = {}
ROOM: dict[str, Any] = {"max_pending": 12, "prefetch": 6}


def mutant(law: str, program: Program | None = None, **where: Any) -> Callable[[Mutant], Mutant]:
    """Register a mutant with the start of its complaint and where it shows."""

    def note(plant: Mutant) -> Mutant:
        ALL[plant.__name__] = Planted(plant, law, program, where)
        return plant

    return note


@mutant("overtook", order_programs.gap)
def nothing_waits_behind_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages lost with a connection are delivered behind newer ones."""
    real = StreamIntake.kind

    def kind(self: StreamIntake, delivery: AckSubject) -> Any:
        self._last = delivery.consumer_sequence  # pyright: ignore[reportPrivateUsage]
        return real(self, delivery)

    monkeypatch.setattr(StreamIntake, "kind", kind)


@mutant("overtook", **ROOM)
def what_waits_is_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting messages are released in the order of arrival."""
    real = StreamIntake.look

    def look(self: StreamIntake, pending: int, delivered: int) -> bool:
        waiting = [*self._waiting.values()]  # pyright: ignore[reportPrivateUsage]
        before = self.is_waiting
        done = real(self, pending, delivered)
        if done and before:
            ready = self._ready  # pyright: ignore[reportPrivateUsage]
            for _ in waiting:
                ready.pop()
            ready.extend(waiting)
        return done

    monkeypatch.setattr(StreamIntake, "look", look)


@mutant("overtook", order_programs.answer)
def what_arrives_behind_the_answer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that arrive after the server's answer make up for those that are elsewhere."""

    def away(self: StreamIntake, pending: int, delivered: int) -> int:
        del delivered
        return max(0, pending - len(self.held))

    monkeypatch.setattr(StreamIntake, "away", away)


@mutant("overtook", order_programs.forgotten)
def numbers_of_deliveries_are_trusted_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may have forgotten some, and reused their numbers for another member's
    messages.
    """
    monkeypatch.setattr(StreamIntake, "resume", lambda self, delivered: None)


@mutant("stuck", order_programs.undone)
def what_is_astray_waits_in_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim is not restarted, and nothing can be put before the messages it has delivered."""
    real = StreamIntake.kind

    def kind(self: StreamIntake, delivery: AckSubject) -> Any:
        found = real(self, delivery)
        self.is_out_of_place = False
        return found

    monkeypatch.setattr(StreamIntake, "kind", kind)


@mutant("never handled", order_programs.gap)
def what_is_below_the_mark_counts_as_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message before the last one is acknowledged, whether it was handled or not."""
    real = StreamIntake.kind

    def kind(self: StreamIntake, delivery: AckSubject) -> Any:
        found = real(self, delivery)
        is_below = delivery.sequence < max(self.held, default=0)
        return "settled" if is_below and found == "new" else found

    monkeypatch.setattr(StreamIntake, "kind", kind)


@mutant("out of order", **ROOM)
def the_rest_is_given_back_as_it_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """With redeliveries among newer messages."""
    real = StreamIntake.give_up

    def give_up(self: StreamIntake) -> list[StreamRecord]:
        order = [*self.held]
        return sorted(real(self), key=lambda record: order.index(record.offset))

    monkeypatch.setattr(StreamIntake, "give_up", give_up)


@mutant("settled twice|stuck")
def what_is_settled_stays_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is acknowledged, and given back with the rest."""
    real = StreamIntake.settle

    def settle(self: StreamIntake, offsets: Any) -> list[tuple[int, str]]:
        held = dict(self.held)
        done = real(self, offsets)
        if done:
            first = done[0][0]
            self.held[first] = held[first]
        return done

    monkeypatch.setattr(StreamIntake, "settle", settle)


@mutant("stuck")
def what_is_away_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prefetch is filled by messages that wait for the ones away."""
    real = PullWindow.wanted

    def wanted(self: PullWindow, received: int, held: int, away: int = 0) -> int:
        del away
        return real(self, received, held)

    monkeypatch.setattr(PullWindow, "wanted", wanted)


@mutant("stuck", order_programs.each_other)
def members_keep_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for messages that another one holds."""
    monkeypatch.setattr(StreamIntake, "let_go", lambda self: [])


@mutant("asked for too much", max_pending=2)
def more_is_asked_for_than_may_be_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held messages do not count."""
    real = PullWindow.wanted

    def wanted(self: PullWindow, received: int, held: int, away: int = 0) -> int:
        del held
        return real(self, received, 0, away)

    monkeypatch.setattr(PullWindow, "wanted", wanted)


@mutant("stuck")
def an_identity_is_kept_that_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart, or when another process was pinned, every request has the old identity."""
    real = Puller.status

    def status(self: Puller, subject: str, headers: Mapping[str, str], now: float) -> Any:
        pin = self.pin
        news = real(self, subject, headers, now)
        self.pin = pin
        return news

    monkeypatch.setattr(Puller, "status", status)
    monkeypatch.setattr(Puller, "begin_again", lambda self, pinned: resumed(self))


def resumed(puller: Puller) -> None:
    """Like `begin_again`, but keeps the identity."""
    puller.window.reset()
    puller._not_before = 0.0  # pyright: ignore[reportPrivateUsage]


@mutant("not extended", **ROOM)
def only_what_was_taken_is_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting messages go to another member meanwhile."""

    def beat(self: MemberModel) -> None:
        self.check_lapse()
        self.receive(len(self.wire))
        for lane in self.lanes.values():
            for record in lane:
                self.server.extend(record.reply)
        self.alive_at = self.server.now

    monkeypatch.setattr(MemberModel, "beat", beat)
