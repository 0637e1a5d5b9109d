"""The rows of a record inside a batcher, until the record is settled.

1. A record's message is the receipt of its row. Once all its rows are safe, the message is
   acknowledged immediately.
2. A failed row holds its key in the batcher. Its further treatment is decided outside the batcher's
   step: it is resent before later rows of its key, after a backoff, or its record is poison. A
   record with a row that may have been applied is never given up: after the last attempt it is
   blocked. If the destination holds other contents under the row's key (`StoredRowDiffers`), it is
   poison immediately, since no attempt can resolve that; its dead letter is marked
   `maybe_delivered`.
3. A key is released once no failed row holds it. In a drain it stays held: later rows are returned
   unsent, and delivered again by the source.

Failed rows wait to be resent (`HeldRows`):

4. All failed rows of a key wait in the order in which they entered the batcher, and are resent
   together.
5. The record of a key's first row is its *head*: its backoff applies to the key. A record whose
   rows have several keys is a head once it is the first record of each key, and none of its rows is
   inside, except rows queued behind its own failed ones. Such a record always exists, since all
   keys have the same order.
6. A head is *driven* once, until its rows are taken or removed.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from typing import TYPE_CHECKING, Any, NamedTuple, cast

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
from ..consumer.lanes.arrivals import ArrivalSchedule
from ..consumer.lanes.message import NOT_DECODED, Message
from ..consumer.operating.report import WaitReason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Sequence

    from .._core.retry_policy import RetryPolicy
    from .._core.source import SourceRecord
    from ..batcher.batcher import Batcher
    from ..batcher.feed import Feed
    from ..consumer.engine import Engine
    from ..consumer.progress.claim import Claim
    from ..consumer.run import Run

HELD = (Outcome.UNKNOWN, Outcome.REJECTED, Outcome.UNSENT)
"""The outcomes after which later rows of a key wait."""
STILL_WRITTEN = 0.05
"""Delay in seconds before another check of a key whose last write is still running."""
_GONE = (ClosedError, WithdrawnError, asyncio.CancelledError)
"""The errors of rows that were not accepted for reasons other than the row."""


class PipedMessage(Message):
    """A message that is the receipt of its row, or owns the receipts of its rows."""

    __slots__ = ("_end", "inside", "is_held", "item", "number", "rows")

    def __init__(
        self, lane_key: Hashable, size: int, record: SourceRecord, claim: Claim, index: int
    ) -> None:
        # not super().__init__: this runs once per message
        self.lane_key = lane_key
        self.size = size
        self.behind = None
        self.record = record
        self.claim = claim
        self.index = index
        self._value = NOT_DECODED
        self.finalise = None
        self.is_held = False  # whether it has failed rows that wait
        self.inside = 0  # rows in the batcher

    @property
    def message(self) -> PipedMessage:
        """Return itself; the message of one of several rows is a different object."""
        return self

    @property
    def lent_for(self) -> WaitReason:  # type: ignore[override]  # a constant of other messages
        """The reason for waiting: its rows are in the batcher, or queued behind failed rows."""
        return WaitReason.QUEUED_BEHIND if self.is_held else WaitReason.IN_BATCHER

    def enters(self, end: RowEnds, item: object, number: int) -> None:
        """Register its only row, which is about to be accepted under this number."""
        self._end = end
        self.item = item
        self.number = number
        self.inside = 1

    def enters_as(
        self, end: RowEnds, items: Sequence[object], numbers: Iterator[int]
    ) -> list[PipedRow]:
        """Register its rows, which are about to be accepted; return their receipts."""
        self._end = end
        rows = [PipedRow(self, item, next(numbers)) for item in items]
        self.rows = set(rows)  # those in the batcher
        self.inside = len(rows)
        return rows

    def enters_again(self, receipt: PipedMessage | PipedRow) -> None:
        """Register a failed row that is about to be accepted again."""
        self.inside += 1
        if isinstance(receipt, PipedRow):
            self.rows.add(receipt)

    def hold(self, *, is_held: bool) -> None:
        """Set whether it has failed rows that wait."""
        self.is_held = is_held

    def resolve(self, outcome: Outcome, cause: BaseException | None, detail: object) -> None:
        """Handle the outcome of the only row, as reported by the batcher."""
        self.inside = 0
        if outcome.is_safe:
            self._end.acknowledge(self)
        else:
            self._end.add_failed(FailedRow(self, self.item, outcome, cause))

    def end_row(self, row: PipedRow, outcome: Outcome, cause: BaseException | None) -> None:
        """Record the outcome of one of several rows."""
        self.inside -= 1
        self.rows.remove(row)
        if not outcome.is_safe:
            self._end.add_failed(FailedRow(row, row.item, outcome, cause))
        elif self.is_held:
            self._end.look(self)
        elif not self.inside:
            self._end.acknowledge(self)

    def refuse(self, receipt: PipedMessage | PipedRow, error: BaseException) -> None:
        """Record that the batcher has refused a row."""
        self.inside -= 1
        if isinstance(receipt, PipedRow):
            self.rows.remove(receipt)
        self._end.add_failed(
            FailedRow(receipt, receipt.item, Outcome.REJECTED, error, is_refused=True)
        )

    def resend(self) -> None:
        """Resend the failed rows."""
        self._end.resend(self)

    def depart(self) -> None:
        """Handle its departure while failed rows are held."""
        self._end.release(self)


class PipedRow:
    """The receipt of one of a record's rows."""

    __slots__ = ("item", "message", "number")

    def __init__(self, message: PipedMessage, item: object, number: int) -> None:
        self.message = message
        self.item = item
        self.number = number

    def resolve(self, outcome: Outcome, cause: BaseException | None, detail: object) -> None:
        """Handle the outcome of the row, as reported by the batcher."""
        self.message.end_row(self, outcome, cause)


class FailedRow(NamedTuple):
    """A row that is not known to be at its destination, and the reason."""

    receipt: PipedMessage | PipedRow
    item: Any
    outcome: Outcome
    error: BaseException | None
    is_refused: bool = False
    """Whether the batcher has refused it."""

    @property
    def message(self) -> PipedMessage:
        """The message of its record."""
        return self.receipt.message


class PipedSchedule(ArrivalSchedule):
    """Messages in the order of arrival, including those with failed rows that wait."""

    message_type = PipedMessage

    def finish(self, message: Message) -> None:
        """Finish a message that was settled other than by its rows, or left to a later claim."""
        super().finish(message)
        if isinstance(message, PipedMessage) and message.is_held:
            message.depart()

    def _start(self, message: Message) -> None:
        if isinstance(message, PipedMessage) and message.is_held:
            message.resend()
        else:
            super()._start(message)


class RowEnds:
    """Settles records by the outcomes of their rows."""

    def __init__(
        self, engine: Engine, batcher: Batcher[Any], policy: RetryPolicy, *, insists: bool
    ) -> None:
        self._schedule = cast("PipedSchedule", engine.schedule)
        self._settler = engine.settler
        self._poison = engine.poison
        self._stop = engine.end
        self._run: Run = engine
        self._clock = engine.clock
        self.feed = batcher.feed(holds=HELD, resolve_all=self.acknowledge_all)
        self._policy = policy
        self._insists = insists
        self._held = HeldRows(self.feed.key_of)
        self._failed: list[FailedRow] = []
        self._is_looking = False
        self._is_draining = False
        self._submissions: set[RowSubmission] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def are_decided(self) -> bool:
        """Whether no failed row waits for a decision."""
        return not self._failed

    def withdraw(self, claims: Collection[Claim]) -> None:
        """Drop the rows of these claims that were to be resent, including those just withdrawn."""
        self._note_failed()
        self._forget(claims)

    def _forget(self, claims: Collection[Claim]) -> None:
        for message in self._held.of(claims):
            self.release(message)
            if self._settler.take_back(message):
                self._poison.leave(message)

    def drain(self) -> None:
        """Keep held keys from now on."""
        self._is_draining = True

    def acknowledge_all(self, receipts: Sequence[object], _: Outcome) -> bool:
        """Acknowledge the records of a written batch. The fast path: once per batch.

        Returns false, and changes nothing, unless each of them has one row, is still in flight, and
        can be acknowledged.
        """
        if {*map(type, receipts)} != {PipedMessage}:
            return False
        messages = cast("Sequence[PipedMessage]", receipts)
        if not self._settler.has_lent(messages) or not self._schedule.acknowledge_all(messages):
            return False
        self._settler.take_back_all(messages)
        if not self._is_looking:
            self._look_soon()
        return True

    def acknowledge(self, message: PipedMessage) -> None:
        """Acknowledge a record whose rows are safe."""
        if not self._settler.take_back(message):
            return  # it has left in the meantime, with its claim
        if not self._schedule.acknowledge(message):
            self._settler.settle(message, None)
        if not self._is_looking:
            self._look_soon()

    def add_failed(self, row: FailedRow) -> None:
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
        key = None if row.is_refused else self.feed.key_of(row.item)
        return row.receipt if key is None else key

    def _decide(self, message: PipedMessage) -> None:
        """Decide whether a record backs off, leaves or is poison."""
        if not self._settler.take_back(message):
            self.release(message)  # it has left in the meantime, with its claim
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
        return self.feed.classify(error) is ErrorClass.PERMANENT

    def resend(self, message: PipedMessage) -> None:
        """Resend a record's failed rows, together with later failed rows of the same keys."""
        groups = self._held.groups_of(message)
        if any(self.feed.is_going(rows[0].item) for rows in groups if not rows[0].is_refused):
            self._schedule.back_off(message, self._clock.now() + STILL_WRITTEN)
            return
        groups = self._held.take(message)
        for rows in groups:
            for row in rows:
                row.message.enters_again(row.receipt)
                row.message.hold(is_held=row.message in self._held)
        self._settler.lend((message,))
        for rows in groups:
            if rows[0].is_refused:
                self._submit_soon(rows)
            else:
                self._resubmit(rows)

    def _resubmit(self, rows: Sequence[FailedRow]) -> None:
        self.feed.resubmit(
            [row.item for row in rows],
            [row.receipt for row in rows],
            maybe_applied=[i for i, row in enumerate(rows) if _is_verifiable(row)],
        )

    def release(self, message: PipedMessage) -> None:
        """Release the keys of a record's failed rows, which are not resent."""
        message.hold(is_held=False)
        for row in self._held.remove(message):
            if not row.is_refused and not self._is_draining:
                self.feed.release(row.item)
        self._look_soon()

    # -- into the batcher --------------------------------------------------------------------------

    async def submit(self, receipts: Sequence[PipedMessage | PipedRow]) -> None:
        """Submit rows in this order. Suspends while the batcher is full."""
        submission = RowSubmission(self.feed, receipts)
        self._submissions.add(submission)
        try:
            await submission.run()
        finally:
            self._submissions.discard(submission)

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
        self.release(message)
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
        self.feed.withdraw(lambda receipt: cast("PipedRow", receipt).message in messages)
        for submission in self._submissions:
            submission.fail_refused()
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


class HeldRows:
    """Failed rows by key."""

    def __init__(self, key_of: Callable[[Any], Hashable]) -> None:
        self._key_of = key_of
        self._rows: dict[Hashable, list[FailedRow]] = {}
        self._keys: dict[PipedMessage, list[Hashable]] = {}
        self._driven: set[PipedMessage] = set()
        self._touched: dict[Hashable, None] = {}  # in the order of their failures

    def __contains__(self, message: PipedMessage) -> bool:
        return message in self._keys

    def add(self, key: Hashable, row: FailedRow) -> None:
        """Add a failed row."""
        message = row.message
        insort(self._rows.setdefault(key, []), row, key=_number_of)
        keys = self._keys.setdefault(message, [])
        if key not in keys:
            keys.append(key)
        self._touched[key] = None

    def touch(self, message: PipedMessage) -> None:
        """Check a record again after its last row has left the batcher."""
        self._touched.update(dict.fromkeys(self._keys.get(message, ())))

    def take_heads(self) -> Iterator[PipedMessage]:
        """Yield the records that have become heads since the last call."""
        touched, self._touched = self._touched, {}
        for key in touched:
            rows = self._rows.get(key)
            if rows and self._is_head(rows[0].message):
                self._driven.add(rows[0].message)
                yield rows[0].message

    def _is_head(self, message: PipedMessage) -> bool:
        if message in self._driven:
            return False
        keys = self._keys[message]
        if message.inside and not all(self._waits_behind(row, keys) for row in message.rows):
            return False
        return all(self._rows[key][0].message is message for key in keys)

    def _waits_behind(self, row: PipedRow, keys: Collection[Hashable]) -> bool:
        """Whether a row that has not ended has one of these keys, or no key. In the latter case it
        is about to be refused, which is reported once the rows submitted with it have been
        accepted.
        """
        try:
            return self._key_of(row.item) in keys
        except Exception:  # raised by the caller's function
            return True

    def rows_of(self, message: PipedMessage) -> list[FailedRow]:
        """Return the failed rows of a record."""
        found = [self._rows[key] for key in self._keys.get(message, ())]
        return [row for rows in found for row in rows if row.message is message]

    def groups_of(self, head: PipedMessage) -> list[list[FailedRow]]:
        """Return the rows of each key of a head, including those of later records."""
        return [self._rows[key] for key in self._keys[head]]

    def take(self, head: PipedMessage) -> list[list[FailedRow]]:
        """Remove and return the rows of `groups_of`, to be resent."""
        groups: list[list[FailedRow]] = []
        for key in tuple(self._keys[head]):
            rows = self._rows.pop(key)
            groups.append(rows)
            for message in dict.fromkeys([row.message for row in rows]):
                self._leave(message, key)
        return groups

    def _leave(self, message: PipedMessage, key: Hashable) -> None:
        keys = self._keys[message]
        keys.remove(key)
        if not keys:
            del self._keys[message]
            self._driven.discard(message)

    def remove(self, message: PipedMessage) -> list[FailedRow]:
        """Remove the rows of a record; return one for each key that no failed row holds any more."""
        freed: list[FailedRow] = []
        for key in self._keys.pop(message, ()):
            rows = self._rows[key]
            left = [row for row in rows if row.message is not message]
            if left:
                self._rows[key] = left
                self._touched[key] = None
            else:
                del self._rows[key]
                freed.append(rows[0])
        self._driven.discard(message)
        return freed

    def of(self, claims: Collection[Claim]) -> list[PipedMessage]:
        """Return the records of these claims, in the order of their arrival."""
        found = [message for message in self._keys if message.claim in claims]
        return sorted(found, key=arrival)


def arrival(message: Message) -> tuple[int, int]:
    """Return the sort key of a record: its arrival, within a claim."""
    return message.claim.number, message.index


def _number_of(row: FailedRow) -> int:
    return row.receipt.number


class RowSubmission:
    """Rows submitted in order; rows that are not accepted have failed."""

    def __init__(self, feed: Feed[Any], receipts: Sequence[PipedMessage | PipedRow]) -> None:
        self._receipts = receipts
        self._submission = feed.submit([receipt.item for receipt in receipts], receipts)
        self._failed_count = 0

    async def run(self) -> None:
        """Submit the rows. Suspends while the batcher is full."""
        try:
            await self._submission
        except (ClosedError, asyncio.CancelledError) as error:
            for receipt in self._receipts[self._submission.taken :]:
                receipt.message.refuse(receipt, error)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self.fail_refused()

    def fail_refused(self) -> None:
        """Fail the rows that were refused since the last call."""
        refused = self._submission.refused[self._failed_count :]
        self._failed_count += len(refused)
        for index, error in refused:
            self._receipts[index].message.refuse(self._receipts[index], error)
