"""From the records of a source into a batcher, and back from its outcomes to the positions.

1. One worker takes records in the order of their arrival, makes their rows, and submits them. So
   the rows of a partition enter the batcher in the order of its offsets.
2. A record's message is the receipt of its row. Once all its rows are safe, the message is
   acknowledged there and then.
3. A failed row holds its key in the batcher. What becomes of it is decided outside the batcher's
   step: it is sent again in front of its key's later rows, after a backoff, or its record is poison.
4. When claims end, their rows are withdrawn from the batcher. Those at their destination go on, but
   are never sent again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from .._core.classify import classified
from .._core.errors import ClosedError, ErrorClass, UnknownOutcomeError, WithdrawnError
from .._core.outcome import Outcome
from ..consumer.results import Nak, Terminate
from ..consumer.workers import Slot, is_closed
from .held_rows import HeldRows
from .piped import PipedMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Sequence

    from ..batcher.batcher import Batcher
    from ..batcher.feed import Feed
    from ..batcher.report import ShutdownReport
    from ..consumer.claim import Claim
    from ..consumer.engine import Engine
    from .piped import FailedRow, PipedRow
    from .transform import Transformed, Transformer

HELD = (Outcome.UNKNOWN, Outcome.REJECTED)
"""The outcomes after which later rows of a key wait."""
_GONE = (ClosedError, WithdrawnError, asyncio.CancelledError)
"""The errors of rows that were not accepted for no fault of theirs."""
STILL_WRITTEN = 0.05
"""Seconds until the next look at a key whose last write has not ended."""


class Pump:
    """The work of a pipe."""

    def __init__(
        self,
        engine: Engine,
        batcher: Batcher[Any],
        feed: Feed[Any],
        transformer: Transformer,
        *,
        insists: bool,
    ) -> None:
        self.schedule = engine.schedule
        self.settler = engine.settler
        self.workers = engine.workers
        self.commons = engine.commons
        self.feed = feed
        self.transformer = transformer
        self.report: asyncio.Task[ShutdownReport[Any]] | None = None
        """The shutdown of the batcher, once the drain has begun."""
        self._batcher = batcher
        self._poison = engine.failures.poison
        self._stop = engine.ending.begin
        self._insists = insists
        self._held = HeldRows()
        self._failed: list[FailedRow] = []
        self._is_looking = False
        self._room = engine.commons.signals.room
        self._submitting: set[asyncio.Task[None]] = set()

    # -- the work of a consumer --------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Whether a record is ready."""
        return bool(self.schedule.ready)

    @property
    def is_stuck(self) -> bool:
        """Whether every record inside is blocked, or waits behind a blocked one."""
        schedule = self.schedule
        lent = len(self.settler.manual)
        is_blocked = schedule.window.messages == len(schedule.blocked) + lent
        return is_blocked and not self._failed and self.feed.is_idle

    def make_worker(self) -> Slot:
        """Make the worker."""
        return PumpWorker(self)

    def withdraw(self, claims: Collection[Claim]) -> None:
        """Take the rows of claims back from the batcher, and forget what was to be sent again."""
        dead = set(claims)
        self.feed.withdraw(lambda receipt: cast("PipedRow", receipt).message.claim in dead)
        for message in self._held.of(dead):
            self.departed(message)
            if self.settler.take_back(message):
                self._poison.leave(message)

    def hurry(self, until: float) -> None:
        """Shut the batcher down, so that what is inside is written until then."""
        seconds = max(0.0, until - self.commons.clock.now())
        self.report = asyncio.get_running_loop().create_task(self._batcher.shutdown(seconds))

    # -- the ends of rows --------------------------------------------------------------------------

    def delivered(self, message: PipedMessage) -> None:
        """Acknowledge a record whose rows are safe. The hot path: once per record."""
        if not self.settler.take_back(message):
            return  # left meanwhile, with its claim
        schedule, signals = self.schedule, self.commons.signals
        if message.is_unparked or not schedule.acknowledge(message):
            self.settler.settle(message, None)
        if signals.settled.waiters:
            signals.settled.fire()
        if self._room.waiters and schedule.window.has_resumed:
            self._room.fire()

    def failed(self, row: FailedRow) -> None:
        """Note a failed row, to be dealt with after the batcher's step."""
        row.message.hold(is_held=True)
        self._failed.append(row)
        self._look_soon()

    def look(self, message: PipedMessage) -> None:
        """Look at a record with failed rows again: its last one is no longer inside."""
        self._held.touch(message)
        self._look_soon()

    def _look_soon(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._is_looking = False
        try:
            rows, self._failed = self._failed, []
            for row in rows:
                self._held.add(self._key_of(row), row)
            for message in self._held.take_heads():
                self._decide(message)
        except Exception as error:
            self._stop(error)

    def _key_of(self, row: FailedRow) -> Hashable:
        """What waits for the row: its key in the batcher, or only itself."""
        key = None if row.is_refused else self.feed.key_of(row.item)
        return row.receipt if key is None else (key,)  # a key of None is a key

    def _decide(self, message: PipedMessage) -> None:
        """Let a record back off, or leave, or be poison."""
        if not self.settler.take_back(message):
            self.departed(message)  # left meanwhile, with its claim
            return
        rows = [(row, _error_of(row)) for row in self._held.rows_of(message)]
        refused = [error for row, error in rows if row.is_refused]
        if gone := [error for error in refused if isinstance(error, _GONE)]:
            self._poison.leave(message)
            if not message.claim.is_closing:
                self._stop(gone[0])
            return
        poison = [error for row, error in rows if self._is_poison(row, error)]
        answer = Terminate(error=poison[0]) if poison else Nak(error=rows[0][1])
        self.settler.settle(message, answer)

    def _is_poison(self, row: FailedRow, error: BaseException) -> bool:
        """Whether the row is not worth another try."""
        if row.is_refused:
            return True
        if row.outcome is not Outcome.REJECTED or self._insists:
            return False
        return self.feed.classify(error) is ErrorClass.PERMANENT

    def resend(self, message: PipedMessage) -> None:
        """Send a record's failed rows again, and with them those of the same keys behind it."""
        groups = self._held.groups_of(message)
        if any(self.feed.is_going(rows[0].item) for rows in groups if not rows[0].is_refused):
            self.schedule.back_off(message, self.commons.clock.now() + STILL_WRITTEN)
            return
        groups = self._held.take(message)
        for rows in groups:
            for row in rows:
                row.message.enters_again()
                row.message.hold(is_held=row.message in self._held)
        self.settler.lend([message])
        for rows in groups:
            if rows[0].is_refused:
                self._submit_soon(rows)
            else:
                self._resubmit(rows)

    def _resubmit(self, rows: Sequence[FailedRow]) -> None:
        self.feed.resubmit(
            [row.item for row in rows],
            [row.receipt for row in rows],
            maybe_applied=[i for i, row in enumerate(rows) if row.outcome is Outcome.UNKNOWN],
        )

    def departed(self, message: PipedMessage) -> None:
        """Free the keys of a record's failed rows, which are not sent again."""
        message.hold(is_held=False)
        for row in self._held.remove(message):
            if not row.is_refused and self.report is None:  # a drain hands back what is behind
                self.feed.release(row.item)
        self._look_soon()

    # -- into the batcher --------------------------------------------------------------------------

    async def submit(self, receipts: Sequence[PipedMessage | PipedRow]) -> None:
        """Submit rows in this order. Suspends while the batcher is full."""
        submission = self.feed.submit([receipt.item for receipt in receipts], receipts)
        try:
            await submission
        except (ClosedError, asyncio.CancelledError) as error:
            for receipt in receipts[submission.taken :]:
                receipt.message.refuse(receipt, error)
            if isinstance(error, asyncio.CancelledError):
                raise
        for index, error in submission.refused:
            receipts[index].message.refuse(receipts[index], error)

    def _submit_soon(self, rows: Sequence[FailedRow]) -> None:
        """Submit rows that were refused, in a task of their own."""
        task = asyncio.get_running_loop().create_task(self.submit([row.receipt for row in rows]))
        self._submitting.add(task)
        task.add_done_callback(self._submitted)

    def _submitted(self, task: asyncio.Task[None]) -> None:
        self._submitting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._stop(error)

    def enter(
        self, messages: Sequence[PipedMessage], made: Sequence[Transformed]
    ) -> list[PipedMessage | PipedRow]:
        """Settle the records without rows; return the receipts of the others' rows, in order."""
        lent: list[PipedMessage] = []
        receipts: list[PipedMessage | PipedRow] = []
        for message, rows in zip(messages, made, strict=True):
            if message.claim.is_closing:
                self._poison.leave(message)
            elif not isinstance(rows, list):
                self.settler.settle(message, rows)
            elif len(rows) == 1:
                message.enters(self, rows[0])
                receipts.append(message)
                lent.append(message)
            elif rows:
                receipts += message.enters_as(self, rows)
                lent.append(message)
            else:
                self.settler.settle(message, None)
        self.settler.lend(lent)
        return receipts

    def turn_back(self, messages: Sequence[PipedMessage], error: BaseException) -> None:
        """Deal with records whose rows were not made, since the worker was cancelled."""
        again = [message for message in messages if not message.claim.is_closing]
        for message in messages:
            if message.claim.is_closing:
                self._poison.leave(message)
        self.schedule.ready.extendleft(reversed(again))


class PumpWorker(Slot):
    """Makes rows of ready records and submits them, some records at a time."""

    def __init__(self, pump: Pump) -> None:
        super().__init__()
        self._pump = pump

    async def work(self) -> None:
        """Move ready records; rest when there is none."""
        pump = self._pump
        ready, workers, sleep = pump.schedule.ready, pump.workers, pump.commons.clock.sleep
        task = asyncio.current_task()
        assert task is not None
        workers.started()
        while True:
            if not ready:
                if not await workers.rest():
                    return
                continue
            count = min(len(ready), pump.transformer.most)
            messages = [cast("PipedMessage", ready.popleft()) for _ in range(count)]
            await self._move(messages, task)
            await sleep(0)

    async def _move(self, messages: list[PipedMessage], task: asyncio.Task[object]) -> None:
        pump = self._pump
        self.running = [*messages]
        error: BaseException | None = None
        made: list[Transformed] = []
        try:
            made = await pump.transformer.rows_of(messages)
        except BaseException as raised:
            if isinstance(raised, GeneratorExit) and is_closed(task):
                raise
            pump.workers.end_on_exit(raised)
            error = raised
        self.running = None
        if error is not None or task.cancelling():
            cut_by = self.take_cut()
            pump.turn_back(messages, cut_by or error)
            await self.settle_down()
            return
        if receipts := pump.enter(messages, made):
            await pump.submit(receipts)


def _error_of(row: FailedRow) -> BaseException:
    return row.error or UnknownOutcomeError(f"a row ended {row.outcome.value}")
