"""The tasks of an open consumer: one poller, one committer, one timekeeper, and the workers.

The order of a drain, bounded by its deadline:

1. Stop fetching, and drop queued messages: they are delivered again.
2. Let running handlers and writes end; the batch being formed is handled.
3. Cancel the handlers and writes that still run, at one fifth of the deadline (at most one second)
   before its end.
4. Commit the settled positions.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from .._core.clock import wait_until
from .._core.park_store import UnparkRequests
from .._core.runtime.run import consumer_ended
from .._core.source import TakesBack
from .failures.dead_letters import LetterCircuit
from .failures.departures import Departures, Returns
from .failures.parking import Parker, Replays
from .failures.poison import PoisonTreatment
from .handling.batches import BatchMessages, BatchSettler
from .handling.handlers import with_reports
from .handling.settling import Settler
from .handling.timeouts import Sweeper
from .handling.workers import Workers
from .lanes.keys import KeyRules
from .lanes.schedule import Schedule
from .lanes.window import Window
from .operating.health import LagSampler
from .operating.places import Places
from .operating.report import DrainReport, Unfinished, say_drained
from .operating.stats import Sampler, stats_of
from .progress.claims import Claims
from .progress.draining import Drainer
from .progress.source_tasks import Committer, Poller
from .run import Run, TaskCancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from .._core.runtime.threads import Closing
    from .._core.source import Source
    from .failures.dead_letters import LetterWriter
    from .handling.batches import BatchFunction
    from .handling.results import Result
    from .handling.workers import Work
    from .lanes.batches import BatchLimits
    from .lanes.message import Message
    from .operating.stats import ConsumerStats
    from .progress.claim import Claim
    from .settings import ConsumerSettings

LAST_COMMIT = 0.1
"""Minimum time for the last commit, in seconds."""


class Engine(Run):
    """The parts and tasks of a consumer, which exist only while it is open."""

    def __init__(
        self,
        source: Source,
        settings: ConsumerSettings,
        letters: LetterWriter | None,
        closing: Closing,
        schedule: type[Schedule] = Schedule,
    ) -> None:
        super().__init__(settings.name, settings.clock, settings.observers)
        self.source = source
        self._settings = settings
        self._closing = closing
        keys = _key_rules(settings, are_short=source.capabilities.shares == "keys")
        limits = settings.in_flight
        assert limits.messages is not None
        window = Window(limits.messages, limits.bytes)
        self.schedule = schedule(keys, window, limits.size_of, max_per_key=limits.per_key)
        self.workers = Workers(settings.concurrency, self.end)
        self.poison = self._failures(keys, letters)
        self.settler = Settler(
            self.schedule,
            self.poison,
            settings.retry,
            self,
            keeps_key=settings.on_nak == "block",
        )
        departures = self.poison.departures
        self._drainer = Drainer(self.schedule, self.settler, departures, self.workers, self)
        self.claims = Claims(
            self.schedule,
            self._drainer,
            self,
            self,
            settings.drain,
            reads_parked=settings.poison.parked is not None,
            capabilities=source.capabilities,
        )
        self.committer = Committer(
            source,
            self.claims,
            self.schedule,
            self,
            every=settings.commit_every,
            after=settings.commit_after,
        )
        self.places = Places(
            self,
            source,
            self.claims,
            self.schedule,
            self.workers,
            departures,
            self.settler,
            self.committer,
        )
        self.sampler = Sampler(self.places, settings.stall_after)
        self.lag_sampler = LagSampler(self.places)
        self._sweeper = Sweeper(self.places, settings.timeout)

    def _failures(self, keys: KeyRules, letters: LetterWriter | None) -> PoisonTreatment:
        """Create the parts that deal with messages which cannot be handled."""
        settings, source, schedule = self._settings, self.source, self.schedule
        poison = settings.poison
        circuit = LetterCircuit(poison.max_dead_letter_ratio, poison.max_consecutive_dead_letters)
        departures = Departures(schedule, circuit, self, settings.retry.backoff)
        parker = replays = None
        if poison.parked is not None:
            parker = Parker(poison.parked, schedule, departures, self, keys)
            replays = Replays(poison.parked, schedule, departures, self, parker)
        assert poison.strategy is not None
        return PoisonTreatment(
            poison.strategy,
            schedule,
            departures,
            self,
            circuit=circuit,
            letters=letters,
            parker=parker,
            replays=replays,
            returns=Returns(source, departures, self) if isinstance(source, TakesBack) else None,
        )

    # -- messages, from outside their handlers -----------------------------------------------------

    def settle(self, message: Message, result: Result) -> bool:
        """Settle a message whose handler returned `Manual`."""
        is_running = message in self.workers.running
        return self.settler.settle_later(message, result, is_running=is_running)

    def in_progress(self, message: Message) -> None:
        """Restart the timeout of the handler, and that of the source."""
        self._sweeper.in_progress(message)

    def batches(self, handler: BatchFunction, limits: BatchLimits) -> BatchMessages:
        """Return the work of handling batches."""
        return BatchMessages(
            self.schedule,
            self.schedule.form_batches(limits),
            BatchSettler(
                self.settler,
                self.schedule,
                self._settings.retry,
                self,
                on_mismatch=limits.on_mismatch,
            ),
            self.workers,
            self,
            handler=with_reports(handler, self, is_batch=True),
            steps=self._settings.steps,
        )

    def stats(self) -> ConsumerStats:
        """Take a snapshot. Thread-safe."""
        return stats_of(self.places, self.sampler, self.lag_sampler.latest())

    # -- the run -----------------------------------------------------------------------------------

    def announce(self) -> None:
        """Notify the observers that the consumer opens."""
        self.observers.tell(lambda observer: observer.on_open(self.name, self.stats))
        self.tell_state("opening")

    def close(self) -> None:
        """End a consumer that may not have run, and notify the observers that it is closed."""
        self.end()
        self.tell_state("closed")

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
        self.end()
        try:
            report = await self._drain(tasks, at_end=at_end)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        consumer_ended(report)
        ended = ended or self.cancellation
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
            self,
            poison=self.poison,
            fetch_max=cast("int", self._settings.in_flight.fetch_max),
        )
        loop, name = asyncio.get_running_loop(), self.name
        work: dict[str, Callable[[], Coroutine[object, object, None]]] = {
            "poller": poller.run,
            "committer": self.committer.run,
            "timekeeper": self._keep_time,
            "sampler": self.sampler.run,
            "lag sampler": self.lag_sampler.run,
            "sweeper": partial(self._sweeper.run, poller.waiting),
        }
        if not self.lag_sampler.is_wanted:
            del work["lag sampler"]
        if (parker := self.poison.parker) is not None:
            work["parker"] = partial(parker.run, self.claims)
        store = self._settings.poison.parked
        if isinstance(store, UnparkRequests) and self.poison.replays is not None:
            work["unparker"] = partial(self.poison.replays.run, store)
        return [loop.create_task(run(), name=f"{name} {what}") for what, run in work.items()]

    async def _until_end(self, tasks: list[asyncio.Task[None]]) -> bool:
        """Return whether the source has ended and every message that is not blocked was handled."""
        for task in tasks:
            task.add_done_callback(self._task_ended)
        clock, poller = self.clock, tasks[0]
        budget = self._settings.budget
        end = math.inf if budget is None else clock.now() + budget
        while not (self.is_ending or poller.done() or clock.now() >= end):
            await wait_until(clock, end, self.ending)
        self.schedule.complete(clock.now())
        self.workers.wake()
        while not (self.is_ending or self.workers.is_stuck or clock.now() >= end):
            await wait_until(clock, end, self.ending, self.settled, *self.workers.landed)
        if self.error is not None:
            raise self.error
        return poller.done() and self.workers.is_stuck

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            if (error := task.exception()) is not None:
                self.end(error)
        elif not self.is_ending:  # not by the drain
            self.end(TaskCancelled(task.get_name()))
        self.ending.fire()

    async def _keep_time(self) -> None:
        """Make ready the messages whose backoff has ended, and wake workers for ready messages."""
        clock = self.clock
        while True:
            self.schedule.release_due(clock.now())
            self.poison.look()
            self.workers.wake()
            due = self.schedule.next_due(clock.now())
            await wait_until(clock, due, self.work)

    # -- the drain ---------------------------------------------------------------------------------

    async def _drain(self, tasks: list[asyncio.Task[None]], *, at_end: bool) -> DrainReport:
        clock, drain = self.clock, self._settings.drain
        self.tell_state("draining")
        self._closing.limit(drain)
        began, blocked = clock.now(), self.poison.blocked()
        tasks[0].cancel()
        self.schedule.complete(began)
        claims = self.claims.close_all()
        self.workers.hurry(began + drain - min(1.0, drain / 5))
        going = {
            *claims,
            *self._drainer.busy(),
        }  # including messages that still run in ended claims
        self.workers.stop()
        cut: list[Message] = []
        since = self.sampler.busy_since()
        until = began + drain
        try:
            await self._drainer.wait(going, until - min(1.0, drain / 5), cut)
        except asyncio.CancelledError as error:  # drain immediately
            self.hasten(error)
            until = clock.now()
            self._closing.limit(0.0)
            self.workers.hurry(until)
            with contextlib.suppress(asyncio.CancelledError):
                await self._drainer.wait(going, until, cut)
        now = clock.now()
        ran = {message: now - since[message] if message in since else None for message in cut}
        failed = await self._last_commit(until)
        report = self._report(claims, ran, clock.now() - began, failed)
        if self.claims.left_work or any(claim.has_moved for claim in claims):
            at_end = False  # nothing is fetched for a later claim
        return say_drained(replace(report, blocked=blocked, at_end=at_end))

    async def _last_commit(self, until: float) -> BaseException | None:
        clock = self.clock
        try:
            async with clock.timeout_at(max(until, clock.now() + LAST_COMMIT)):
                await self.committer.commit(closing=True)
        except asyncio.CancelledError as error:
            self.hasten(error)
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
            self.name,
            self.counted(self.schedule.acknowledged),
            {claim.partition: claim.committed.offset for claim in claims},
            tuple(unfinished),
            seconds,
            error,
        )


def _key_rules(settings: ConsumerSettings, *, are_short: bool) -> KeyRules:
    """Return the rules for lanes. A short claim has one key, which other claims of its topic may
    have.
    """
    ordering, key = settings.ordering, settings.key
    if are_short:
        return KeyRules(ordering, key.by, "topic", "parallel")
    return KeyRules(ordering, key.by, key.scope, key.keyless)
