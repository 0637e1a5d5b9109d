"""Moves the records of a source into a batcher.

1. One worker takes records in the order of their arrival, makes their rows, and submits them. The
   rows of a partition therefore enter the batcher in the order of its offsets.
2. If the batcher refuses a row because of its key or size, only its record becomes poison.
3. When claims end, their rows are withdrawn from the batcher. Writes in flight continue, but are
   never repeated.
4. A drain shuts the batcher down: its rows are written, within the common deadline. No write begins
   in the second half of that time: rows left to the next owner are written once, those of an
   interrupted write maybe twice.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from .._core.clock import wait_until
from ..consumer.handling.results import Terminate
from ..consumer.handling.steps import refused
from ..consumer.handling.workers import Slot, is_closed

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from .._core.clock import Signal
    from ..batcher.batcher import Batcher
    from ..consumer.engine import Engine
    from ..consumer.progress.claim import Claim
    from .rows import PipedMessage, PipedRow, PipedSchedule, RowEnds
    from .transform import Transformed, Transformer


class Pump:
    """The work of a pipe: moves ready records into the batcher."""

    def __init__(
        self,
        engine: Engine,
        batcher: Batcher[Any],
        transformer: Transformer,
        ends: RowEnds,
    ) -> None:
        self.schedule = cast("PipedSchedule", engine.schedule)
        self.workers = engine.workers
        self.clock = engine.clock
        self.transformer = transformer
        self._settler = engine.settler
        self._poison = engine.poison
        self._batcher = batcher
        self.ends = ends
        self._shutdown: asyncio.Task[object] | None = None
        self._numbers = count()
        self._room = engine.room
        self._settled = engine.settled

    # -- the interface for the engine --------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Whether a record is ready."""
        return bool(self.schedule.ready)

    @property
    def is_stuck(self) -> bool:
        """Whether each record in flight is blocked, or waits behind a blocked one."""
        schedule = self.schedule
        others = len(schedule.blocked) + len(self._settler.manual)
        return (
            schedule.window.messages == others and self.ends.are_decided and self.ends.feed.is_idle
        )

    @property
    def landed(self) -> Signal:
        """Fires when no row is being written any more."""
        return self.ends.feed.landed

    @property
    def outage(self) -> str | None:
        """The state of a destination that currently does not accept writes, with its duration."""
        destination = self._batcher.stats().destination
        if destination.state == "available":
            return None
        reason, repair = destination.reason, destination.repair
        told = reason if repair in reason else f"{reason}; to repair: {repair}"
        return f"{destination.state} for {destination.seconds:.1f} s: {told}"

    def make_worker(self) -> Slot:
        """Create the worker."""
        return PumpWorker(self)

    def withdraw(self, claims: Collection[Claim]) -> None:
        """Withdraw the rows of claims from the batcher, and drop those to be resent."""
        dead = set(claims)
        self.ends.feed.withdraw(lambda receipt: cast("PipedRow", receipt).message.claim in dead)
        self.ends.withdraw(dead)

    def hurry(self, until: float) -> None:
        """Shut the batcher down, so that its rows are written before the deadline."""
        self.ends.drain()
        self._shutdown = asyncio.get_running_loop().create_task(self._shut_down(until))

    async def _shut_down(self, until: float) -> None:
        """Shut the batcher down; halfway, withdraw the rows without a write for the next owner."""
        now = self.clock.now()
        halfway = self.clock.call_at(
            (now + until) / 2, lambda: self.ends.feed.withdraw(lambda _: True)
        )
        try:
            await self._batcher.shutdown(max(0.0, until - now))
        finally:
            halfway.cancel()

    # -- into rows ---------------------------------------------------------------------------------

    async def rows_of(self, messages: Sequence[PipedMessage]) -> list[Transformed]:
        """Return the rows of each record, or the result that settles it without rows."""
        if not self.schedule.has_undecodable:
            return await self.transformer.rows_of(messages)
        ends = [refused(message) for message in messages]
        others = [each for each, end in zip(messages, ends, strict=True) if end is None]
        rows = iter(await self.transformer.rows_of(others))
        return [next(rows) if end is None else end for end in ends]

    # -- into the batcher --------------------------------------------------------------------------

    def enter_all(
        self, messages: Sequence[PipedMessage], made: Sequence[Transformed]
    ) -> Sequence[PipedMessage]:
        """Return the receipts of records with one row each: the fast path.

        Returns none, and changes nothing, if one of the records needs `enter`.
        """
        claims = {message.claim for message in messages}
        if self.schedule.parked or any(claim.is_closing for claim in claims):
            return ()
        if {*map(type, made)} != {list}:
            return ()
        each = cast("Sequence[list[object]]", made)
        if {*map(len, each)} != {1}:
            return ()
        for message, (row,), number in zip(messages, each, self._numbers):  # noqa: B905
            message.enters(self.ends, row, number)
        self._settler.lend(messages)
        return messages

    def enter(self, made: deque[tuple[PipedMessage, Transformed]]) -> list[PipedMessage | PipedRow]:
        """Settle the records without rows; return the receipts of the other rows, in order.

        Leaves a record that will be parked, and those after it, while earlier records of its key
        are in the batcher: the store needs the records of a key in order.
        """
        receipts: list[PipedMessage | PipedRow] = []
        numbers = self._numbers
        while made:
            message, rows = made[0]
            if isinstance(rows, Terminate) and self.ends.parks_later(message):
                break
            made.popleft()
            if message.claim.is_closing:
                self._poison.leave(message)
            elif self.schedule.waits_parked(message):
                continue
            elif not isinstance(rows, list):
                self._settler.settle(message, rows)
            elif len(rows) == 1:
                message.enters(self.ends, rows[0], next(numbers))
                receipts.append(message)
                self._settler.lend((message,))
            elif rows:
                receipts += message.enters_as(self.ends, rows, numbers)
                self._settler.lend((message,))
            else:
                self._settler.settle(message, None)
        if self._room.waiters and self.schedule.window.has_resumed:
            self._room.fire()  # records without rows have made room
        self._poison.look()
        return receipts

    async def wait_settled(self) -> None:
        """Suspend until a record has been settled."""
        await wait_until(self.clock, math.inf, self._settled)

    def turn_back(self, messages: Sequence[PipedMessage]) -> None:
        """Handle records whose rows were not made because the worker was cancelled."""
        again = [message for message in messages if not message.claim.is_closing]
        for message in messages:
            if message.claim.is_closing:
                self._poison.leave(message)
        self.schedule.ready.extendleft(reversed(again))


class PumpWorker(Slot):
    """Makes rows of ready records and submits them, a few records at a time."""

    def __init__(self, pump: Pump) -> None:
        super().__init__()
        self._pump = pump

    async def work(self) -> None:
        """Move ready records; wait when there are none."""
        pump = self._pump
        ready, workers, sleep = pump.schedule.ready, pump.workers, pump.clock.sleep
        task = asyncio.current_task()
        assert task is not None
        workers.mark_running()
        while True:
            if not ready:
                if not await workers.rest():
                    return
                continue
            most = min(len(ready), pump.transformer.most)
            messages = cast("list[PipedMessage]", [ready.popleft() for _ in range(most)])
            await self._move(messages, task)
            await sleep(0)

    async def _move(self, messages: list[PipedMessage], task: asyncio.Task[object]) -> None:
        pump = self._pump
        self.running = [*messages]
        made: list[Transformed] | None = None
        try:
            made = await pump.rows_of(messages)
        except BaseException as error:
            if isinstance(error, GeneratorExit) and is_closed(task):
                raise
            pump.workers.end_on_exit(error)
        self.ended = self.running
        if made is not None and not task.cancelling():
            if receipts := pump.enter_all(messages, made):
                self.running = None
                await pump.ends.submit(receipts)
                return
            messages = await self._enter(deque(zip(messages, made, strict=True)))
        self.running = None
        if messages:
            self.take_cut()
            pump.turn_back(messages)
            await self.settle_down()

    async def _enter(self, made: deque[tuple[PipedMessage, Transformed]]) -> list[PipedMessage]:
        """Submit rows; return the records that were not processed when the worker was cut."""
        pump = self._pump
        while True:
            receipts = pump.enter(made)
            self.running = None  # no cut: withdrawals end a submission, row by row
            if receipts:
                await pump.ends.submit(receipts)
            if not made:
                return []
            self.running = [message for message, _ in made]
            try:
                await pump.wait_settled()
            except asyncio.CancelledError:
                return [message for message, _ in made]
