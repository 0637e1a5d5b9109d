"""The place of each unsettled message of a consumer.

1. Each message is in exactly one place: in a worker, in the task of a write, waiting for `settle()`
   or for a job, blocked, backing off, ready, in a batch that no worker has taken yet, or in its
   lane. All places together are the window.
2. The oldest unfinished message of a claim determines its position. If it waits in a lane, the
   cause is the message that occupies its key. A message that waits for its job occupies nothing,
   unless there is no room for the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .report import WaitReason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ..._core.source import Source
    from ..failures.departures import Departures
    from ..handling.settling import Settler
    from ..handling.workers import Workers
    from ..lanes.batches import BatchFormer
    from ..lanes.message import Message
    from ..lanes.schedule import Schedule
    from ..progress.claim import Claim
    from ..progress.claims import Claims
    from ..progress.source_tasks import Committer
    from ..run import Run

_WITHOUT_A_TURN = (WaitReason.QUEUED_BEHIND, WaitReason.JOB)


class Standing(NamedTuple):
    """A message and the reason for its wait."""

    message: Message
    reason: WaitReason
    due: float | None = None
    """The end of a backoff, or the due time of a batch, in the clock's seconds."""
    error: BaseException | None = None
    """Why the message is blocked."""


@dataclass(frozen=True, slots=True)
class Places:
    """The objects that hold the messages of an open consumer. Views read them, and never change
    them.
    """

    run: Run
    source: Source
    claims: Claims
    schedule: Schedule
    workers: Workers
    departures: Departures
    settler: Settler
    committer: Committer

    def standings(self) -> Iterator[Standing]:
        """Yield every unsettled message once; at most one window of them."""
        schedule = self.schedule
        yield from self.busy()
        for due, entry in schedule.retries:
            yield Standing(entry.message, WaitReason.BACKING_OFF, due)
        for message in schedule.ready:
            yield Standing(message, WaitReason.READY)
        yield from _in_batches(schedule.former)
        for message in schedule.waiting_behind():
            yield Standing(message, WaitReason.QUEUED_BEHIND)

    def busy(self) -> Iterator[Standing]:
        """Yield the messages with a running turn: neither queued nor backing off."""
        for slot in self.workers.slots:
            reason = WaitReason.DEAF if slot.is_deaf else WaitReason.RUNNING
            for message in slot.messages():
                yield Standing(message, reason)
        for message in self.departures.writing:
            yield Standing(message, self.departures.reason_of(message))
        jobs = self.settler.jobs
        for message in self.settler.manual:
            yield Standing(message, message.lent_for)
        for message in self.schedule.completed.out:
            has_room = jobs is None or not jobs.has_no_room(message)
            yield Standing(message, WaitReason.JOB if has_room else WaitReason.NO_ROOM)
        for message, error in self.schedule.blocked.items():
            yield Standing(message, WaitReason.BLOCKED, error=error)

    def oldest_of(self, claims: Collection[Claim]) -> dict[Claim, Standing]:
        """Return the state and place of the oldest unfinished message of each claim that has one.

        Costs a pass over the window.
        """
        wanted = {(claim, claim.tracker.head()) for claim in claims}
        found: dict[Claim, Standing] = {}
        for standing in self.standings():
            message = standing.message
            if (message.claim, message.index) in wanted:
                found[message.claim] = standing
        return found

    def holders_of(self, queued: Collection[Message]) -> dict[Message, Standing]:
        """Return the state and place of the message that occupies the key of each of these queued
        messages.
        """
        by_lane: dict[tuple[int, object], list[Message]] = {}
        for message in queued:
            by_lane.setdefault(_lane(message), []).append(message)
        found: dict[Message, Standing] = {}
        for standing in self.standings() if queued else ():
            if standing.reason not in _WITHOUT_A_TURN:
                for message in by_lane.get(_lane(standing.message), ()):
                    found.setdefault(message, standing)
        return found


def _in_batches(former: BatchFormer | None) -> Iterator[Standing]:
    """Yield the messages of batches that no worker has taken."""
    if former is None:
        return
    for message in former.full:
        yield Standing(message, WaitReason.READY)
    for due, messages in former.forming:
        for message in messages:
            yield Standing(message, WaitReason.FORMING, due)


def _lane(message: Message) -> tuple[int, object]:
    return id(message.claim.lanes), message.lane_key
