"""One run of events: the tasks and jobs of `Consumer.run_events`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..._core.errors import ConfigError
from .events import Events
from .forwarding import Forwarding
from .interjecting import Interjecting
from .state_keeping import StateKeeping
from .stores import Stores

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..engine import Engine
    from ..report import DrainReport
    from ..stepping import Step
    from .batches import ItemBatcher
    from .context import EventContext
    from .forwarded import TakesForwarded
    from .interjections import Interjector
    from .running import JobRun
    from .running_batches import BatchRun
    from .scheduler import JobScheduler
    from .state import StateBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class EventOptions:
    """The arguments of `Consumer.run_events`, documented there."""

    jobs: Sequence[JobScheduler[Any, Any] | ItemBatcher] = ()
    state: StateBackend | None = None
    interjections: Sequence[Interjector] = ()
    forward_to: TakesForwarded | None = None


class EventRun:
    """A run of events, with its interjections."""

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
        self._events = Events(engine, handler, steps, options.jobs, self._stores)
        if options.forward_to is not None:
            self._events.with_forwarding(Forwarding(options.forward_to, engine.ending.begin))
        self.interjecting = Interjecting(engine, self._events, options.interjections)
        self._keeping = StateKeeping(engine, self._events) if self._stores.are_positioned else None

    async def run(self) -> DrainReport:
        """Run until the consumer drains. Raises the same errors as `Consumer.run`."""
        runs = self._begin()
        self._events.begin(runs)
        work = [self.interjecting.keep()]
        if self._keeping is not None:
            self._keeping.begin()
            work += self._keeping.tasks()
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
