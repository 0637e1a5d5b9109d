"""What a task sends back: for each of its units a line with the counts, or a line that it was refused, and one for each dead row it keeps.

Lines are text, so that they come back as rows of a DataFrame (`mapInArrow`) and in the commit messages of a data source alike.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from ._task import Task
from ._travel import Traveller
from ._unit_task import UnitTask
from ._units import by_bucket
from ._worker import worker
from .report import DeadLettersError, DeadRow, SparkWriteReport, UnitReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .._core.sink import Sink
    from ._task import Cuts
    from ._units import Units
    from ._worker import Worker

Line = tuple[str, str]
"""Its kind, `unit`, `refused` or `dead`, and its JSON."""
LINES = "kind string, json string"
SHOWN = 20
"""Dead rows that a task sends back for the message of an error."""
HOPELESS = 1000
"""Dead rows in one task, beyond what is allowed, after which it does not go on."""


class Partition(Traveller):
    """What an executor runs: the rows of one partition in, lines of report out. Without `units` the partition is the unit."""

    def __init__(self, description: bytes, cuts: Cuts, job: str, *, keep: int, stop_at: float, units: Units | None = None) -> None:
        self._description = description
        self._cuts = cuts
        self._job = job
        self._keep = keep
        self._stop_at = stop_at
        self._units = units

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`, with the columns of `LINES`."""
        lines = self.run(batches)
        if lines:
            kinds, texts = zip(*lines, strict=True)
            yield pa.record_batch({"kind": kinds, "json": texts})

    def run(self, batches: Iterable[pa.RecordBatch]) -> list[Line]:
        """Write every row; blocks until all writes have ended."""
        context = TaskContext.get()
        partition, attempt = (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
        parts = iter([(partition, batches)]) if self._units is None else by_bucket(batches)
        lines: list[Line] = []
        here = worker()
        with here.using(self._description) as sink:
            for part, rows in parts:
                lines += self._unit(here, sink, part, rows, attempt)
        return lines

    def _unit(self, here: Worker, sink: Sink[Any], part: int, rows: Iterable[pa.RecordBatch], attempt: int) -> list[Line]:
        letters = Letters(part, self._keep, self._stop_at)
        try:
            report = self._write(here, sink, part, rows, letters)
            line = "unit", _json(asdict(replace(report, attempt=attempt)))
        except _TooManyDead:
            for _ in rows:  # the next unit follows
                pass
            line = "refused", _json(part)
        return [line, *(("dead", letter) for letter in letters.kept)]

    def _write(self, here: Worker, sink: Sink[Any], part: int, rows: Iterable[pa.RecordBatch], letters: Letters) -> UnitReport:
        units = self._units
        if units is None or not units.in_transactions:
            name = f"{self._job}-{part}" if units is None else units.unit(part).name
            return Task(here, sink, self._cuts, unit=name, partition=part).run(rows, letters.add)
        letters.error = _TooManyDead
        return UnitTask(here, sink, self._cuts, units.unit(part), buffer_bytes=units.buffer_bytes, letters=letters).run(rows)


class _TooManyDead(DeadLettersError):
    """A unit was rolled back, since too many of its rows failed for good."""


class Letters:
    """The dead rows of one unit, as many as go back to the driver."""

    def __init__(self, partition: int, keep: int, stop_at: float) -> None:
        self.kept: list[str] = []
        self._partition = partition
        self._keep = keep
        self._stop_at = stop_at
        self._count = 0
        self.error: type[DeadLettersError] = DeadLettersError

    def clear(self) -> None:
        """Begin again: what these rows were written in has been rolled back."""
        self.kept.clear()
        self._count = 0

    def add(self, row: dict[str, Any], error: BaseException) -> None:
        """Keep one; raise `DeadLettersError` when there are too many to go on."""
        self._count += 1
        letter = _json({"row": row, "error_type": type(error).__name__, "message": str(error), "partition": self._partition})
        if len(self.kept) < self._keep:
            self.kept.append(letter)
        if self._count > self._stop_at:
            message = f"{self._count} rows of partition {self._partition} failed for good, so the task gives up; the last: {letter}"
            raise self.error(message)


def _json(value: object) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def read_report(lines: Iterable[Line]) -> SparkWriteReport:
    """The report that the lines of all tasks make. Rows of `LINES` are lines as well. Raises `DeadLettersError` for units that were refused."""
    units: list[UnitReport] = []
    dead: list[DeadRow] = []
    refused: set[int] = set()
    for kind, text in lines:
        found = json.loads(text)
        if kind == "unit":
            units.append(UnitReport(**found))
        elif kind == "dead":
            dead.append(DeadRow(**found))
        else:
            refused.add(found)
    if refused:
        raise _refusal(refused, dead, committed=len(units))
    return SparkWriteReport(tuple(units), tuple(dead))


def _refusal(refused: set[int], dead: Iterable[DeadRow], *, committed: int) -> DeadLettersError:
    first = next(row for row in dead if row.partition in refused)
    return DeadLettersError(
        f"more rows than max_dead_letters failed for good in each of {len(refused)} buckets, which were rolled back ({committed} others are "
        f"committed); the first: {first.error_type}: {first.message}"
    )
