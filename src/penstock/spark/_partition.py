"""What a task sends back: a line with its counts, and a line for each dead row that it keeps.

Lines are text, so that they come back as rows of a DataFrame (`mapInArrow`) and in the commit messages of a data source alike.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from ._task import Task
from ._travel import Traveller
from ._worker import worker
from .report import DeadLettersError, DeadRow, SparkWriteReport, UnitReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ._task import Cuts

Line = tuple[str, str]
"""Its kind, `unit` or `dead`, and its JSON."""
LINES = "kind string, json string"


class Partition(Traveller):
    """What an executor runs: the rows of one partition in, one line of report out, and a line for each dead row."""

    def __init__(self, description: bytes, cuts: Cuts, job: str, *, keep: int, stop_at: float) -> None:
        self._description = description
        self._cuts = cuts
        self._job = job
        self._keep = keep
        self._stop_at = stop_at

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`, with the columns of `LINES`."""
        kinds, texts = zip(*self.run(batches), strict=True)
        yield pa.record_batch({"kind": kinds, "json": texts})

    def run(self, batches: Iterable[pa.RecordBatch]) -> list[Line]:
        """Write every row; blocks until all writes have ended."""
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        here = worker()
        letters = Letters(partition, self._keep, self._stop_at)
        with here.using(self._description) as sink:
            report = Task(here, sink, self._cuts, unit=f"{self._job}-{partition}", partition=partition).run(batches, letters.add)
        return [("unit", _json(asdict(report))), *(("dead", letter) for letter in letters.kept)]


class Letters:
    """The dead rows of one task, as many as go back to the driver."""

    def __init__(self, partition: int, keep: int, stop_at: float) -> None:
        self.kept: list[str] = []
        self._partition = partition
        self._keep = keep
        self._stop_at = stop_at
        self._count = 0

    def add(self, row: dict[str, Any], error: BaseException) -> None:
        """Keep one; raise `DeadLettersError` when there are too many to go on."""
        self._count += 1
        letter = _json({"row": row, "error_type": type(error).__name__, "message": str(error), "partition": self._partition})
        if len(self.kept) < self._keep:
            self.kept.append(letter)
        if self._count > self._stop_at:
            message = f"{self._count} rows of partition {self._partition} failed for good, so the task gives up; the last: {letter}"
            raise DeadLettersError(message)


def _json(value: object) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def read_report(lines: Iterable[Line]) -> SparkWriteReport:
    """The report that the lines of all tasks make. Rows of `LINES` are lines as well."""
    units: list[UnitReport] = []
    dead: list[DeadRow] = []
    for kind, text in lines:
        found = json.loads(text)
        if kind == "unit":
            units.append(UnitReport(**found))
        else:
            dead.append(DeadRow(**found))
    return SparkWriteReport(tuple(units), tuple(dead))
