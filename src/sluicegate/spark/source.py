"""Spark's data source API: a sink under the name of a format.

1. The driver plans: it builds the writer, which checks everything, and sends it to the executors. A
   task writes its partition like `write_dataframe`, and returns the lines of its report.
2. The commit runs in a separate process, so the caller of `save()` does not see its changes to
   objects. It adds up the lines, logs the report, and fails a write with too many dead letters. The
   caller gets the lines through an accumulator, if `register` made one.
3. A task of a stream gets its query and micro-batch from Spark. If Spark does not provide them, the
   task fails.
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
from .._core.errors import SluicegateError
from .description import Traveller, description, load, try_out
from .destination import check_changes
from .options import WriteSettings, prepare
from .task.partition import Partition
from .task.results import DEAD_ROWS_MARGIN, DEAD_ROWS_SHOWN, read_report
from .values import check_types

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark import Accumulator
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType

    from .report import SparkWriteReport
    from .task.results import Line
else:
    DataSourceStreamArrowWriter = getattr(
        datasource, "DataSourceStreamArrowWriter", object
    )  # PySpark 4.0 has none

logger = logging.getLogger("sluicegate.spark")
QUERY, EPOCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class CommitMessage(WriterCommitMessage):
    """The lines of a task's report, for the commit."""

    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a write, sent to every task."""

    sink: bytes
    """The description of the sink."""
    settings: WriteSettings
    arrived: Accumulator[Any] | None = None
    """Returns the lines of reports to the driver, by the name of the write."""

    def run(self, write: str, batches: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Write one partition."""
        stop_at = self.settings.max_dead_letters + DEAD_ROWS_MARGIN
        lines = Partition(
            self.sink, self.settings.cuts, write, keep=DEAD_ROWS_SHOWN, stop_at=stop_at
        ).run(batches)
        if self.arrived is not None:
            self.arrived.add({write: lines})
        return CommitMessage(tuple(lines))

    def commit(self, what: str, messages: Iterable[CommitMessage | None]) -> None:
        """Log the report. Raises `DeadLettersError` for more dead letters than allowed."""
        report = _add_up(messages)
        logger.info("%s: %s", what, report)
        if report.failed > self.settings.max_dead_letters:
            report.raise_for_dead_letters()

    def abort(self, what: str, messages: Iterable[CommitMessage | None]) -> None:
        """Log the rows that stay written."""
        logger.warning(
            "%s was aborted; rows that its tasks had written stay: %s", what, _add_up(messages)
        )


def _add_up(messages: Iterable[CommitMessage | None]) -> SparkWriteReport:
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
        """Commit after all tasks have written."""
        self._plan.commit(f"write {self._write} to {self._name}", messages)

    def abort(self, messages: list[Any]) -> None:
        """Abort a failed write."""
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
        """Commit after all tasks of a micro-batch have written."""
        self._plan.commit(f"micro-batch {batchId} to {self._name}", messages)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Abort a failed micro-batch."""
        self._plan.abort(f"micro-batch {batchId} to {self._name}", messages)


def _micro_batch() -> tuple[str, str]:
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY)
    epoch = None if context is None else context.getLocalProperty(EPOCH)
    if not query or not epoch:
        message = (
            "Spark does not provide the query and micro-batch of this task "
            f"({QUERY}={query!r}, {EPOCH}={epoch!r}); use foreach_batch"
        )
        raise SluicegateError(message)
    return query, epoch


class SinkSource(DataSource):
    """Base of the formats that write to a sink."""

    format_name: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return cls.format_name

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return a writer of a DataFrame with this schema. Raises `ConfigError`."""
        if overwrite:
            instead = "write_dataframe(df, sink, mode='overwrite', delivery='atomic', ...)"
            raise bad(
                "mode",
                "overwrite",
                f"format({self.name()!r}) only adds rows; write with .mode('append'), or "
                f"replace them with {instead}",
            )
        plan = self.plan(schema)
        if plan.settings.check:
            try_out(plan.sink, lambda opened: check_types(opened, schema))
        return BatchWriter(self.name(), plan)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Return a writer of a stream with this schema. Raises `ConfigError`."""
        if not hasattr(datasource, "DataSourceStreamArrowWriter"):
            raise bad(
                "writeStream.format",
                self.name(),
                "needs PySpark 4.1; use "
                "writeStream.foreachBatch(sluicegate.spark.foreach_batch(...))",
            )
        if overwrite:
            raise bad(
                "outputMode",
                "complete",
                f"format({self.name()!r}) only adds rows; write with .outputMode('append')",
            )
        return StreamWriter(self.name(), self.plan(schema))

    def plan(self, schema: StructType) -> Plan:
        """Return the plan for the tasks. Raises `ConfigError`."""
        raise NotImplementedError


class SluicegateSource(SinkSource):
    """`format("sluicegate")`: the options describe the sink."""

    format_name = "sluicegate"

    def plan(self, schema: StructType) -> Plan:
        """Plan a write to the sink that the options describe."""
        recipe, chosen = prepare(self.options, schema)
        check_changes(sink := recipe.sink(), (), (), latest=False)
        check_types(sink, schema)
        return Plan(sink=description(recipe), settings=chosen)


class RegisteredSource(SinkSource):
    """A format made by `register`: the sink is given, and options only describe how to write."""

    given: ClassVar[Plan]

    def plan(self, schema: StructType) -> Plan:
        """Plan a write to the given sink."""
        settings = self.given.settings.with_options(self.options, f"format({self.name()!r})")
        check_changes(sink := load(self.given.sink), (), (), latest=False)
        check_types(sink, schema)
        return replace(self.given, settings=settings)
