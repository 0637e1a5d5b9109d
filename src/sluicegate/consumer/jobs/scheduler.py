"""Jobs of events, in order per key, independent of the order of the partition.

1. A handler schedules a value. The processor runs outside the event's turn, one job per key at a
   time, and many keys concurrently. The finaliser then runs in a turn of the event, with the
   processed value and the error, if any.
2. A scheduler's keys are independent of partitions: equal keys of two partitions are the same key.
   This also holds across claims: a job that still runs for a lost partition keeps its key until it
   ends.
3. A scheduler serves one consumer at a time. It only contains settings; `JobRun` contains the state
   of a run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

from ..._core import checks
from ..._core.errors import ClosedError, ConfigError
from ..._core.order.keys import accepted, identity
from ..._core.retry_policy import checked_policy
from ..handling.handlers import as_function
from .job_run import Job, JobRun

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ..._core.retry_policy import RetryPolicy
    from ..handling.results import Incomplete
    from .context import EventContext
    from .events import Events

K = TypeVar("K")
V = TypeVar("V")

KindOfWork = Literal["compute", "fast_network", "slow_network", "wide_network"]


class Preset(NamedTuple):
    """Limits for a kind of work."""

    per_core: int
    """Number of concurrent jobs per core."""
    max_keys: int
    max_per_key: int


PRESETS: dict[KindOfWork, Preset] = {
    "compute": Preset(1, 10_000, 1_000),
    "fast_network": Preset(4, 10_000, 100),
    "slow_network": Preset(16, 10_000, 100),
    "wide_network": Preset(32, 10_000, 1_000),
}
"""The limits for each `kind`: few concurrent jobs for computations, many for jobs that wait."""


@dataclass(frozen=True, slots=True)
class JobStats:
    """The levels of a scheduler."""

    running: int
    """Jobs that are being processed."""
    waiting: int
    """Jobs that wait for a worker or for an earlier job of their key."""
    key_count: int
    """Keys with a job."""
    without_room: int
    """Jobs that wait for room; their partitions handle no later event meanwhile."""


class JobScheduler(Generic[K, V]):
    """A scheduler of jobs: processes values of events in order per key, then completes the events.

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
        process: a function of the key and the value, async, or plain to run in a thread. It has no
            access to the event, and stores its results in the value.
        finalise: a function of the context, the key, the value, and the error of `process` or
            `None`. It runs in the event's turn, and returns the same results as a handler: `None`
            if the event is complete, or the result of another scheduler's `schedule` for a further
            stage. Default: the event is complete, even if the job failed.
        kind: sets the three limits for a kind of work: `"compute"`, `"fast_network"`,
            `"slow_network"` (the default) or `"wide_network"`.
        concurrency: the maximum number of jobs that are processed concurrently.
        max_keys: the maximum number of keys with pending jobs; an event of another key waits.
        max_per_key: the maximum number of jobs of a key that wait behind the running one.
        retry: the attempts and waits of a failed job. Meanwhile the job keeps its key and counts in
            `concurrency`; the finaliser gets the error of the last attempt. Default: one attempt.
        debug: whether to refuse an event that is completed without a job while the scheduler has a
            job of its record's key, since the event would overtake earlier events of the key.
        name: the name in messages and in `explain()`.

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
        self.debug = checks.flag("debug", debug)
        self.name = checks.text("name", name)
        self._run: JobRun | None = None

    def schedule(self, context: EventContext, key: K, value: V) -> Incomplete:
        """Schedule a value; return the result that the handler or the finaliser must return.

        The job begins when that result has been returned and there is room. Does not suspend.
        Raises `ClosedError` if no running consumer uses this scheduler, `TypeError` for an invalid
        key, and `ConfigError` for a second job in one turn. A turn that does not return the result
        fails with a `ConfigError`.
        """
        run = self._run
        if run is None or run.is_closed:
            raise ClosedError(
                f"{self!r} is not used by a running consumer; see run_events(jobs=...)"
            )
        job = Job(run, identity(key), key, value, context)
        context.turn.schedule(job)
        return job

    # -- the run -----------------------------------------------------------------------------------

    def begin(self, events: Events) -> JobRun:
        """Begin a run. Raises `ConfigError` while another running consumer uses it."""
        if self._run is not None and not self._run.is_closed:
            raise ConfigError(f"{self!r} is already used by another consumer; create one for each")
        bounds = self._concurrency, self._max_keys, self._max_per_key
        self._run = JobRun(
            events, self._process, self._finalise, bounds, self._retry, name=self.name
        )
        return self._run

    def set_bounds(
        self,
        *,
        concurrency: int | None = None,
        max_keys: int | None = None,
        max_per_key: int | None = None,
    ) -> None:
        """Change limits from now on; pending jobs stay. Raises `ConfigError` for a bad value."""
        bounds = (
            self._concurrency if concurrency is None else checks.count("concurrency", concurrency),
            self._max_keys if max_keys is None else checks.count("max_keys", max_keys),
            self._max_per_key if max_per_key is None else checks.count("max_per_key", max_per_key),
        )
        self._concurrency, self._max_keys, self._max_per_key = bounds
        if self._run is not None:
            self._run.limit(*bounds)

    def stats(self) -> JobStats:
        """Return the current levels."""
        if self._run is None:
            return JobStats(0, 0, 0, 0)
        queue = self._run.queue
        return JobStats(
            self._run.running, len(queue) + len(queue.ready), queue.key_count, queue.crowd_count
        )

    def has_key(self, key: Hashable) -> bool:
        """Return whether a job of this key is pending."""
        return self._run is not None and self._run.queue.has_key(accepted(key))

    def __repr__(self) -> str:
        return f"JobScheduler({self.name!r}, concurrency={self._concurrency})"
