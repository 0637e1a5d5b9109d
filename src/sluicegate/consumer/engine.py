"""The tasks of an open consumer: one poller, one committer, one timekeeper, and the workers.

The order of a drain, bounded by its deadline:

1. Stop fetching, and drop queued messages: they are delivered again.
2. Let running handlers and errands end; the batch being formed is handled.
3. Cancel the handlers and errands that still run, at one fifth of the deadline (at most one second)
   before its end.
4. Commit the settled positions.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from .._core.clock import wait_until
from .._core.observer import ConsumerObservers
from .._core.runtime.run import consumer_ended
from .batching.batch_messages import BatchMessages
from .batching.batch_settling import BatchSettler
from .claims import Claims
from .committing import Committer
from .commons import Commons
from .errands import Errands
from .failures import failures
from .keys import KeyRules
from .observing import observed
from .parts import Parts
from .polling import Poller
from .quiet import Quiet
from .report import DrainReport, Unfinished, say_drained
from .run_end import RunEnd, TaskCancelled
from .schedule import Schedule
from .settling import Settler
from .sweeper import Sweeper
from .views import Views
from .window import Window
from .workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from .._core.runtime.threads import Closing
    from .._core.source import Source
    from .batching.batch_limits import BatchLimits
    from .batching.batch_messages import BatchFunction
    from .claim import Claim
    from .message import Message
    from .poison import Letters
    from .results import Result
    from .settings import ConsumerSettings
    from .workers import Work

LAST_COMMIT = 0.1
"""Minimum time for the last commit, in seconds."""


class Engine:
    """The state of a consumer that exists only while it is open."""

    def __init__(
        self,
        source: Source,
        settings: ConsumerSettings,
        letters: Letters | None,
        closing: Closing,
        schedule: type[Schedule] = Schedule,
    ) -> None:
        self.source = source
        self._settings = settings
        self.ending = RunEnd()
        self._closing = closing
        observers = ConsumerObservers(settings.observers)
        self.commons = commons = Commons(settings.name, settings.clock, observers=observers)
        keys = _key_rules(settings, are_short=source.traits.short_claims)
        window = Window(settings.max_in_flight, settings.max_in_flight_bytes, settings.refill_below)
        self.schedule = schedule(keys, window, settings.size_of, max_per_key=settings.max_per_key)
        self.workers = Workers(settings.concurrency, self.ending.begin)
        self.errands = Errands(self.ending.begin, commons.signals.settled)
        self.failures = failures(
            source,
            settings,
            self.schedule,
            self.errands,
            commons,
            keys=keys,
            stop=self.ending.begin,
            letters=letters,
        )
        self.settler = Settler(
            self.schedule,
            self.failures.poison,
            settings.retry,
            commons,
            keeps_key=settings.on_nak == "block",
            returns=self.failures.returns,
        )
        self._quiet = Quiet(self.schedule, self.settler, self.errands, self.workers, commons)
        self.claims = Claims(
            self.schedule,
            self._quiet,
            self,
            commons,
            settings.drain,
            reads_parked=settings.parked is not None,
            traits=source.traits,
        )
        self.committer = Committer(
            source,
            self.claims,
            self.schedule,
            commons,
            every=settings.commit_every,
            after=settings.commit_after,
        )
        parts = Parts(
            commons,
            source,
            self.claims,
            self.schedule,
            self.workers,
            self.errands,
            self.settler,
            self.committer,
            self.ending,
        )
        self.views = Views(parts, settings.stall_after)
        self._sweeper = Sweeper(parts, settings.timeout)

    # -- the desk of messages ----------------------------------------------------------------------

    def settle(self, message: Message, result: Result) -> bool:
        """Settle a message whose handler returned `Manual`."""
        is_running = message in self.workers.running
        return self.settler.settle_later(message, result, is_running=is_running)

    def in_progress(self, message: Message) -> None:
        """Restart the timeout of the handler, and that of the source."""
        self._sweeper.in_progress(message)

    def batches(self, handler: BatchFunction, limits: BatchLimits) -> BatchMessages:
        """Return the work of handling batches."""
        retry, commons = self._settings.retry, self.commons
        return BatchMessages(
            self.schedule,
            self.schedule.form_batches(limits),
            BatchSettler(
                self.settler, self.schedule, retry, commons, on_mismatch=limits.on_mismatch
            ),
            self.workers,
            commons,
            handler=observed(handler, commons, is_batch=True),
            steps=self._settings.steps,
        )

    # -- the run -----------------------------------------------------------------------------------

    def opening(self) -> None:
        """Notify the observers that the consumer opens."""
        name, stats, observers = self.commons.name, self.views.stats, self.commons.observers
        observers.tell(lambda observer: observer.on_open(name, stats))
        self.commons.tell_state("opening")

    def closed(self) -> None:
        """End a consumer that may not have run, and notify the observers that it is closed."""
        self.ending.begin()
        self.commons.tell_state("closed")

    async def run(self, work: Work) -> DrainReport:
        """Run until `stop`, a failure, a cancellation, or the end of the budget or the source; then
        drain.
        """
        ended: BaseException | None = None
        at_end = False
        self.workers.begin(work)
        tasks = self._tasks()
        try:
            at_end = await self._until_end(tasks)
        except BaseException as error:  # raised again after the drain
            ended = error
        self.ending.begin()
        try:
            report = await self._drain(tasks, at_end=at_end)
        finally:
            await self._end(tasks)
        consumer_ended(report)
        ended = ended or self.ending.cancellation
        if ended is not None:
            if not report.complete:
                ended.add_note(str(report))
            raise ended
        return report

    def _tasks(self) -> list[asyncio.Task[None]]:
        poller = Poller(
            self.source,
            self.claims,
            self.schedule,
            self.workers,
            self.commons,
            poison=self.failures.poison,
            fetch_max=self._settings.fetch_max,
        )
        loop, name = asyncio.get_running_loop(), self._settings.name
        work: dict[str, Callable[[], Coroutine[object, object, None]]] = {
            "poller": poller.run,
            "committer": self.committer.run,
            "timekeeper": self._keep_time,
            "sampler": self.views.sampler.run,
            "lag sampler": self.views.lag_sampler.run,
            "sweeper": partial(self._sweeper.run, poller.waiting),
        }
        if not self.views.lag_sampler.is_wanted:
            del work["lag sampler"]
        if (parker := self.failures.parker) is not None:
            work["parker"] = partial(parker.run, self.claims)
        return [loop.create_task(run(), name=f"{name} {what}") for what, run in work.items()]

    async def _until_end(self, tasks: list[asyncio.Task[None]]) -> bool:
        """Return whether the source has ended and every message that is not blocked was handled."""
        for task in tasks:
            task.add_done_callback(self._task_ended)
        clock, ending, poller = self._settings.clock, self.ending, tasks[0]
        budget = self._settings.budget
        end = math.inf if budget is None else clock.now() + budget
        while not (ending.is_begun or poller.done() or clock.now() >= end):
            await wait_until(clock, end, ending.signal)
        self.schedule.complete(clock.now())
        self.workers.wake()
        while not (ending.is_begun or self.workers.is_stuck or clock.now() >= end):
            await wait_until(clock, end, ending.signal, self.commons.signals.settled)
        if ending.error is not None:
            raise ending.error
        return poller.done() and self.workers.is_stuck

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            if (error := task.exception()) is not None:
                self.ending.begin(error)
        elif not self.ending.is_begun:  # not by the drain
            self.ending.begin(TaskCancelled(task.get_name()))
        self.ending.signal.fire()

    async def _keep_time(self) -> None:
        """Make ready the messages whose backoff has ended, and wake workers for ready messages."""
        clock = self._settings.clock
        while True:
            self.schedule.release_due(clock.now())
            self.failures.poison.look()
            self.workers.wake()
            due = self.schedule.next_due(clock.now())
            await wait_until(clock, due, self.commons.signals.work)

    # -- the drain ---------------------------------------------------------------------------------

    async def _drain(self, tasks: list[asyncio.Task[None]], *, at_end: bool) -> DrainReport:
        clock, drain = self._settings.clock, self._settings.drain
        self.commons.tell_state("draining")
        self._closing.limit(drain)
        began, blocked = clock.now(), self.failures.blocked.messages()
        tasks[0].cancel()
        self.schedule.complete(began)
        claims = self.claims.close_all()
        self.workers.hurry(began + drain - min(1.0, drain / 5))
        going = {*claims, *self._quiet.busy()}  # including messages that still run in ended claims
        self.workers.stop()
        cut: list[Message] = []
        since = self.views.sampler.busy_since()
        until = began + drain
        try:
            await self._quiet.wait(going, until - min(1.0, drain / 5), cut)
        except asyncio.CancelledError as error:  # drain at once
            self.ending.hasten(error)
            until = clock.now()
            self._closing.limit(0.0)
            self.workers.hurry(until)
            with contextlib.suppress(asyncio.CancelledError):
                await self._quiet.wait(going, until, cut)
        now = clock.now()
        ran = {message: now - since[message] if message in since else None for message in cut}
        failed = await self._last_commit(until)
        report = self._report(claims, ran, clock.now() - began, failed)
        return say_drained(replace(report, blocked=blocked, at_end=at_end))

    async def _last_commit(self, until: float) -> BaseException | None:
        clock = self._settings.clock
        try:
            async with clock.timeout_at(max(until, clock.now() + LAST_COMMIT)):
                await self.committer.commit(closing=True)
        except asyncio.CancelledError as error:
            self.ending.hasten(error)
            return error
        except Exception as error:  # in the report
            return error
        return None

    def _report(
        self,
        claims: list[Claim],
        cut: Mapping[Message, float | None],
        seconds: float,
        error: BaseException | None,
    ) -> DrainReport:
        unfinished = [
            Unfinished(m.claim.partition, m.offset, m.order_key, m.attempt, ran)
            for m, ran in cut.items()
            if m.is_unparked or not m.claim.tracker.is_done(m.index)
        ]
        return DrainReport(
            self._settings.name,
            self.commons.counts.snapshot(self.schedule.acknowledged),
            {claim.partition: claim.committed.offset for claim in claims},
            tuple(unfinished),
            seconds,
            error,
        )

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _key_rules(settings: ConsumerSettings, *, are_short: bool) -> KeyRules:
    """Return the rules for lanes. A short claim has one key, which other claims of its topic may
    have.
    """
    ordering, key = settings.ordering, settings.key
    if are_short:
        return KeyRules(ordering, key, "topic", "parallel")
    return KeyRules(ordering, key, settings.key_scope, settings.keyless)
