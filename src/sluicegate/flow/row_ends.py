"""Settles records after their rows have ended.

1. A record's message is the receipt of its row. Once all its rows are safe, the message is
   acknowledged immediately.
2. A failed row holds its key in the batcher. Its further treatment is decided outside the batcher's
   step: it is resent before later rows of its key, after a backoff, or its record is poison. A
   record with a row that may have been applied is never given up: after the last attempt it is
   blocked. If the destination holds other contents under the row's key (`StoredRowDiffers`), it is
   poison at once, since no attempt can resolve that; its dead letter is marked `maybe_delivered`.
3. A key is released once no failed row holds it. In a drain it stays held: later rows are returned
   unsent, and delivered again by the source.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from .._core.classify import classified
from .._core.errors import (
    ClosedError,
    ErrorClass,
    StoredRowDiffers,
    UnknownOutcomeError,
    UnverifiableError,
    WithdrawnError,
)
from .._core.outcome import Outcome
from ..consumer.handling.results import Nak, Terminate
from .entering import Entering
from .held_rows import HeldRows, arrival

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Sequence

    from .._core.retry_policy import RetryPolicy
    from ..batcher.feed import Feed
    from ..consumer.engine import Engine
    from ..consumer.lanes.message import Message
    from ..consumer.progress.claim import Claim
    from ..consumer.run import Run
    from .piped import FailedRow, PipedMessage, PipedRow, PipedSchedule

HELD = (Outcome.UNKNOWN, Outcome.REJECTED, Outcome.UNSENT)
"""The outcomes after which later rows of a key wait."""
STILL_WRITTEN = 0.05
"""Delay in seconds before another check of a key whose last write is still running."""
_GONE = (ClosedError, WithdrawnError, asyncio.CancelledError)
"""The errors of rows that were not accepted for reasons other than the row."""


class RowEnds:
    """Settles records by the outcomes of their rows."""

    def __init__(
        self, engine: Engine, feed: Feed[Any], policy: RetryPolicy, *, insists: bool
    ) -> None:
        self._schedule = cast("PipedSchedule", engine.schedule)
        self._settler = engine.settler
        self._poison = engine.poison
        self._stop = engine.end
        self._run: Run = engine
        self._clock = engine.clock
        self._feed = feed
        self._policy = policy
        self._insists = insists
        self._held = HeldRows(feed.key_of)
        self._failed: list[FailedRow] = []
        self._is_looking = False
        self._is_draining = False
        self._entering: set[Entering] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def are_told(self) -> bool:
        """Whether no failed row waits for a decision."""
        return not self._failed

    def withdraw(self, claims: Collection[Claim]) -> None:
        """Drop the rows of these claims that were to be resent, including those just withdrawn."""
        self._note_failed()
        self._forget(claims)

    def _forget(self, claims: Collection[Claim]) -> None:
        for message in self._held.of(claims):
            self.departed(message)
            if self._settler.take_back(message):
                self._poison.leave(message)

    def drain(self) -> None:
        """Keep held keys from now on."""
        self._is_draining = True

    def delivered(self, message: PipedMessage) -> None:
        """Acknowledge a record whose rows are safe. The fast path: once per record."""
        if not self._settler.take_back(message):
            return  # it has left in the meantime, with its claim
        if not self._schedule.acknowledge(message):
            self._settler.settle(message, None)
        if not self._is_looking:
            self._look_soon()

    def failed(self, row: FailedRow) -> None:
        """Record a failed row, to be handled after the batcher's step."""
        row.message.hold(is_held=True)
        self._failed.append(row)
        self._look_soon()

    def look(self, message: PipedMessage) -> None:
        """Check a record with failed rows again, after its last row has left the batcher."""
        self._held.touch(message)
        self._look_soon()

    def _look_soon(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Handle the effects of rows that ended in one or more steps, once for all of them."""
        self._is_looking = False
        self._run.settled.fire()
        if self._schedule.window.has_resumed:
            self._run.room.fire()
        try:
            self._note_failed()
            for message in self._held.take_heads():
                self._decide(message)
        except Exception as error:
            self._stop(error)

    def _note_failed(self) -> None:
        rows, self._failed = self._failed, []
        for row in rows:
            self._held.add(self._key_of(row), row)
        # held rows are resent with the first one of their key, which may be of another claim
        if gone := {row.message.claim for row in rows if row.message.claim.is_closing}:
            self._forget(gone)

    def _key_of(self, row: FailedRow) -> Hashable:
        """Return the key that the row blocks in the batcher, or else its receipt."""
        key = None if row.is_refused else self._feed.key_of(row.item)
        return row.receipt if key is None else key

    def _decide(self, message: PipedMessage) -> None:
        """Decide whether a record backs off, leaves or is poison."""
        if not self._settler.take_back(message):
            self.departed(message)  # it has left in the meantime, with its claim
            return
        if self._parks(message):
            return
        rows = [(row, _error_of(row)) for row in self._held.rows_of(message)]
        refused = [error for row, error in rows if row.is_refused]
        if gone := [error for error in refused if isinstance(error, _GONE)]:
            self._poison.leave(message)
            if not message.claim.is_closing:
                self._stop(gone[0])
            return
        unknown = [error for row, error in rows if row.outcome is Outcome.UNKNOWN]
        poison = [error for row, error in rows if self._is_poison(row, error)]
        differs = [error for error in unknown if isinstance(error, StoredRowDiffers)]
        if differs and len(differs) == len(unknown):
            self._settler.settle(message, Terminate(error=differs[0]))
        elif unknown and self._is_last_try(message, unknown[0]):
            self._poison.block(
                message, unknown[0]
            )  # a dead letter would hide a row that may be applied
        elif poison and not unknown:
            self._settler.settle(message, Terminate(error=poison[0]))
        else:
            self._settler.settle(message, Nak(error=unknown[0] if unknown else rows[0][1]))
        if self._schedule.parked.of(message) is not None:
            self._take_followers(message)

    def _is_last_try(self, message: PipedMessage, error: BaseException) -> bool:
        """Whether the policy allows no further attempt."""
        kind = classified(error)
        if (
            kind is ErrorClass.STOPPED
        ):  # queued behind a failed row of its key, or its batch was cut
            return False
        counts = kind not in self._policy.uncounted
        return self._policy.is_over(kind, message.attempts.counted + counts)

    def _is_poison(self, row: FailedRow, error: BaseException) -> bool:
        """Whether the row should not be retried."""
        if row.is_refused:
            return True
        if row.outcome is not Outcome.REJECTED or self._insists:
            return False
        return self._feed.classify(error) is ErrorClass.PERMANENT

    def resend(self, message: PipedMessage) -> None:
        """Resend a record's failed rows, together with later failed rows of the same keys."""
        groups = self._held.groups_of(message)
        if any(self._feed.is_going(rows[0].item) for rows in groups if not rows[0].is_refused):
            self._schedule.back_off(message, self._clock.now() + STILL_WRITTEN)
            return
        groups = self._held.take(message)
        for rows in groups:
            for row in rows:
                row.message.enters_again(row.receipt)
                row.message.hold(is_held=row.message in self._held)
        self._settler.lend(message)
        for rows in groups:
            if rows[0].is_refused:
                self._submit_soon(rows)
            else:
                self._resubmit(rows)

    def _resubmit(self, rows: Sequence[FailedRow]) -> None:
        self._feed.resubmit(
            [row.item for row in rows],
            [row.receipt for row in rows],
            maybe_applied=[i for i, row in enumerate(rows) if _is_verifiable(row)],
        )

    def departed(self, message: PipedMessage) -> None:
        """Release the keys of a record's failed rows, which are not resent."""
        message.hold(is_held=False)
        for row in self._held.remove(message):
            if not row.is_refused and not self._is_draining:
                self._feed.release(row.item)
        self._look_soon()

    # -- into the batcher --------------------------------------------------------------------------

    async def submit(self, receipts: Sequence[PipedMessage | PipedRow]) -> None:
        """Submit rows in this order. Suspends while the batcher is full."""
        entering = Entering(self._feed, receipts)
        self._entering.add(entering)
        try:
            await entering.run()
        finally:
            self._entering.discard(entering)

    def _submit_soon(self, rows: Sequence[FailedRow]) -> None:
        """Submit refused rows again, in their own task."""
        work = self.submit([row.receipt for row in rows])
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- parked keys -------------------------------------------------------------------------------

    def _parks(self, message: PipedMessage) -> bool:
        """Let a record that returns from the batcher wait with the others of its parked key."""
        if self._schedule.parked.of(message) is None or message.is_unparked:
            return False
        if message.inside:  # rows are queued behind its own failed ones
            self._take_out({message})
        self.departed(message)
        self._schedule.waits_parked(message)
        self._poison.look()
        return True

    def parks_later(self, message: PipedMessage) -> bool:
        """Whether a record to be parked waits for earlier records of its key."""
        schedule = self._schedule
        if not schedule.has_keys or message.claim.is_closing or message.is_unparked:
            return False
        inside = (*self._settler.manual, *[entry.message for _, entry in schedule.retries])
        return any(_is_behind(message, other) for other in inside)

    def _take_followers(self, head: PipedMessage) -> None:
        """Take the later records of a newly parked key out of the batcher, in order.

        Records that are being written follow if their write fails.
        """
        found = [message for message in self._settler.manual if _is_behind(message, head)]
        if not found:
            return
        self._take_out(set(found))
        for message in sorted(cast("list[PipedMessage]", found), key=arrival):
            if not message.inside and self._settler.take_back(message):
                self._parks(message)

    def _take_out(self, messages: Collection[Message]) -> None:
        """Withdraw the rows of records from the batcher."""
        self._feed.withdraw(lambda receipt: cast("PipedRow", receipt).message in messages)
        for entering in self._entering:
            entering.tell_refused()
        self._note_failed()


def _is_behind(message: Message, head: Message) -> bool:
    """Whether a record arrived after another record of its key."""
    if message.lane_key != head.lane_key or message.claim.lanes is not head.claim.lanes:
        return False
    return not message.is_unparked and arrival(message) > arrival(head)


def _is_verifiable(row: FailedRow) -> bool:
    """Whether the destination should verify what an earlier attempt may have applied.

    A destination that cannot verify receives the row as a new one, as after a restart.
    """
    if isinstance(row.error, StoredRowDiffers):
        return True
    return row.outcome is Outcome.UNKNOWN and not isinstance(row.error, UnverifiableError)


def _error_of(row: FailedRow) -> BaseException:
    return row.error or UnknownOutcomeError(f"a row ended {row.outcome.value}")
