"""Shutting down, bounded by a deadline, with every item accounted for.

1. Nothing more is accepted. Waiting producers get `ClosedError`, or are admitted as room becomes
   free (`admit_waiting`).
2. Open batches are sealed immediately.
3. Backoffs end with an immediate attempt, including that of a sink which is not open yet. Further
   attempts follow after shortened waits, and an outage is probed, for as long as another attempt
   fits (see `_core.retry_policy`).
4. Shortly before the deadline (a fifth of the time, at most a second) queued items are abandoned as
   `unsent`, and the writes in flight are cancelled. They have a grace period to end; then their
   items get their verdicts without them.
5. Items known not to be applied go to the last resort, if there is one, and end `dead_lettered` if
   it takes them. The reserve is then a fifth of the time, without the limit of a second.
6. The sink is closed, in a share of the time.
7. At the deadline the report is final. A write that ignored its cancellation is left behind, and
   its late completion changes nothing.

The earliest deadline wins. A `Countdown` is a deadline that can only move earlier:

1. A wait ends when its condition holds or its part of the time has passed. Fire `changed`, or call
   `wake`, after a change that affects conditions.
2. The last part of the time is reserved for clean-up: `at(1)` is its start, `at(0.5)` its middle,
   `at(0)` the deadline. Moving the deadline never lengthens the reserve.
3. Cancelling a wait means *now*: the deadline becomes the current time, and the wait ends
   immediately. The cancellation is swallowed: `asyncio.run` cancels every task when it ends, and a
   shutdown must still finish.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .._core.batch import Lineage, Reason, RowBatch
from .._core.clock import Signal, wait_until
from .._core.delivery.delivery import GRACE, Delivery
from .._core.errors import StoppedError, UnknownOutcomeError
from .._core.logs import for_log
from .._core.order.keys import accepted
from .._core.send import send
from . import log
from .log import own_context
from .report import ShutdownReport, TimeSpent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .._core.clock import Clock
    from .._core.sink import Sink
    from .dispatch import Dispatcher
    from .gathering.pack import Leftover
    from .opener import Opener


T = TypeVar("T")

LONGEST_RESERVE = 1.0
_PHASES = ("drain", "cut", "last_resort", "close")

RESERVE = 0.2
"""Share of the time that is reserved for the last steps of a drain."""


class Drain(Generic[T]):
    """One shutdown of one batcher."""

    def __init__(
        self,
        dispatcher: Dispatcher[T],
        opener: Opener,
        seconds: float,
        *,
        admit_waiting: bool,
    ) -> None:
        self._dispatcher = dispatcher
        self._opener = opener
        self._ended_by = ""
        self._admit_waiting = admit_waiting
        self._last_resort: Sink[T] | None = dispatcher.setup.last_resort
        longest_reserve = LONGEST_RESERVE
        if self._last_resort is not None:
            longest_reserve = math.inf
            dispatcher.books.keep_for_last_resort()
        self._countdown = Countdown(
            dispatcher.clock,
            seconds,
            longest_reserve=longest_reserve,
            on_move=dispatcher.lifecycle.move_cut,
            changed=dispatcher.flights.changed,
        )
        self._spent = _Spent(dispatcher, self._countdown.began)
        dispatcher.lifecycle.plan_cut(self._countdown.at(1))
        self._task = self._begin()

    def _begin(self) -> asyncio.Task[ShutdownReport[T]]:
        name = f"sluicegate shutdown {self._dispatcher.name}"
        loop = asyncio.get_running_loop()
        return loop.create_task(self._run(), name=name, context=own_context())

    async def wait(self, keep: Callable[[ShutdownReport[T]], object]) -> ShutdownReport[T]:
        """Wait for the report, pass it to `keep` and return it. A cancellation hastens the
        shutdown, and is raised at its end.
        """
        cancelled: asyncio.CancelledError | None = None
        while not self._task.done():
            try:
                await asyncio.wait([self._task])
            except asyncio.CancelledError as error:
                cancelled = error
                self._ended_by = self._ended_by or "a cancellation"
                self.hasten(0.0)
            if self._task.cancelled():  # before its first step
                self.hasten(0.0)
                self._task = self._begin()
        report = self._task.result()
        keep(report)
        if cancelled is not None:
            if not report.complete:
                cancelled.add_note(str(report))
            raise cancelled
        return report

    def hasten(self, seconds: float) -> None:
        """Bring the deadline forward to `seconds` from now, if that is earlier."""
        self._countdown.hasten(seconds)

    async def _run(self) -> ShutdownReport[T]:
        """Run the phases. One that fails breaks the batcher, and the others follow all the same."""
        for phase in (self._drained, self._sent, self._settled, self._answered, self._closed):
            try:
                await phase()
            except Exception as error:
                self._dispatcher.breaks(error)
        try:
            return self._report()
        except Exception as error:
            self._dispatcher.breaks(error)
            return self._report()

    async def _drained(self) -> None:
        dispatcher = self._dispatcher
        dispatcher.stop_accepting(admit_waiting=self._admit_waiting)
        dispatcher.begin_stop(Reason.SHUTDOWN_REQUEST if self._admit_waiting else Reason.SHUTDOWN)
        await self._countdown.until(self._is_drained, part=1)
        if (broken := dispatcher.lifecycle.broken) is not None:
            self._ended_by = f"the failure that had broken the batcher: {for_log(broken)}"
        elif not self._is_drained():
            self._ended_by = self._ended_by or "the deadline"
        self._spent.on("drain")

    async def _sent(self) -> None:
        """Send the items of the spool, if there is one; unsent ones stay there."""
        spool = self._dispatcher.setup.spool
        if spool is None or self._dispatcher.lifecycle.broken is not None:
            return
        until = self._countdown.at(1)
        sending = asyncio.get_running_loop().create_task(spool.finish(until))
        await self._countdown.ends(sending, part=0.5)
        self._spent.on("drain")

    async def _settled(self) -> None:
        flights, countdown = self._dispatcher.flights, self._countdown
        self._cut()
        writes = [flight.task for flight in flights if flight.task is not None]
        await countdown.settle([*writes, *self._opener.running])
        await countdown.until(lambda: flights.all_settled, part=0.5)
        self._spent.on("cut")

    async def _answered(self) -> None:
        flights = self._dispatcher.flights
        await self._give_to_last_resort()
        self._spent.on("last_resort")
        await self._countdown.until(lambda: not flights, part=0.5)
        self._spent.on("cut")

    async def _closed(self) -> None:
        flights = self._dispatcher.flights
        await self._close()
        self._spent.on("close")
        await self._countdown.until(lambda: not flights)
        self._spent.on("cut")

    def _is_drained(self) -> bool:
        """Return whether only items of held keys and producers without a grant are left."""
        dispatcher = self._dispatcher
        if dispatcher.lifecycle.broken is not None:
            return not dispatcher.flights
        if dispatcher.flights or dispatcher.ledger.queued != dispatcher.gathering.held_items:
            return False
        is_coming = dispatcher.producers.any_granted
        return not (dispatcher.lifecycle.admitting and is_coming)

    def _cut(self) -> None:
        dispatcher, countdown = self._dispatcher, self._countdown
        self._opener.cancel()
        dispatcher.turn_away()
        dispatcher.give_up(_never_sent())
        verdict_at = min(dispatcher.clock.now() + GRACE, countdown.at(0.5))
        message = "the write was cut off by the shutdown's deadline"
        for flight in dispatcher.flights:
            flight.cut(UnknownOutcomeError(message), verdict_at)

    async def _give_to_last_resort(self) -> None:
        """Hand over the kept items, one tenant at a time; those not taken in time are unsent."""
        books, most = self._dispatcher.books, self._dispatcher.setup.limits.max_items
        while books.held:
            items = _of_one_tenant(books.held[:most])
            taken = await self._taken_by_last_resort(items)
            books.answered(items, taken, _never_sent())
            self._dispatcher.check_fences()
        books.stop_holding()

    async def _taken_by_last_resort(self, items: list[Leftover[T]]) -> set[int]:
        dispatcher, countdown = self._dispatcher, self._countdown
        if self._last_resort is None or dispatcher.clock.now() >= countdown.at(0.25):
            return set()
        batch = RowBatch(
            [item.item for item in items],
            lineage=Lineage(reason=Reason.SHUTDOWN, name=dispatcher.name, tenant=items[0].tenant),
            delivery=Delivery(len(items), labels=("last-resort",)),
        )
        sending = asyncio.get_running_loop().create_task(
            send(self._last_resort, batch), name=f"sluicegate last resort {dispatcher.name}"
        )
        if await countdown.ends(sending, part=0.25):
            errors = sending.result()
        else:
            message = "the last resort did not answer in its share of the deadline"
            errors = dict.fromkeys(batch.unsettled(), UnknownOutcomeError(message))
            batch.delivery.close()
        if errors:
            log.last_resort_failed(batch, errors)
        return set(range(len(items))) - set(errors)

    async def _close(self) -> None:
        name, countdown = self._dispatcher.name, self._countdown
        share = max(countdown.reserve, RESERVE * (countdown.deadline - countdown.began))
        close = self._opener.close()
        try:
            closing = asyncio.get_running_loop().create_task(close)
        except BaseException:
            close.close()
            raise
        if not await countdown.ends(closing, latest=self._dispatcher.clock.now() + share):
            late = TimeoutError("it did not end in its share of the deadline; terminated")
            log.close_failed(name, late)
        elif (error := closing.exception()) is not None:
            log.close_failed(name, error)

    def _report(self) -> ShutdownReport[T]:
        dispatcher, books = self._dispatcher, self._dispatcher.books
        for flight in dispatcher.flights:
            flight.batch.delivery.close()
        left_behind = len(dispatcher.flights)
        if left_behind:
            log.left_behind(dispatcher.name, left_behind)
        if dispatcher.lifecycle.broken is not None:
            dispatcher.ledger.recount(0)
        now = dispatcher.clock.now()
        dispatcher.monitor.close()
        dispatcher.flights.close()
        report = ShutdownReport(
            name=dispatcher.name,
            tally=dispatcher.tally(),
            seconds=now - self._countdown.began,
            spent=self._spent.report(now),
            unsent=tuple(books.unsent),
            unknown=tuple(books.unknown),
            left_behind=left_behind,
            parked=books.parked,
            ended_by=self._ended_by,
            never_opened=self._opener.never_opened,
        )
        log.shutdown(report)
        return report


class _Spent:
    """The seconds of each phase, and the destination's share of them."""

    def __init__(self, dispatcher: Dispatcher[Any], began: float) -> None:
        self._clock = dispatcher.clock
        self._monitor = dispatcher.monitor
        self._began = self._phase_began = began
        self._phases: dict[str, float] = dict.fromkeys(_PHASES, 0.0)
        self._troubled_before = self._monitor.seconds(began)
        self._retries_before = self._monitor.retries

    def on(self, phase: str) -> None:
        """Add the time since the last phase to this one."""
        now = self._clock.now()
        self._phases[phase] += now - self._phase_began
        self._phase_began = now

    def report(self, now: float) -> TimeSpent:
        """Report the phases so far, and the destination's troubles during them."""
        troubled = {
            state.value: seconds - self._troubled_before.get(state, 0.0)
            for state, seconds in self._monitor.seconds(now).items()
        }
        return TimeSpent(
            **self._phases,
            destination={state: seconds for state, seconds in troubled.items() if seconds > 0},
            retries=self._monitor.retries - self._retries_before,
            last_error=self._monitor.last_error_since(self._began),
        )


def _of_one_tenant(items: list[Leftover[T]]) -> list[Leftover[T]]:
    """Return the first items, those of one tenant."""
    known = accepted(items[0].tenant)
    return list(takewhile(lambda item: accepted(item.tenant) == known, items))


def _never_sent() -> StoppedError:
    return StoppedError("the batcher stopped before this was sent")


class Countdown:
    """A deadline in `seconds`; the last fifth (at most `longest_reserve`) is a reserve.

    `on_move` is called with `at(1)` after each move.
    """

    def __init__(
        self,
        clock: Clock,
        seconds: float,
        *,
        longest_reserve: float = math.inf,
        on_move: Callable[[float], object] = lambda _: None,
        changed: Signal | None = None,
    ) -> None:
        self._clock = clock
        self._on_move = on_move
        self._changed = Signal() if changed is None else changed
        self.began = clock.now()
        self.deadline = self.began + seconds
        self.reserve = min(RESERVE * seconds, longest_reserve)

    def at(self, part: float) -> float:
        """Return the start of this part of the reserve: 1 is all of it, 0 is the deadline."""
        return self.deadline - part * self.reserve

    def hasten(self, seconds: float) -> None:
        """Move the deadline to `seconds` from now, if that is earlier."""
        when = self._clock.now() + seconds
        if when < self.deadline:
            self.deadline = when
            self.reserve = min(RESERVE * seconds, self.reserve)
            self._on_move(self.at(1))
            self.wake()

    def wake(self) -> None:
        """Make all waits check their conditions again."""
        self._changed.fire()

    async def until(
        self, condition: Callable[[], bool], *, part: float = 0, latest: float = math.inf
    ) -> None:
        """Suspend until the condition holds, at most until `at(part)` and `latest`."""
        while not condition() and self._clock.now() < (when := min(self.at(part), latest)):
            try:
                await wait_until(self._clock, when, self._changed)
            except asyncio.CancelledError:
                self.hasten(0.0)

    async def ends(
        self, task: asyncio.Task[Any], *, part: float = 0, latest: float = math.inf
    ) -> bool:
        """Wait for the task; cancel it if it is late. Return whether it ended by itself in time."""
        task.add_done_callback(lambda _: self.wake())
        await self.until(task.done, part=part, latest=latest)
        await self.settle([task])
        if not task.done():
            task.cancel()
            await self.settle([task])
        return task.done() and not task.cancelled()

    @staticmethod
    async def settle(tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Let tasks end if they can do so without waiting, even when no time is left."""
        if any(not task.done() for task in tasks):
            with contextlib.suppress(asyncio.CancelledError):  # swallowed: later waits are short
                await asyncio.wait(tasks, timeout=0)
