"""Jobs of events, in order per key, beside the order of the partition.

1. A handler passes a value on by `schedule`. The processor runs outside the event's turn, one job of a key
   at a time, many keys side by side. The finaliser runs in the event's turn again, with what the processor
   has done to the value, and its error.
2. The keys of a scheduler are its own: equal keys of two partitions are one key. That holds over claims: a
   job that still runs for a partition that was lost keeps its key until it ends.
3. A scheduler serves one consumer at a time. It describes until the consumer runs, and nothing of the run
   is in it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

from ..._core import checks
from ..._core.errors import ClosedError, ConfigError
from ..._core.order.keys import accepted, identity
from ..._core.retry_policy import checked_policy
from .calling import as_function
from .pending import Pending
from .queue import Job
from .running import JobRun

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ..._core.retry_policy import RetryPolicy
    from ..results import Incomplete
    from .context import EventContext
    from .events import Events

K = TypeVar("K")
V = TypeVar("V")

KindOfWork = Literal["compute", "fast_network", "slow_network", "wide_network"]


class Preset(NamedTuple):
    """Bounds for a kind of work."""

    per_core: int
    """Jobs that run at once, for each core."""
    max_keys: int
    max_per_key: int


PRESETS: dict[KindOfWork, Preset] = {
    "compute": Preset(1, 10_000, 1_000),
    "fast_network": Preset(4, 10_000, 100),
    "slow_network": Preset(16, 10_000, 100),
    "wide_network": Preset(32, 10_000, 1_000),
}
"""What `kind` stands for. The figures are those of the original design of job schedulers: few jobs beside
each other where they compute, many where they wait."""


@dataclass(frozen=True, slots=True)
class JobStats:
    """The levels of a scheduler."""

    running: int
    """Jobs that are being processed."""
    waiting: int
    """Jobs that wait for a worker, or for an earlier one of their key."""
    keys: int
    """Keys with a job."""
    without_room: int
    """Jobs that wait for room; their partitions handle nothing meanwhile."""


class JobScheduler(Generic[K, V]):
    """Processes values of events in order per key, many keys at once, and then completes the events.

        async def write(key, order):
            order.reply = await call_the_other_system(order)

        async def written(context, key, order, error):
            if error is not None:
                return ToDeadLetter(str(error), error)
            context.store.put(key, order.reply)

        orders = JobScheduler(write, written, kind="slow_network", retry=RetryPolicy(attempts=3))

        async def handle(context):
            return orders.schedule(context, context.key, Order(context.value))

    Args:
        process: a function of the key and the value, async, or plain to run in a thread. It has no access
            to the event; what it finds out it writes into the value.
        finalise: a function of the context, the key, the value, and the error of `process` or `None`. It
            runs in the event's turn, and returns what a handler returns: `None` if the event is complete,
            or what `schedule` of another scheduler returns for a further stage. Default: the event is
            complete, whatever became of the job.
        kind: sets the three bounds for a kind of work: `"compute"`, `"fast_network"`, `"slow_network"`
            (the default) or `"wide_network"`.
        concurrency: the most jobs that are processed at once.
        max_keys: the most keys with jobs inside; an event of another key waits.
        max_per_key: the most jobs of a key that wait behind the running one.
        retry: how often a job that fails is tried again, and after what waits. It keeps its key and its
            place among the `concurrency` meanwhile; the finaliser is told the error of the last try.
            Default: there is one try.
        debug: whether an event that is completed without a job while the scheduler has one of its record's
            key is refused: it would pass the earlier events of its key.
        name: for messages and `explain()`.

    Raises `ConfigError` for a bad argument.
    """

    def __init__(
        self,
        process: Callable[[K, V], object],
        finalise: Callable[[EventContext, K, V, BaseException | None], object] | None = None,
        *,
        kind: KindOfWork = "slow_network",
        concurrency: int | None = None,
        max_keys: int | None = None,
        max_per_key: int | None = None,
        retry: RetryPolicy | None = None,
        debug: bool = False,
        name: str = "jobs",
    ) -> None:
        self._process = as_function("process", process, "a key and a value", takes=2)
        self._retry = None if retry is None else checked_policy(retry)
        given = "a context, a key, a value and an error"
        self._finalise = finalise and as_function("finalise", finalise, given, takes=4)
        preset = PRESETS[checks.choice("kind", kind, PRESETS)]
        cores = os.cpu_count() or 1
        self._concurrency: int = checks.count(
            "concurrency", cores * preset.per_core if concurrency is None else concurrency
        )
        self._max_keys: int = checks.count(
            "max_keys", preset.max_keys if max_keys is None else max_keys
        )
        self._max_per_key: int = checks.count(
            "max_per_key", preset.max_per_key if max_per_key is None else max_per_key
        )
        if self._max_keys < self._concurrency:
            rule = f"must be at least concurrency, {self._concurrency}: only one job of a key runs"
            raise checks.bad("max_keys", self._max_keys, rule)
        self.debug = debug
        self.name = checks.text("name", name)
        self._run: JobRun | None = None

    def schedule(self, context: EventContext, key: K, value: V) -> Incomplete:
        """Pass a value on; return what the handler, or the finaliser, has to return.

        The job begins once that is returned, and there is room. Does not suspend. Raises `ClosedError` if
        no consumer runs with this scheduler, and `TypeError` for a key that cannot be one.
        """
        if self._run is None or self._run.is_closed:
            raise ClosedError(
                f"{self!r} belongs to no consumer that runs; see run_events(jobs=...)"
            )
        return Scheduled(self.name, self._run, Job(identity(key), key, value, context.message))

    # -- the run -----------------------------------------------------------------------------------

    def begin(self, events: Events) -> JobRun:
        """Begin a run. Raises `ConfigError` while another consumer runs with it."""
        if self._run is not None and not self._run.is_closed:
            raise ConfigError(f"{self!r} serves another consumer; make one for each")
        bounds = self._concurrency, self._max_keys, self._max_per_key
        self._run = JobRun(events, self._process, self._finalise, bounds, self._retry)
        return self._run

    def set_bounds(
        self,
        *,
        concurrency: int | None = None,
        max_keys: int | None = None,
        max_per_key: int | None = None,
    ) -> None:
        """Change bounds from now on; what is inside stays. Raises `ConfigError` for a bad one."""
        bounds = (
            self._concurrency if concurrency is None else checks.count("concurrency", concurrency),
            self._max_keys if max_keys is None else checks.count("max_keys", max_keys),
            self._max_per_key if max_per_key is None else checks.count("max_per_key", max_per_key),
        )
        self._concurrency, self._max_keys, self._max_per_key = bounds
        if self._run is not None:
            self._run.limit(*bounds)

    def stats(self) -> JobStats:
        """The levels of this moment."""
        if self._run is None:
            return JobStats(0, 0, 0, 0)
        queue = self._run.queue
        return JobStats(self._run.running, len(queue) + len(queue.ready), queue.keys, queue.crowd)

    def has_key(self, key: Hashable) -> bool:
        """Whether a job of a key is inside."""
        return self._run is not None and self._run.queue.has_key(accepted(key))

    def __repr__(self) -> str:
        return f"JobScheduler({self.name!r}, concurrency={self._concurrency})"


@dataclass(frozen=True, slots=True)
class Scheduled(Pending):
    """A job that a handler has returned."""

    name: str
    run: JobRun
    job: Job

    def submit(self, context: EventContext) -> bool:
        """Begin it; return false if it waits for room."""
        return self.run.submit(self.job, context)

    def withdraw(self) -> None:
        """Stop it."""
        self.run.withdraw(self.job)

    def __str__(self) -> str:
        return f"in {self.name}: {self.run.place(self.job)}"
