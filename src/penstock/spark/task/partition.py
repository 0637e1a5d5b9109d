"""What a task sends back: for each of its units a line with the counts, or a line that it was
refused, and one for each dead row it keeps.

Lines are text, so that they come back as rows of a DataFrame (`mapInArrow`) and in the commit
messages of a data source alike.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from ..._core.classify import classified
from ..._core.errors import ErrorClass
from ..._core.retry_policy import run_with_retries
from ..._core.staging import Epoch, Stage, staged
from ..levels.units import Summed, Units, by_bucket, wrapped
from ..report import DeadLettersError, DeadRow, SparkWriteReport, UnitReport
from ..values.travel import Traveller
from ..values.zone import in_zone
from .retries import transaction_retries
from .task import Task
from .unit_task import UnitTask, check_refused
from .worker import worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..._core.sink import Sink
    from .task import Cuts
    from .worker import Worker

Line = tuple[str, str]
"""Its kind, `unit`, `history`, `stage`, `content`, `refused` or `dead`, and its JSON."""
LINES = "kind string, json string"
SHOWN = 20
"""Dead rows that a task sends back for the message of an error."""
HOPELESS = 1000
"""Dead rows in one task, beyond what is allowed, after which it does not go on."""


class Partition(Traveller):
    """What an executor runs: the rows of one partition in, lines of report out. Without `units` the
    partition is the unit.

    `done` is an accumulator that is told of each unit's rows and dead letters; `zone` is the
    session's time zone, where it is known; `names` are those of the columns, which may travel under
    others.
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
        done: Any = None,
        zone: str | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self._description = description
        self._cuts = cuts
        self._job = job
        self._keep = keep
        self._stop_at = stop_at
        self._units = units
        self._done = done
        self._zone = zone
        self._names = names

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`, with the columns of `LINES`."""
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
        parts = (
            by_bucket(batches) if isinstance(self._units, Units) else iter([(partition, batches)])
        )
        lines: list[Line] = []
        here = worker()
        with here.using(self._description) as sink:
            for number, rows in parts:
                part = _Part(
                    here, sink, number, iter(rows), Letters(number, self._keep, self._stop_at)
                )
                lines += self._lines(part, attempt)
        return lines

    def _lines(self, part: _Part, attempt: int) -> Iterator[Line]:
        try:
            report, further = self._written(part)
            if self._done is not None:
                self._done.add((report.rows, report.dead_lettered + report.failed))
            yield "unit", _json(asdict(replace(report, attempt=attempt)))
            yield from further
        except _TooManyDead:
            for _ in part.rows:  # the next unit follows
                pass
            yield "refused", _json(part.number)
        yield from (("dead", letter) for letter in part.letters.kept)

    def _written(self, part: _Part) -> tuple[UnitReport, tuple[Line, ...]]:
        units = self._units
        if isinstance(units, Epoch):
            return self._staged(part, units)
        if isinstance(units, Units) and units.in_transactions:
            part.letters.error = _TooManyDead
            unit = units.unit(part.number)
            kept = units.buffer_bytes
            task = UnitTask(
                part.here,
                part.sink,
                self._cuts,
                unit,
                buffer_bytes=kept,
                letters=part.letters,
                content_of=units.content_of,
            )
            return task.run(part.rows), (("history", _json(task.history)),)
        name = (
            units.unit(part.number).name
            if isinstance(units, Units)
            else f"{self._job}-{part.number}"
        )
        return Task(part.here, part.sink, self._cuts, unit=name, partition=part.number).run(
            part.rows, part.add
        ), ()

    def _staged(self, part: _Part, epoch: Epoch) -> tuple[UnitReport, tuple[Line, ...]]:
        """Write into a stage of this attempt, made for the first row, and take its inventory."""
        rows = Summed(part.rows)
        first = next((batch for batch in rows if batch.num_rows), None)
        if first is None:
            return UnitReport(partition=part.number), ()
        with part.here.entered(staged(part.sink, epoch)) as stage:
            task = Task(
                part.here,
                stage.sink,
                self._cuts,
                unit=f"{self._job}-{part.number}",
                partition=part.number,
            )
            report = task.run(chain((first,), rows), part.add_refused)
            retries = transaction_retries(getattr(part.sink, "classify", None), self._cuts.patience)
            found = part.here.start(run_with_retries(stage.inventory, retries)).result()
        return report, (("stage", _json(asdict(found))), ("content", _json(rows.total or 0)))


@dataclass(frozen=True, slots=True)
class _Part:
    """One unit of this task, to be written."""

    here: Worker
    sink: Sink[Any]
    number: int
    rows: Iterator[pa.RecordBatch]
    letters: Letters

    def add(self, row: dict[str, Any], error: BaseException) -> None:
        """A dead row, unless the destination refuses every write: that ends the attempt, and gives
        no row up.
        """
        if classified(error, getattr(self.sink, "classify", None)) is ErrorClass.REFUSED:
            raise error
        self.letters.add(row, error)

    def add_refused(self, row: dict[str, Any], error: BaseException) -> None:
        """A dead row, if it was refused; another error ends the attempt, since another one may do
        better.
        """
        check_refused(self.sink, (error,))
        self.letters.add(row, error)


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
        letter = _json(
            {
                "row": row,
                "error_type": type(error).__name__,
                "message": str(error),
                "partition": self._partition,
            }
        )
        if len(self.kept) < self._keep:
            self.kept.append(letter)
        if self._count > self._stop_at:
            message = (
                f"{self._count} rows of partition {self._partition} failed for good, so "
                f"the task gives up; the last: {letter}"
            )
            raise self.error(message)


def _json(value: object) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def read_report(lines: Iterable[Line]) -> SparkWriteReport:
    """The report that the lines of all tasks make. Rows of `LINES` are lines as well. Raises
    `DeadLettersError` for units that were refused.
    """
    units: list[UnitReport] = []
    dead: list[DeadRow] = []
    refused: set[int] = set()
    for kind, text in lines:
        found = json.loads(text)
        if kind == "unit":
            found["marks"] = tuple(map(tuple, found["marks"]))
            units.append(UnitReport(**found))
        elif kind == "dead":
            dead.append(DeadRow(**found))
        elif kind == "refused":
            refused.add(found)
    if refused:
        raise _refusal(refused, dead, committed=len(units))
    return SparkWriteReport(tuple(units), tuple(dead))


def read_stages(lines: Iterable[Line]) -> list[Stage]:
    """What is to be published of the lines' tasks."""
    return [Stage(**json.loads(text)) for kind, text in lines if kind == "stage"]


def read_content(lines: Iterable[Line]) -> int:
    """The sum of the hashes of all rows that the lines' tasks have staged."""
    return wrapped(sum(json.loads(text) for kind, text in lines if kind == "content"))


def read_histories(lines: Iterable[Line]) -> frozenset[str]:
    """The histories of the destination that the lines' units were committed on; more than one: a
    standby took over in between.
    """
    return frozenset(json.loads(text) for kind, text in lines if kind == "history") - {""}


def _refusal(refused: set[int], dead: Iterable[DeadRow], *, committed: int) -> DeadLettersError:
    first = next(row for row in dead if row.partition in refused)
    return DeadLettersError(
        f"more rows than max_dead_letters failed for good in each of {len(refused)} buckets, "
        f"which were rolled back ({committed} others are "
        f"committed); the first: {first.error_type}: {first.message}"
    )
