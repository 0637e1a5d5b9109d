"""The executor's work for one partition: record batches in, lines of the report out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from ..._core.classify import classified
from ..._core.errors import ErrorClass
from ..._core.retry_policy import run_with_retries
from ..._core.sink import classifier_of
from ..._core.staging import Epoch, staged
from ..content import CONTENT, SummedBatches
from ..description import Traveller
from ..keys import SUPERSEDED, by_bucket
from ..levels import Units
from ..report import DeadLettersError, UnitReport
from ..values import in_zone
from .results import DeadRowBuffer, TooManyDead, to_json
from .task import Task
from .transaction import UnitTask, check_refused, transaction_retries
from .worker import worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..._core.sink import Sink
    from .results import Line
    from .task import Cuts
    from .worker import Worker


class Partition(Traveller):
    """The write of one partition. Without `units` the partition is the unit.

    `zone` is the session's time zone, if known; `names` are the names of the columns, which may be
    sent under others.
    """

    def __init__(
        self,
        description: bytes,
        cuts: Cuts,
        job: str,
        *,
        keep: int,
        stop_at: float,
        units: Units | Epoch | None = None,
        zone: str | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self._description = description
        self._cuts = cuts
        self._job = job
        self._keep = keep
        self._stop_at = stop_at
        self._units = units
        self._zone = zone
        self._names = names

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run for `mapInArrow`, with the columns of `LINES`."""
        lines = self.run(batches)
        if lines:
            kinds, texts = zip(*lines, strict=True)
            yield pa.record_batch({"kind": kinds, "json": texts})

    def run(self, batches: Iterable[pa.RecordBatch]) -> list[Line]:
        """Write every row; blocks until all writes have ended."""
        context = TaskContext.get()
        partition, attempt = (
            (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
        )
        named = (
            batches
            if self._names is None
            else (batch.rename_columns(self._names) for batch in batches)
        )
        batches = in_zone(named, self._zone)
        units = (
            by_bucket(batches) if isinstance(self._units, Units) else iter([(partition, batches)])
        )
        lines: list[Line] = []
        here = worker()
        with here.using(self._description) as sink:
            for number, rows in units:
                counted = SummedBatches(rows, SUPERSEDED)
                unit = _UnitInput(here, sink, number, counted, self._dead_rows(number))
                lines += self._lines(unit, attempt)
        return lines

    def _dead_rows(self, number: int) -> DeadRowBuffer:
        is_rolled_back = isinstance(self._units, Units) and self._units.in_transactions
        error = TooManyDead if is_rolled_back else DeadLettersError
        return DeadRowBuffer(number, self._keep, self._stop_at, error)

    def _lines(self, unit: _UnitInput, attempt: int) -> Iterator[Line]:
        try:
            report, further = self._write(unit)
            counted = replace(report, attempt=attempt, superseded=unit.rows.total or 0)
            yield "unit", to_json(asdict(counted))
            yield from further
        except TooManyDead:
            for _ in unit.rows:  # the next unit follows
                pass
            yield "refused", to_json(unit.number)
        yield from (("dead", row) for row in unit.dead_rows.kept)

    def _write(self, unit: _UnitInput) -> tuple[UnitReport, tuple[Line, ...]]:
        units = self._units
        if isinstance(units, Epoch):
            return self._stage(unit, units)
        if isinstance(units, Units) and units.in_transactions:
            task = UnitTask(
                unit.here,
                unit.sink,
                self._cuts,
                units.unit(unit.number),
                buffer_bytes=units.buffer_bytes,
                dead_rows=unit.dead_rows,
                content_of=units.content_of,
            )
            return task.run(unit.rows), (("history", to_json(task.history)),)
        name = (
            units.unit(unit.number).name
            if isinstance(units, Units)
            else f"{self._job}-{unit.number}{_attempt()}"
        )
        plain = Task(unit.here, unit.sink, self._cuts, unit=name, partition=unit.number)
        return plain.run(unit.rows, unit.add), ()

    def _stage(self, unit: _UnitInput, epoch: Epoch) -> tuple[UnitReport, tuple[Line, ...]]:
        """Write into a stage of this attempt, made at the first row, and take its inventory."""
        rows = SummedBatches(unit.rows, CONTENT)
        first = next((batch for batch in rows if batch.num_rows), None)
        if first is None:
            return UnitReport(partition=unit.number), ()
        with unit.here.enter(staged(unit.sink, epoch)) as stage:
            name = f"{self._job}-{unit.number}"
            task = Task(unit.here, stage.sink, self._cuts, unit=name, partition=unit.number)
            report = task.run(chain((first,), rows), unit.add_refused)
            retries = transaction_retries(classifier_of(unit.sink), self._cuts.patience)
            found = unit.here.start(run_with_retries(stage.inventory, retries)).result()
        return report, (("stage", to_json(asdict(found))), ("content", to_json(rows.total or 0)))


def _attempt() -> str:
    """The number of this attempt, unique among all tasks; empty outside of Spark.

    Without `app_id`, another attempt may have other rows. With tokens made from the same name, the
    destination would mistake them for rows that it has.
    """
    context = TaskContext.get()
    return "" if context is None else f".{context.taskAttemptId()}"


@dataclass(frozen=True, slots=True)
class _UnitInput:
    """One unit to be written by this task."""

    here: Worker
    sink: Sink[Any]
    number: int
    rows: SummedBatches
    dead_rows: DeadRowBuffer

    def add(self, row: dict[str, Any], error: BaseException) -> None:
        """Count a dead row. If the destination refuses every write, raise its error, which ends the
        attempt.
        """
        if classified(error, classifier_of(self.sink)) is ErrorClass.REFUSED:
            raise error
        self.dead_rows.add(row, error)

    def add_refused(self, row: dict[str, Any], error: BaseException) -> None:
        """Count a row that was refused for good. Raise any other error, since a new attempt may
        succeed.
        """
        check_refused(self.sink, (error,))
        self.dead_rows.add(row, error)
