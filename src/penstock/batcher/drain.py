"""Shutting down, bounded by a deadline, with every item accounted for.

1. Nothing more is accepted; producers that wait for room get `ClosedError`, or are let in as room
   comes free (`admit_waiting`).
2. Everything open is sealed at once, whatever the linger.
3. Backoffs end with an immediate try. Further tries follow after shortened waits, and an outage is
   probed, for as long as another try fits (see `_core.patience`): the time is used.
4. Shortly before the deadline (a fifth of the time, at most a second) what no worker has taken is
   given up as `unsent`, and the writes in flight are cancelled. They have a grace to end; then
   their items get their verdicts without them.
5. What is known not to be applied goes to the last resort, if there is one, and ends
   `dead_lettered` if that takes it. The reserve is a fifth of the time then, without the limit of a
   second.
6. The sink is closed, in a share of the time.
7. At the deadline the report is final. A write that ignored its cancellation is left behind, and
   what it does later changes nothing.

The earliest deadline asked for wins.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .._core.batch import RowBatch
from .._core.delivery.delivery import GRACE, Delivery
from .._core.errors import StoppedError, UnknownOutcomeError
from .._core.lineage import Lineage, Reason
from .._core.order.keys import accepted
from .._core.outcome import Outcome
from .._core.runtime.own_context import own_context
from .._core.send import send
from . import log
from .report import ShutdownReport, TimeSpent

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from .._core.sink import Sink
    from .dispatch import Engine

T = TypeVar("T")

CLOSING_SHARE = 0.2
LONGEST_RESERVE = 1.0


class Drain(Generic[T]):
    """One shutdown of one batcher."""

    def __init__(
        self,
        engine: Engine[T],
        close_sink: Callable[[], Coroutine[Any, Any, None]],
        seconds: float,
        *,
        admit_waiting: bool,
        last_resort: Sink[T] | None,
    ) -> None:
        self._engine = engine
        self._close_sink = close_sink
        self._admit_waiting = admit_waiting
        self._last_resort = last_resort
        self._began = engine.clock.now()
        self._deadline = self._began + seconds
        self._reserve = (
            CLOSING_SHARE * seconds
            if last_resort is not None
            else min(CLOSING_SHARE * seconds, LONGEST_RESERVE)
        )
        self._phases: dict[str, float] = dict.fromkeys(
            ("drain", "cut", "last_resort", "close"), 0.0
        )
        self._phase_began = self._began
        self._troubled_before = engine.monitor.seconds(self._began)
        self._retries_before = engine.monitor.retries
        engine.held = None if last_resort is None else []
        self._waiter: asyncio.Future[None] | None = None
        engine.deadline = self._deadline - self._reserve
        engine.on_change = self._wake
        self.task = self._begin()

    def _begin(self) -> asyncio.Task[ShutdownReport[T]]:
        return asyncio.get_running_loop().create_task(
            self._run(), name=f"penstock shutdown {self._engine.name}", context=own_context()
        )

    def begin_again(self) -> None:
        """The task was cancelled before its first step: shut down now."""
        self.hasten(0.0)
        self.task = self._begin()

    def hasten(self, seconds: float) -> None:
        """Bring the deadline forward to `seconds` from now, if that is earlier."""
        when = self._engine.clock.now() + seconds
        if when < self._deadline:
            self._deadline = when
            self._reserve = min(CLOSING_SHARE * seconds, self._reserve)
            self._engine.deadline_moved(when - self._reserve)
            self._wake()

    async def _run(self) -> ShutdownReport[T]:
        engine = self._engine
        engine.stop_accepting(admit_waiting=self._admit_waiting)
        engine.accumulator.seal(
            Reason.SHUTDOWN_REQUEST if self._admit_waiting else Reason.SHUTDOWN, engine.clock.now()
        )
        engine.begin_stop()
        engine.advance(engine.clock.now())
        await self._until(lambda: engine.is_drained, self._cut_at)
        self._spent("drain")
        self._cut()
        await self._breathe([flight.task for flight in engine.flights if flight.task is not None])
        await self._until(
            lambda: all(flight.left == 0 for flight in engine.flights), self._close_at
        )
        self._spent("cut")
        await self._give_to_last_resort()
        self._spent("last_resort")
        await self._until(lambda: not engine.flights, self._close_at)
        self._spent("cut")
        await self._close()
        self._spent("close")
        await self._until(lambda: not engine.flights, lambda: self._deadline)
        self._spent("cut")
        return self._report()

    def _spent(self, phase: str) -> None:
        """Add the time since the last phase to this one."""
        now = self._engine.clock.now()
        self._phases[phase] += now - self._phase_began
        self._phase_began = now

    def _cut_at(self) -> float:
        return self._deadline - self._reserve

    def _close_at(self) -> float:
        return self._deadline - self._reserve / 2

    async def _until(self, condition: Callable[[], bool], when: Callable[[], float]) -> None:
        """Wait for the condition, at most until a time that may move."""
        clock = self._engine.clock
        while not condition() and clock.now() < when():
            self._waiter = asyncio.get_running_loop().create_future()
            timer = clock.call_at(when(), self._wake)
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.hasten(
                    0.0
                )  # `asyncio.run` cancels every task as it ends, this one too: it means now
            finally:
                timer.cancel()

    async def _ends_by(self, task: asyncio.Task[Any], when: Callable[[], float]) -> bool:
        """Whether the task ends by itself by a time that may move; it is cancelled then, and left
        behind if it ignores that.
        """
        task.add_done_callback(lambda _: self._wake())
        await self._until(task.done, when)
        await self._breathe([task])
        if not task.done():
            task.cancel()
            await self._breathe([task])
        return task.done() and not task.cancelled()

    @staticmethod
    async def _breathe(tasks: list[asyncio.Task[Any]]) -> None:
        """Let tasks that can end at once do so, even with no time left."""
        if any(not task.done() for task in tasks):
            with contextlib.suppress(
                asyncio.CancelledError
            ):  # as in `_until`; the next wait is short
                await asyncio.wait(tasks, timeout=0)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _cut(self) -> None:
        engine = self._engine
        engine.turn_away()
        engine.give_up(_never_sent())
        verdict_at = min(engine.clock.now() + GRACE, self._close_at())
        for flight in list(engine.flights):
            flight.cut(
                UnknownOutcomeError("the write was cut off by the shutdown's deadline"), verdict_at
            )

    async def _give_to_last_resort(self) -> None:
        """Hand over what is held, a batch of one tenant at a time; what the last resort does not
        take in time is unsent after all.
        """
        engine = self._engine
        while engine.held:
            tenant = engine.held[0].tenant
            known = accepted(tenant)
            items = list(
                takewhile(
                    lambda item: accepted(item.tenant) == known,  # noqa: B023  # at once
                    engine.held[: engine.limits.max_items],
                )
            )
            taken = await self._taken_by_last_resort([item.item for item in items], tenant)
            del engine.held[: len(items)]
            engine.end(
                [item for place, item in enumerate(items) if place in taken],
                Outcome.DEAD_LETTERED,
                None,
            )
            engine.end(
                [item for place, item in enumerate(items) if place not in taken],
                Outcome.UNSENT,
                _never_sent(),
            )
            engine.check_fences()
        engine.held = None

    async def _taken_by_last_resort(self, items: list[T], tenant: object) -> set[int]:
        engine = self._engine
        if self._last_resort is None or engine.clock.now() >= self._last_at():
            return set()
        lineage = Lineage(reason=Reason.SHUTDOWN, name=engine.name, tenant=tenant)
        batch = RowBatch(
            items, lineage=lineage, delivery=Delivery(len(items), labels=("last-resort",))
        )
        sending = asyncio.get_running_loop().create_task(
            send(self._last_resort, batch), name=f"penstock last resort {engine.name}"
        )
        if not await self._ends_by(sending, self._last_at):
            late = UnknownOutcomeError(
                "the last resort did not answer in its share of the deadline"
            )
            errors: dict[int, BaseException] = dict.fromkeys(batch.unsettled(), late)
            batch.delivery.close()
        else:
            errors = sending.result()
        if errors:
            log.last_resort_failed(batch, errors)
        return set(range(len(items))) - set(errors)

    def _last_at(self) -> float:
        return self._deadline - self._reserve / 4

    async def _close(self) -> None:
        engine = self._engine
        now = engine.clock.now()
        share = max(self._reserve, CLOSING_SHARE * (self._deadline - self._began))
        until = min(self._deadline, now + share)
        closing = asyncio.get_running_loop().create_task(self._close_sink())
        if not await self._ends_by(closing, lambda: min(until, self._deadline)):
            log.close_failed(
                engine.name, TimeoutError("it did not end in its share of the deadline; terminated")
            )
        elif (error := closing.exception()) is not None:
            log.close_failed(engine.name, error)

    def _report(self) -> ShutdownReport[T]:
        engine = self._engine
        for flight in engine.flights:
            flight.batch.delivery.close()
        if engine.flights:
            log.left_behind(engine.name, len(engine.flights))
        now = engine.clock.now()
        engine.monitor.close()
        report = ShutdownReport(
            name=engine.name,
            tally=engine.tally(),
            seconds=now - self._began,
            spent=self._time_spent(now),
            unsent=tuple(engine.unsent),
            unknown=tuple(engine.unknown),
            left_behind=len(engine.flights),
            parked=engine.parked,
        )
        log.shutdown(report)
        return report

    def _time_spent(self, now: float) -> TimeSpent:
        monitor = self._engine.monitor
        troubled = {
            state.value: seconds - self._troubled_before.get(state, 0.0)
            for state, seconds in monitor.seconds(now).items()
        }
        return TimeSpent(
            **self._phases,
            destination={state: seconds for state, seconds in troubled.items() if seconds > 0},
            retries=monitor.retries - self._retries_before,
            last_error=monitor.last_error_since(self._began),
        )


def _never_sent() -> StoppedError:
    return StoppedError("the batcher stopped before this was sent")
