"""Spark's data source API: a sink by the name of a format.

1. The driver plans: it makes the writer, which checks everything, and sends it to the executors. A
   task writes its partition as `write_dataframe` does, and answers with the lines of its report.
2. The commit runs in a process of its own, so nothing it does to an object is seen by whoever
   called `save()`. It adds up the lines, logs the report, and fails the write that has too many
   dead letters. To the caller the lines come by an accumulator, if `register` had one to give.
3. A task of a stream asks Spark which query and which micro-batch it belongs to. Where Spark does
   not say, it fails; it does not guess.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from .._core.checks import bad
from .._core.errors import PenstockError
from .driver.trial import try_out
from .options.sinks import prepared
from .options.table import WRITING, read_options
from .task.dead_rows import DEAD_ROWS_MARGIN, DEAD_ROWS_SHOWN
from .task.lines import read_report
from .task.partition import Partition
from .values.travel import Traveller, description, load
from .values.types import check_types

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark import Accumulator
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType

    from .options.sinks import WriteSettings
    from .report import SparkWriteReport
    from .task.lines import Line
else:
    DataSourceStreamArrowWriter = getattr(
        datasource, "DataSourceStreamArrowWriter", object
    )  # PySpark 4.0 has none

logger = logging.getLogger("penstock.spark")

QUERY, EPOCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class CommitMessage(WriterCommitMessage):
    """What a task tells the commit."""

    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What every task of a write has to know."""

    sink: bytes
    """Its description."""
    way: WriteSettings
    arrived: Accumulator[Any] | None = None
    """Takes a report's lines back to the driver, by the name of the write."""

    def run(self, write: str, batches: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Write one partition."""
        stop_at = self.way.max_dead_letters + DEAD_ROWS_MARGIN
        lines = Partition(
            self.sink, self.way.cuts, write, keep=DEAD_ROWS_SHOWN, stop_at=stop_at
        ).run(batches)
        if self.arrived is not None:
            self.arrived.add({write: lines})
        return CommitMessage(tuple(lines))

    def commit(self, what: str, messages: Iterable[CommitMessage | None]) -> None:
        """Log the report. Raises `DeadLettersError` for more dead letters than allowed."""
        report = _merged(messages)
        logger.info("%s: %s", what, report)
        if report.failed > self.way.max_dead_letters:
            report.raise_for_dead_letters()

    def abort(self, what: str, messages: Iterable[CommitMessage | None]) -> None:
        """Log what stays."""
        logger.warning(
            "%s was given up; what its tasks had written stays: %s", what, _merged(messages)
        )


def _merged(messages: Iterable[CommitMessage | None]) -> SparkWriteReport:
    return read_report(
        line for message in messages if message is not None for line in message.lines
    )


class BatchWriter(Traveller, DataSourceArrowWriter):
    """Writes one DataFrame."""

    def __init__(self, name: str, plan: Plan) -> None:
        self._name = name
        self._plan = plan
        self._write = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Write one partition; runs on an executor."""
        return self._plan.run(self._write, iterator)

    def commit(self, messages: list[Any]) -> None:
        """All tasks have written."""
        self._plan.commit(f"write {self._write} to {self._name}", messages)

    def abort(self, messages: list[Any]) -> None:
        """The write has failed."""
        self._plan.abort(f"write {self._write} to {self._name}", messages)


class StreamWriter(Traveller, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, name: str, plan: Plan) -> None:
        self._name = name
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Write one partition of a micro-batch; runs on an executor."""
        return self._plan.run("-".join(_micro_batch()), iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """All tasks of a micro-batch have written."""
        self._plan.commit(f"micro-batch {batchId} to {self._name}", messages)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """A micro-batch has failed."""
        self._plan.abort(f"micro-batch {batchId} to {self._name}", messages)


def _micro_batch() -> tuple[str, str]:
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY)
    epoch = None if context is None else context.getLocalProperty(EPOCH)
    if not query or not epoch:
        message = (
            "Spark does not tell this task its query and micro-batch "
            f"({QUERY}={query!r}, {EPOCH}={epoch!r}); use foreach_batch"
        )
        raise PenstockError(message)
    return query, epoch


class SinkSource(DataSource):
    """A format that writes; base of the one with options and of those that `register` makes."""

    format_name: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return cls.format_name

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A writer of a DataFrame with this schema. Raises `ConfigError`."""
        if overwrite:
            instead = "write_dataframe(df, sink, mode='overwrite', delivery='atomic', ...)"
            raise bad(
                "mode",
                "overwrite",
                f"format({self.name()!r}) only adds rows; write with .mode('append'), or "
                f"replace them with {instead}",
            )
        plan = self.plan(schema)
        if plan.way.check:
            try_out(plan.sink, schema)
        return BatchWriter(self.name(), plan)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """A writer of a stream with this schema. Raises `ConfigError`."""
        if not hasattr(datasource, "DataSourceStreamArrowWriter"):
            raise bad(
                "writeStream.format",
                self.name(),
                "needs PySpark 4.1; use "
                "writeStream.foreachBatch(penstock.spark.foreach_batch(...))",
            )
        if overwrite:
            raise bad(
                "outputMode",
                "complete",
                f"format({self.name()!r}) only adds rows; write with .outputMode('append')",
            )
        return StreamWriter(self.name(), self.plan(schema))

    def plan(self, schema: StructType) -> Plan:
        """What the tasks have to know. Raises `ConfigError`."""
        raise NotImplementedError


class PenstockSource(SinkSource):
    """`format("penstock")`: the sink is what the options say."""

    format_name = "penstock"

    def plan(self, schema: StructType) -> Plan:
        """The sink of the options."""
        recipe, chosen = prepared(self.options, schema.names)
        check_types(recipe.sink(), schema)
        return Plan(sink=description(recipe), way=chosen)


class RegisteredSource(SinkSource):
    """A format that `register` has made: the sink is given, and options say only how it is written
    to.
    """

    given: ClassVar[Plan]

    def plan(self, schema: StructType) -> Plan:
        """The sink that was given."""
        found = read_options(self.options, WRITING, f"format({self.name()!r})")
        check_types(load(self.given.sink), schema)
        return replace(self.given, way=self.given.way.changed(found))
