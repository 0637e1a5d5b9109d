"""The end of all activity in claims: no message is queued or running.

1. Messages that are queued, back off or are blocked leave immediately. Messages that wait for a
   manual settle leave at the deadline.
2. Running handlers and writes are cancelled at the deadline, and then have `GRACE` seconds to end.
   A handler that ignores its cancellation is deaf: it is reported, and keeps its key.
3. A message that its source has cancelled ends alone: its handler is cancelled, or does not begin.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..._core.clock import wait_until
from ..._core.errors import StoppedError
from ..._core.logs import log_safely
from ..handling.results import cancelled_by_source
from ..operating.report import WaitReason

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..failures.departures import Departures
    from ..handling.settling import Settler
    from ..handling.workers import Slot, Workers
    from ..lanes.message import Message
    from ..lanes.schedule import Schedule
    from ..run import Run
    from .claim import Claim

GRACE = 0.1
"""Seconds for a cancelled handler to end."""

logger = logging.getLogger("sluicegate.consumer")

_DEAF = (
    "%s: the %s of %s does not end although it was cancelled (a thread cannot be stopped); its key "
    "waits until it ends"
)


def report_deaf(slot: Slot, run: Run) -> None:
    """Report a handler that ignores its cancellation; once."""
    if slot.turn_deaf():
        run.count("deaf")
        messages = slot.messages()
        told = messages[0].coordinates
        told += f" and {len(messages) - 1} more" if len(messages) > 1 else ""
        log_safely(logger, logging.ERROR, _DEAF, run.name, "handler", told)


class Drainer:
    """Ends all activity in claims."""

    def __init__(
        self,
        schedule: Schedule,
        settler: Settler,
        departures: Departures,
        workers: Workers,
        run: Run,
    ) -> None:
        self._schedule = schedule
        self._settler = settler
        self._departures = departures
        self._workers = workers
        self._run = run

    def drop(
        self, claims: Collection[Claim], *, keep_batch: bool = False, keep_jobs: bool = False
    ) -> None:
        """Remove the queued messages of these claims; they are delivered again to a later claim.

        With `keep_batch`, the batch being formed stays, and is handled. With `keep_jobs`, events
        that only need to be finalised stay, except failed ones and later ones of their keys.
        """
        claims = frozenset(claims)  # each unsettled message is looked up
        if keep_jobs:
            entries = [entry.message for _, entry in self._schedule.retries]
            for message in [*entries, *self._schedule.blocked]:
                if message.finalise is not None and message.claim in claims:
                    self._settler.leave_after(message)
        dropped = self._schedule.drop(claims, keep_batch=keep_batch, keep_jobs=keep_jobs)
        if not keep_batch:
            self._workers.withdraw(claims)
        records = [each for each in dropped if each.index >= 0 or each.is_unparked]
        self._run.count("dropped", len(records))
        self._settler.forget(dropped)
        self._run.work.fire()
        self._run.room.fire()

    def end(self, claims: Collection[Claim]) -> None:
        """Like `drop`, for claims that have ended. Also leaves their incomplete events, whose jobs
        are stopped, and cancels their writes, except those that return a record to the source,
        which end the claim themselves.
        """
        claims = frozenset(claims)
        self.drop(claims)
        self._settler.drop_manual(
            {each for each in self._schedule.completed.out if each.claim in claims}
        )
        self._departures.cut(
            [
                each
                for each in self._departures.writing
                if each.claim in claims
                and self._departures.reason_of(each) is not WaitReason.GIVING_BACK
            ]
        )

    def cancel(self, claim: Claim, offsets: Collection[int]) -> None:
        """Cancel messages: the handlers of running ones now, and others before they are handled."""
        new = {*offsets}.difference(claim.cancelled)
        claim.cancel(new)
        self._schedule.refuse_some()
        for slot in self._workers.slots:
            if any(each.claim is claim and each.offset in new for each in slot.messages()):
                slot.cut(cancelled_by_source())
        for message in self._settler.manual:
            if message.claim is claim and message.offset in new:
                self._settler.cancel_manual(message)

    def running(self, claims: Collection[Claim]) -> list[Message]:
        """Return the messages of these claims that run, are being written or wait for a manual
        settle.
        """
        busy = [*self._workers.running, *self._departures.writing, *self._settler.outside]
        return [message for message in busy if message.claim in claims]

    def busy(self) -> set[Claim]:
        """Return the claims with a running message, including ended claims."""
        busy = [*self._workers.running, *self._departures.writing, *self._settler.outside]
        return {message.claim for message in busy}

    def _formed(self, claims: Collection[Claim]) -> bool:
        """Return whether a batch with messages of these claims is still to be handled."""
        return any(message.claim in claims for message in self._schedule.formed)

    async def wait(
        self, claims: Collection[Claim], until: float, cut: list[Message] | None = None
    ) -> None:
        """Suspend until no message of these claims runs; cancel the running ones at `until`.

        Cancelled messages are appended to `cut`.
        """
        claims = frozenset(claims)
        if await self._ended(claims, until):
            return
        self.drop(claims)  # a batch that was still to be handled
        left = set(self.running(claims))
        if cut is not None:
            cut.extend(left)
        self._settler.drop_manual(left)
        self._departures.cut(left)
        for slot in self._workers.slots:
            if not left.isdisjoint(slot.messages()):
                slot.cut(StoppedError("cancelled: its partition is revoked, or the consumer stops"))
        await self._ended(claims, self._run.clock.now() + GRACE)
        self._report_deaf(claims)

    def _report_deaf(self, claims: Collection[Claim]) -> None:
        for slot in self._workers.slots:
            if not {message.claim for message in slot.messages()}.isdisjoint(claims):
                report_deaf(slot, self._run)
        for message in self._departures.writing:
            if message.claim in claims:
                self._run.count("deaf")
                log_safely(
                    logger, logging.ERROR, _DEAF, self._run.name, "write", message.coordinates
                )

    async def _ended(self, claims: Collection[Claim], until: float) -> bool:
        while self.running(claims) or self._formed(claims):
            if self._run.clock.now() >= until:
                return False
            await wait_until(self._run.clock, until, self._run.settled)
        return True
