"""One run of `Consumer.run_events`: its jobs, and its background tasks.

1. Interjections are started when they are due, and put into the order of their partitions.

Three tasks serve events whose state is stored with the position:

2. The state of a new claim is read before anything is fetched for it; failed reads are repeated.
3. When too many changes of a partition wait to be stored, its lane is held: finalisers still begin,
   but no later event does. Pending events complete and are committed, and then the lane
   continues.
4. If a claim has lost its position and its source does not end it within `LOST_MOST` seconds, it is
   replaced by a new claim, which reads the state again: the loss was an error, such as a
   transaction that exceeded a time limit. With a source that cannot replace it, the run ends.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..._core.classify import caused
from ..._core.clock import Signal, wait_until
from ..._core.errors import ConfigError, PositionLost
from ..._core.logs import for_log, log_safely
from ..._core.retry_policy import RetryPolicy
from ..._core.runtime.cuts import end_if_cut
from ..._core.source import ReplacesClaims
from ..failures.departures import insist
from ..handling.handlers import as_function
from .context import Forwarding
from .events import Events
from .interjections import Interjection, NotAssigned
from .item_batcher import BatchRun
from .state import Stores

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..._core.source import TopicPartition
    from ..engine import Engine
    from ..handling.steps import Step
    from ..operating.report import DrainReport
    from ..progress.claim import Claim
    from .context import EventContext, TakesForwarded
    from .interjections import Interjector
    from .item_batcher import ItemBatcher
    from .job_run import JobRun
    from .scheduler import JobScheduler
    from .state import StateBackend

logger = logging.getLogger("sluicegate.consumer")
LOOK_EVERY = 1.0
"""Interval in seconds between two checks of held lanes and lost positions."""
LOST_MOST = 10.0
"""Seconds: longer than a live group member takes to learn of a rebalance."""
_REPLACED = (
    "%s: %s has lost its position (%s), but is still assigned here: its state is read again, and its "
    "events run again from the stored position"
)
_FAILED = "%s: a commit failed (%s), and changes of state wait for it; next try in %.3g s"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventOptions:
    """The arguments of `Consumer.run_events`, documented there."""

    jobs: Sequence[JobScheduler[Any, Any] | ItemBatcher] = ()
    state: StateBackend | None = None
    interjections: Sequence[Interjector] = ()
    forward_to: TakesForwarded | None = None


class EventRun:
    """A run of events, with its background tasks."""

    def __init__(
        self,
        engine: Engine,
        handler: Callable[[EventContext], Awaitable[object]],
        steps: Sequence[Step],
        options: EventOptions,
    ) -> None:
        self._engine = engine
        self._options = options
        self._stores = Stores(options.state)
        batcher = options.forward_to
        forwarding = None if batcher is None else Forwarding(batcher, engine.end)
        jobs, stores = options.jobs, self._stores
        self._events = Events(engine, handler, steps, jobs, stores, forwarding=forwarding)
        self.interjecting = Interjecting(engine, self._events, options.interjections)
        self._backoff = RetryPolicy().backoff
        self._reading: dict[Claim, asyncio.Task[None]] = {}

    async def run(self) -> DrainReport:
        """Run until the consumer drains. Raises the same errors as `Consumer.run`."""
        runs = self._begin()
        self._events.begin([each for each in runs if isinstance(each, BatchRun)])
        work = [self.interjecting.keep()]
        if self._stores.are_positioned:
            self._engine.claims.read_first()
            work += [self._read_states(), self._relieve(), self._replace_lost()]
        tasks = [asyncio.get_running_loop().create_task(each) for each in work]
        for task in tasks:
            task.add_done_callback(self._ended)
        try:
            return await self._engine.run(self._events)
        finally:
            for task in tasks:
                task.cancel()
            for each in runs:
                each.close()
            self._stores.close()

    def _begin(self) -> list[JobRun | BatchRun]:
        """Begin the runs of all jobs; if one fails, close the others."""
        runs: list[JobRun | BatchRun] = []
        try:
            for each in self._options.jobs:
                runs.append(each.begin(self._events))  # noqa: PERF401  # begun ones are to be closed
        except ConfigError:
            for run in runs:
                run.close()
            raise
        return runs

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.failed(error)

    # -- state stored with the position ------------------------------------------------------------

    async def _read_states(self) -> None:
        claims, changed = self._engine.claims, self._engine.assignment
        try:
            while True:
                for claim in claims.unread():
                    if claim not in self._reading:
                        task = asyncio.get_running_loop().create_task(self._read_state(claim))
                        self._reading[claim] = task
                        task.add_done_callback(self._ended)
                await wait_until(self._engine.clock, math.inf, changed)
        finally:
            for task in self._reading.values():
                task.cancel()

    async def _read_state(self, claim: Claim) -> None:
        prepare = partial(self._stores.prepare, claim)
        what = f"reading the state of {claim.partition}"
        try:
            if await insist(self._engine, self._backoff, prepare, what, claim):
                self._engine.claims.read(claim)
        finally:
            self._reading.pop(claim, None)

    async def _relieve(self) -> None:
        engine, crowded = self._engine, self._events.crowded
        while True:
            while not crowded:
                await wait_until(engine.clock, math.inf, crowded.began)
            try:
                await engine.committer.commit()
            except Exception as error:
                end_if_cut(error)
                args = engine.name, for_log(error), LOOK_EVERY
                log_safely(logger, logging.WARNING, _FAILED, *args)
                await engine.clock.sleep(LOOK_EVERY)
            for message in crowded.take_free():
                self._events.continue_stored(message)
            if crowded:
                until = engine.clock.now() + LOOK_EVERY
                await wait_until(engine.clock, until, engine.settled, engine.assignment)

    async def _replace_lost(self) -> None:
        lost_at: dict[Claim, float] = {}
        while True:
            await self._engine.clock.sleep(LOOK_EVERY)
            now, lost = self._engine.clock.now(), self._stores.losses()
            lost_at = {claim: lost_at.get(claim, now) for claim in lost}
            for claim, since in lost_at.items():
                if now - since >= LOST_MOST:
                    lost_at[claim] = now
                    self._replace(claim, lost[claim])

    def _replace(self, claim: Claim, error: Exception) -> None:
        source, name = self._engine.source, self._engine.name
        if isinstance(source, ReplacesClaims):
            log_safely(logger, logging.WARNING, _REPLACED, name, claim.partition, for_log(error))
            source.replace(claim)
            return
        text = f"{claim.partition} is still assigned here, but its position is lost"
        self._engine.end(caused(PositionLost(f"{text} ({error})"), error))


class Interjecting:
    """The interjections in the partitions of one consumer."""

    def __init__(self, engine: Engine, events: Events, interjectors: Sequence[Interjector]) -> None:
        self._engine = engine
        self._events = events
        self._interjectors = tuple(interjectors)
        self._due: dict[tuple[Claim, Interjector], float] = {}
        """Due time of each interjection that is not running."""
        self._known: dict[Claim, None] = {}
        self._changed = Signal()

    async def keep(self) -> None:
        """Start interjections when they are due, until cancelled."""
        clock, claims_changed = self._engine.clock, self._engine.assignment
        while True:
            now = clock.now()
            self._look(now)
            for (claim, interjector), due in [*self._due.items()]:
                if due <= now:
                    del self._due[claim, interjector]
                    self._start(claim, interjector)
            due = min(self._due.values(), default=math.inf)
            await wait_until(clock, due, claims_changed, self._changed)

    def _look(self, now: float) -> None:
        """Detect claims that have begun or ended."""
        open_claims = dict.fromkeys(
            [claim for claim in self._engine.claims if not claim.is_closing]
        )
        self._events.stores.close_ended()
        for claim in self._known:
            if claim not in open_claims:
                for interjector in self._interjectors:
                    self._due.pop((claim, interjector), None)
        for claim in open_claims:
            if claim not in self._known:
                for interjector in self._interjectors:
                    self._due[claim, interjector] = now + interjector.wait()
        self._known = open_claims

    def _start(self, claim: Claim, interjector: Interjector) -> None:
        done = self._put(claim, interjector.call)

        def again(done: asyncio.Future[None]) -> None:
            done.exception()  # it is already logged
            if claim in self._known:
                self._due[claim, interjector] = self._engine.clock.now() + interjector.wait()
                self._changed.fire()

        done.add_done_callback(again)

    def _put(
        self, claim: Claim, call: Callable[[EventContext], Awaitable[object]]
    ) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._events.interject(Interjection(claim, done), call)
        return done

    async def now(
        self, partition: TopicPartition | None, function: Callable[[EventContext], object]
    ) -> None:
        """Interject once, in one partition or in all concurrently; suspend until that is complete.

        Raises `NotAssigned`, any exception of the function, and `ConfigError` in a turn of the
        partition.
        """
        call = as_function("function", function, "a context", takes=1)
        claims = [each for each in self._engine.claims if not each.is_closing]
        if partition is not None:
            claims = [each for each in claims if each.partition == partition]
            if not claims:
                raise NotAssigned(f"{partition} is not assigned to {self._engine.name}")
        for message in self._events.workers.running_here():
            if message.claim in claims:
                rule = "it would wait for the end of this turn; do its work here, or call it from a task"
                raise ConfigError(f"interject() was called in the turn of {message!r}: {rule}")
        await asyncio.gather(*[self._put(claim, call) for claim in claims])
