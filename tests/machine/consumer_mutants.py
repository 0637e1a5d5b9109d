"""Planted bugs of the consumer: each is a small change of one method, with the law that
detects it.

White box: the bugs are planted in private code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sluicegate import Ack
from sluicegate.consumer import MemorySource, Position
from sluicegate.consumer.handling.batches import BatchSettler
from sluicegate.consumer.handling.workers import Workers
from sluicegate.consumer.lanes.schedule import Schedule
from sluicegate.consumer.lanes.window import Window
from sluicegate.consumer.progress import offset_map
from sluicegate.consumer.progress.claim import Claim, Replayed
from sluicegate.consumer.progress.claims import Claims
from sluicegate.consumer.progress.tracker import Tracker

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from sluicegate import Message

    Mutant = Callable[[pytest.MonkeyPatch], None]


class Planted(NamedTuple):
    """A mutant, the complaints that detect it, and the settings in which it shows."""

    plant: Mutant
    law: str
    where: dict[str, Any]


ALL: dict[str, Planted] = {}


def mutant(law: str, **where: Any) -> Callable[[Mutant], Mutant]:
    """Register a mutant with the start of its complaints and where it shows."""

    def note(plant: Mutant) -> Mutant:
        ALL[plant.__name__] = Planted(plant, law, where)
        return plant

    return note


@mutant("committed past|.*overtook|lost:|a position went back|started", batch=None)
def a_closed_claim_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settlements of a handler after its claim was lost count, and the source commits them."""

    def acknowledge(self: Schedule, message: Message) -> bool:
        claim = message.claim
        claim.tracker.done(message.index)
        self.finish(message)
        if claim.is_closed:
            log = STORE[-1]
            log.store({claim.partition: Position(claim.tracker.next_offset)})
        return True

    monkeypatch.setattr(Schedule, "acknowledge", acknowledge)
    real = MemorySource.__init__

    def init(self: MemorySource, log: Any, **options: Any) -> None:
        STORE.append(log)
        real(self, log, **options)

    monkeypatch.setattr(MemorySource, "__init__", init)


STORE: list[Any] = []


@mutant("committed past")
def the_highest_done_offset_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like clients that mark the last acknowledged record."""

    def snapshot(self: Claim) -> Position:
        position = self.tracker.position()
        ends = [end for _, end in self.tracker.done_ranges()]
        return Position(max([position, *ends]))

    monkeypatch.setattr(Claim, "snapshot", snapshot)


@mutant("not committed|the end was not reached")
def a_position_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first position of a claim is also that of every later commit."""
    real = Tracker.position

    def position(self: Tracker) -> int:
        return STARTS.setdefault(id(self), (self, real(self)))[1]

    monkeypatch.setattr(Tracker, "position", position)


STARTS: dict[int, tuple[Tracker, int]] = {}


@mutant("committed past|lost:|overtook|not committed")
def a_late_settle_is_not_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index below the base counts from the end and settles another record."""

    def acknowledge(self: Schedule, message: Message) -> bool:
        claim, tracker = message.claim, message.claim.tracker
        if claim.is_closed or not tracker.bits:
            return False
        tracker.position()
        at = message.index - tracker.base
        tracker.bits[at if -len(tracker.bits) <= at < len(tracker.bits) else -1] = 1
        tracker.bits[(at - 1) if -len(tracker.bits) <= at - 1 else at] |= at == 0
        self.finish(message)
        return True

    monkeypatch.setattr(Schedule, "acknowledge", acknowledge)


@mutant("a wake-up was lost|lost:|the end was not reached|after 20000 rounds")
def a_wake_up_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle worker is woken only once."""
    real = Workers.wake

    def wake(self: Workers) -> None:
        if len(self.slots) < 2:
            real(self)

    monkeypatch.setattr(Workers, "wake", wake)


@mutant("a key runs twice|.*overtook|a running key|.*keys active|a consumer failed", batch=None)
def a_key_is_freed_when_its_claim_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lanes are dropped with the claim, although a handler of the key still runs."""
    real = Claims.ended

    def ended(self: Claims, claims: Any) -> None:
        real(self, claims)
        self._schedule._lanes.clear()

    monkeypatch.setattr(Claims, "ended", ended)


@mutant("committed past")
def position_and_map_are_of_two_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The map is encoded relative to the position of the previous commit."""
    real = Claim.snapshot

    def snapshot(self: Claim) -> Position:
        before = self.tracker.position()
        found = real(self)
        ranges = [(start + 1, end + 1) for start, end in self.tracker.done_ranges()]
        return Position(found.offset, offset_map.encode(before, ranges).text)

    monkeypatch.setattr(Claim, "snapshot", snapshot)


@mutant(
    "the window is exceeded|a consumer failed|.*keys active|give",
    batch=None,
    max_in_flight=2,
    concurrency=8,
)
def the_window_does_not_count_backoffs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message in backoff gives up its place, and takes it again when it is due."""
    real = Schedule.back_off

    def back_off(self: Schedule, message: Message, due: float, **options: Any) -> None:
        self.window.give(1, message.size)
        real(self, message, due, **options)

    def release_due(self: Schedule, now: float) -> None:
        for message, keeps_key in self.retries.pop_due(now):
            self.window.take(1, message.size)
            if keeps_key or message.claim.lanes.enter(message):
                self.ready.append(message)

    monkeypatch.setattr(Schedule, "back_off", back_off)
    monkeypatch.setattr(Schedule, "release_due", release_due)


@mutant("committed past|lost:|.*overtook", batch=3, max_in_flight=40, concurrency=2, chunk=50)
def the_prefix_rule_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that a batch acknowledges behind a failed one of their key are settled."""

    def settle_key(self: Any, messages: list[Message], results: Any) -> None:
        failed = [m for m in messages if not (results[m] is None or type(results[m]) is Ack)]
        *acked, last = [*(m for m in messages if m not in failed), *failed[:1]]
        for message in acked:
            self._settler.settle_first(message, None)
        self._put_back(failed[1:])
        self._end(last, results[last])

    monkeypatch.setattr(BatchSettler, "_settle_key", settle_key)


@mutant(".*overtook|a consumer failed", batch=None, max_in_flight=40, concurrency=8)
def a_failed_message_gives_its_key_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is retried behind later messages of its key."""
    real = Schedule.back_off

    def back_off(self: Schedule, message: Message, due: float, *, keeps_key: bool = True) -> None:
        real(self, message, due, keeps_key=False)

    monkeypatch.setattr(Schedule, "back_off", back_off)


@mutant(".*was committed when its claim began", batch=None, concurrency=8)
def the_map_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records settled beyond the position are repeated after a restart."""
    monkeypatch.setattr(Claim, "_replay", lambda self, start, foreign_map: Replayed([]))


@mutant("started|committed past|a key runs twice|.*overtook", batch=None)
def queued_messages_outlive_their_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """A revoke does not drop lanes and ready messages."""
    monkeypatch.setattr(Schedule, "drop", lambda self, claims, **_: [])


@mutant("the window is exceeded")
def the_window_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """All fetched records are admitted."""
    monkeypatch.setattr(Window, "fitting", lambda self, sizes: len(sizes))
    monkeypatch.setattr(Window, "room", property(lambda self: self.max_messages))
    monkeypatch.setattr(Window, "is_full", property(lambda self: False))


@mutant(
    "a key runs twice|a key is ready twice|a running key|.*overtook|a consumer failed", batch=None
)
def a_busy_key_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record whose key is active starts immediately."""

    def finish(self: Schedule, message: Message) -> None:
        lanes = message.claim.lanes
        behind = lanes.leave(message.lane_key)
        if behind is not None:
            self.ready.append(behind)
            more = lanes.next(message.lane_key)
            if more is not None:
                self.ready.append(more)
        self.window.give(1, message.size)

    def acknowledge(self: Schedule, message: Message) -> bool:
        if not message.claim.settle(message.index):
            return False
        finish(self, message)
        return True

    monkeypatch.setattr(Schedule, "acknowledge", acknowledge)
