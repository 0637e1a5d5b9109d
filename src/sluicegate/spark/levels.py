"""The delivery level of a write, on the driver: checked first, then run to its end.

`at_least_once` has no requirements, and may write rows again when a task runs again.

`bucket` commits each key bucket once, in its own transaction.

1. A bucket without rows is not a unit: nothing is written, and nothing is stored about it.
2. The id of a batch is the name `application:version:bucket` and the number of its chunk. Two
   attempts cut the same rows into the same chunks, so they send the same write keys: idempotency
   keys over HTTP, transactional ids for Kafka.
3. A bucket and its row in the ledger commit together, so a promoted standby has both or neither.
   Each unit returns the *history* on which it was committed or found committed. If the units of one
   job return two histories, units of the earlier one may be lost. The job then runs again: existing
   units are skipped, and the others are written.

`atomic` commits everything together: begin, run the tasks, publish their stages.

1. If the ledger has the epoch as published, nothing is written. The rows are counted and hashed
   nevertheless: other rows under its name are an error, not a skipped write.
2. Only the stages returned with the tasks' results are published: one of each task. Stages of other
   attempts are dropped.
3. Interrupted publishing is retried, since the epoch's row shows whether it was applied.
4. If the destination has lost staged rows, publishing again does not help. The job then runs again
   from `begin`, a few times at most.
5. The driver also opens the destination, from its description, on its own loop. So it needs access
   to it.
6. The progress of an incremental run (`moving`) is stored in the publishing transaction.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from .._core import checks
from .._core.errors import StagesLost, UnknownOutcomeError
from .._core.opening import opened
from .._core.positions import destination_of
from .._core.retry_policy import run_with_retries
from .._core.sink import classifier_of
from .._core.staging import Epoch, HasStages, Progress, check_staging, progress_of, stages_of
from .._core.transaction import Counts, Unit, check_same_rows, check_transactional
from .description import description, load
from .report import SparkWriteReport
from .task.transaction import report_skipped, transaction_retries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping

    from .._core.sink import Sink
    from .._core.staging import Stage, Stages
    from .content import Content

DeliveryLevel = Literal["at_least_once", "bucket", "atomic"]
WriteMode = Literal["append", "overwrite"]
logger = logging.getLogger("sluicegate.spark")
RUNS = 3
"""Maximum number of runs of a job."""
R = TypeVar("R")
PATIENCE = 300.0
"""Seconds for which the driver waits for an unavailable destination."""
_MOVED: ContextVar[Progress | None] = ContextVar("_MOVED", default=None)


@dataclass(frozen=True, slots=True)
class Level:
    """The delivery level of one write, and the name under which its commits are stored."""

    delivery: DeliveryLevel
    mode: WriteMode
    key: tuple[str, ...]
    application: str | None
    version: int | None
    partition: tuple[tuple[str, str | None], ...] = ()
    """The columns and values of the rows to replace; empty: all rows."""

    @classmethod
    def of(
        cls,
        sink: Sink[Any],
        *,
        delivery: DeliveryLevel,
        mode: WriteMode,
        partition: Mapping[str, object] | None,
        app_id: str | None,
        version: int | None,
        key: tuple[str, ...],
    ) -> Level:
        """Check the level. Raises `ConfigError` if the sink or the arguments cannot provide it."""
        checks.choice("delivery", delivery, get_args(DeliveryLevel))
        if checks.choice("mode", mode, get_args(WriteMode)) == "overwrite" and delivery != "atomic":
            raise checks.bad(
                "mode",
                mode,
                f'needs delivery="atomic": at {delivery!r} readers would see a partly filled table',
            )
        if partition is not None and (mode != "overwrite" or not partition):
            rule = 'needs mode="overwrite", and the values of at least one column'
            raise checks.bad("partition", partition, rule)
        parts = tuple((name, _as_text(name, value)) for name, value in (partition or {}).items())
        _check_name(delivery, app_id, version)
        if not key and delivery == "bucket":
            raise checks.bad(
                "delivery",
                delivery,
                "needs key: each bucket of keys commits once, independent of Spark's partitions",
            )
        if not key and app_id is not None and delivery == "at_least_once":
            raise checks.bad(
                "app_id",
                app_id,
                "needs key: a partition may have other rows when the write is repeated, so it has no "
                "name",
            )
        if delivery == "bucket":
            check_transactional(sink)
        elif delivery == "atomic":
            check_staging(sink)
        return cls(delivery, mode, key, app_id, version, parts)

    def units(
        self, buckets: int, *, types: str, content_of: str, buffer_bytes: int
    ) -> Units | None:
        """The units of the write, if a replay has units of the same names."""
        if self.application is None or self.version is None or self.delivery == "atomic":
            return None
        return Units(
            application=self.application,
            version=self.version,
            buckets=buckets,
            key=self.key,
            in_transactions=self.delivery == "bucket",
            types=types,
            content_of=content_of,
            buffer_bytes=buffer_bytes,
        )

    def epoch(self) -> Epoch | None:
        """The epoch to publish at `atomic`; `None` at other levels."""
        if self.application is None or self.version is None or self.delivery != "atomic":
            return None
        rule = f"atomic {self.mode}"
        if self.partition:
            rule += f" of {', '.join(f'{name}={value!r}' for name, value in self.partition)}"
        return Epoch(
            unit=Unit(application=self.application, version=self.version, rule=rule),
            overwrite=self.mode == "overwrite",
            partition=self.partition,
            ordered=bool(self.key),
            progress=_MOVED.get(),
        )


def _as_text(name: str, value: object) -> str | None:
    """The value of a partition as text, which the server reads by the type of the column."""
    if value is not None and not isinstance(value, (str, int, float, Decimal, date)):
        rule = "must be text, a number, a date, a datetime, a bool or None"
        raise checks.bad(f"partition[{name!r}]", value, rule)
    return None if value is None else str(value)


def _check_name(delivery: DeliveryLevel, app_id: str | None, version: int | None) -> None:
    for name, value, other in (("app_id", app_id, version), ("version", version, app_id)):
        if value is None and (other is not None or delivery != "at_least_once"):
            rule = (
                "must be given together with the other one of app_id and version"
                if other is not None
                else f"is needed for delivery={delivery!r}"
            )
            raise checks.bad(
                name,
                value,
                f"{rule}: together they name the write, and a repeated write has the same name",
            )
    if app_id is not None and version is not None:
        Unit(application=app_id, version=version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The units of one write."""

    application: str
    version: int
    buckets: int
    key: tuple[str, ...]
    in_transactions: bool
    """Whether each unit is a transaction; otherwise units only have names."""
    types: str = ""
    """The key's columns with their types, which determine the hash."""
    content_of: str = ""
    """The columns that are hashed for each row; empty if none."""
    buffer_bytes: int = 0
    """Bytes of a unit kept for a retry inside the task."""

    def unit(self, bucket: int) -> Unit:
        """Return the unit of one bucket."""
        rule = f"hash({', '.join(self.key)})"
        return Unit(
            application=self.application,
            version=self.version,
            part=bucket,
            parts=self.buckets,
            rule=rule,
            types=self.types,
        )


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of one run of a job."""

    report: SparkWriteReport
    stages: list[Stage]
    content: int
    """The sum of the hashes of the staged rows."""
    histories: frozenset[str] = frozenset()
    """The destination's histories on which the units were committed."""


def write_units(run: Callable[[], Ran]) -> SparkWriteReport:
    """Run the job until one history of the destination has all its units. Blocks.

    Raises the errors of `run`, and `UnknownOutcomeError` if a standby takes over in each of three
    runs.
    """
    runs = 1
    while len((ran := run()).histories) > 1:
        fault = (
            f"another server took over while units were committed ({', '.join(sorted(ran.histories))}"
            "), and may lack those of the earlier server"
        )
        if runs == RUNS:
            raise UnknownOutcomeError(fault)
        logger.warning("the job runs again: %s", fault)
        runs += 1
    return ran.report


def write_atomically(
    sink: Sink[Any], epoch: Epoch, content: Content, run: Callable[[], Ran]
) -> SparkWriteReport:
    """Publish everything that `run` has staged, or nothing. Blocks.

    Raises the errors of `run` and of the destination, and `NonDeterministicReplay` if the epoch was
    published with other rows.
    """
    destination = _Destination(description(check_staging(sink)))
    for _ in range(RUNS - 1):
        try:
            return _write_once(destination, epoch, content, run)
        except StagesLost as lost:
            logger.warning(
                "%s: nothing is published, and the job runs again from the beginning: %s",
                epoch.unit.name,
                lost,
            )
    return _write_once(destination, epoch, content, run)


def _write_once(
    destination: _Destination, epoch: Epoch, content: Content, run: Callable[[], Ran]
) -> SparkWriteReport:
    begun = destination.call(lambda there: there.begin(epoch))
    before = begun.before
    if before is not None:
        check_same_rows(epoch.unit, before.counts, content.count())
        return SparkWriteReport((report_skipped(0, before, rows=before.counts.rows),))
    try:
        ran = run()
        report = ran.report
        counts = Counts(
            rows=report.rows,
            delivered=sum(unit.delivered for unit in report.units),
            duplicate=sum(unit.duplicate for unit in report.units),
            failed=report.failed,
            content=ran.content if content.columns else None,
            content_of=content.text,
        )
        before = destination.call(
            lambda there: there.publish(epoch, ran.stages, counts, begun.mark)
        )
    except BaseException:
        with suppress(Exception):  # the next write collects the rest
            destination.call(lambda there: there.discard(epoch), is_tried_again=False)
        raise
    if before is None:
        return report
    check_same_rows(epoch.unit, before.counts, counts)
    return SparkWriteReport((report_skipped(0, before, rows=report.rows),))


def read_progress(sink: object, application: str) -> Progress:
    """Return the progress of an application. Blocks.

    Raises the errors of the destination, and `ConfigError` for a progress of an earlier table.
    """
    destination = _Destination(description(destination_of(sink)))
    return destination.call_with(lambda there: progress_of(there).read(application))


@contextmanager
def moving(sink: object, progress: Progress, *, is_atomic: bool) -> Generator[None]:
    """Store the progress with the write inside: in its transaction if it is atomic, else after it.

    Raises the errors of the destination.
    """
    token = _MOVED.set(progress if is_atomic else None)
    try:
        yield
    finally:
        _MOVED.reset(token)
    if not is_atomic:
        destination = _Destination(description(destination_of(sink)))
        destination.call_with(lambda there: progress_of(there).store(progress))


class _Destination:
    """A destination on the driver, opened for each call on a separate thread.

    The caller may have a running loop.
    """

    def __init__(self, described: bytes) -> None:
        self._described = described

    def call(self, work: Callable[[Stages], Awaitable[R]], *, is_tried_again: bool = True) -> R:
        """Call `work` with the stages of the open destination; blocks."""
        patience = PATIENCE if is_tried_again else 0.0
        return self.call_with(lambda there: work(stages_of(there)), patience)

    def call_with(self, work: Callable[[HasStages], Awaitable[R]], patience: float = PATIENCE) -> R:
        """Call `work` with the open destination; blocks."""
        with ThreadPoolExecutor(1, thread_name_prefix="sluicegate driver") as thread:
            return thread.submit(asyncio.run, self._tries(work, patience)).result()

    async def _tries(self, work: Callable[[HasStages], Awaitable[R]], patience: float) -> R:
        destination = cast("HasStages", load(self._described))

        async def opened_for_it() -> R:
            async with opened(destination):
                return await work(destination)

        return await run_with_retries(
            opened_for_it, transaction_retries(classifier_of(destination), patience)
        )
