"""Write a DataFrame through a stack of sinks, or every micro-batch of a stream."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from .._core import checks
from .._core.sink import check_single_store
from .._core.stacking import as_sink
from .content import Content
from .description import description, try_out
from .destination import check_changes, takes_json
from .keys import (
    KeySettings,
    bucket_count,
    check_names,
    check_order,
    check_there,
    describe_types,
    rename_plainly,
    with_bucket,
)
from .latest import check_replaced, latest_rows
from .levels import Level, Ran, write_atomically, write_units
from .task.partition import Partition
from .task.results import (
    DEAD_ROWS_MARGIN,
    DEAD_ROWS_SHOWN,
    LINES,
    read_content,
    read_histories,
    read_report,
    read_stages,
)
from .task.task import CHUNK_BYTES, CHUNK_ROWS, WINDOW, Cuts
from .values import check_types, nested_as_json, session_zone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from .._core.sink import Sink, SinkLike
    from .levels import DeliveryLevel, WriteMode
    from .report import SparkWriteReport
    from .task.key_failure import OnKeyFailure

UNIT_BUFFER_BYTES = 32 << 20
DeadLetters = Literal["raise", "return"]
_RETURNED = 1000


def write_dataframe(
    df: DataFrame,
    sink: SinkLike[Any],
    *,
    key: str | Sequence[str] | None = None,
    order_by: str | Sequence[str] | None = None,
    buckets: int | None = None,
    latest_only: bool = False,
    chunk_rows: int = CHUNK_ROWS,
    chunk_bytes: int = CHUNK_BYTES,
    max_in_flight: int = WINDOW,
    max_tasks: int | None = None,
    dead_letters: DeadLetters = "raise",
    max_dead_letters: int | None = None,
    patience: float = 300.0,
    delivery: DeliveryLevel = "at_least_once",
    mode: WriteMode = "append",
    partition: Mapping[str, object] | None = None,
    app_id: str | None = None,
    version: int | None = None,
    content: Sequence[str] | None = None,
    unit_buffer_bytes: int = UNIT_BUFFER_BYTES,
    on_key_failure: OnKeyFailure = "skip",
    check: bool = True,
) -> SparkWriteReport:
    """Write every row of `df` to `sink`, on the executors; return exact counts.

    One Spark action; blocks until it is done.

    Args:
        df: a DataFrame of classic PySpark or of Spark Connect.
        sink: a sink, a stack of sinks, or a function of a batch. It is pickled here and opened once
            per worker process, which keeps it open for later tasks. It receives `ArrowBatch`es; a
            sink that does not read columns iterates over rows as dictionaries, which is slower.
        key: the columns that define order: the rows of a key are written by one task, in the order
            of `order_by`. Names are taken literally, including dots and backticks. Arrays, maps,
            structs and variants cannot be keys. Keys are equal if Spark groups them together. If a
            column has a collation, only Spark can compare its values: chunks are then written one
            after the other, and `on_key_failure` must be `"skip"`.
        order_by: the columns that order the rows of a key; maps and variants are not possible.
        buckets: number of partitions to spread the keys over; default:
            `spark.sql.shuffle.partitions`. Only with `key`.
        latest_only: whether only the last row of each key by `order_by` is written, with NULL first
            and NaN last; the earlier rows are counted as `superseded`, and not sent. Useful if the
            destination replaces rows by `key`, and keys have several rows: it costs an aggregation,
            and saves the transport of the earlier rows. Needs `order_by`, and a `key` with all
            columns of the destination's key; of several last rows one is written. Rows with NULL in
            their key are all written. The earlier rows never reach the destination: not its
            triggers, not columns that an update leaves unchanged, and not even if the last row of
            their key becomes a dead letter.
        chunk_rows: maximum number of rows in a batch; default 50,000.
        chunk_bytes: approximate maximum size of a batch in bytes; default 8 MiB.
        max_in_flight: number of batches that a task writes concurrently; default 4. With `key`, no
            two of them share a key.
        max_tasks: number of tasks that write concurrently, which bounds connections; default: as
            many as Spark runs.
        dead_letters: the treatment of rows that fail for good, if no `DeadLetter` in the stack
            takes them: `"raise"` fails the write, `"return"` returns them in the report.
        max_dead_letters: the number of such rows allowed before the write fails (default 0), or the
            number that each task returns (1,000). At `delivery="bucket"` it applies to each bucket:
            a bucket with more is rolled back, others are committed.
        patience: seconds for which a batch backs off before one last attempt; must end before Spark
            abandons the task. Default 300.
        delivery: `"at_least_once"` (default): Spark runs a failed task again, so rows may be
            written twice unless the sink is idempotent (by an upsert, or by keys). `"bucket"`: the
            rows of each key bucket are committed together and once, however often they are written;
            needs `key`, `app_id`, `version` and a sink with transactions, and writes the chunks of
            a bucket one after the other. `"atomic"`: all rows become visible together, and only
            once; needs `app_id`, `version` and a sink with stages (`PostgresSink`), whose
            destination the driver must also reach.
        mode: `"overwrite"`, at `"atomic"` only, replaces all existing rows: a reader sees the old
            rows or the new ones.
        partition: columns and their values, such as `{"day": date(2026, 7, 5)}`: `"overwrite"` then
            replaces only the rows that have them, and all rows of `df` must have them
            (`ConfigError`, with nothing written). The table may be partitioned or not, and is not
            blocked for readers.
        app_id: the name of the writing job or query, the same after a restart. It must be unique
            among all jobs and queries that write to the table, and each checkpoint of a query needs
            its own. Writes of one application to several tables are independent.
        version: the number of the write; a repeated write has the same version. With `key`, both
            also name the batches at `"at_least_once"`, so that a repeated write sends the same
            idempotency keys; `order_by` must then order the rows of a key fully.
        content: the columns that a repeated write must repeat; default: all. A hash of them is
            stored for each bucket, or for the whole write, and compared when the write is repeated.
            Omit columns that are computed again in each run (`current_timestamp()`). With `()`, or
            if the columns or their types have changed (with a warning), only the numbers of rows
            are compared. At `"at_least_once"` with `app_id`, the hash of a batch's rows is part of
            its idempotency key, so that a destination does not accept other rows under the same
            name.
        unit_buffer_bytes: bytes of a bucket kept in memory, so that the task can repeat the write
            if its transaction is lost; default 32 MiB. Spark repeats the write of a larger bucket.
        on_key_failure: the treatment of later rows of a key after one of its rows has failed for
            good; needs `key`. `"skip"`: they are written nevertheless. `"stop"`: they are not
            written, but returned as dead rows with `KeyStopped`, and never go to a dead-letter
            sink. `"park"`: they are not written, but go to the stack's `DeadLetter` in order, with
            `ParkedBehind`. With `"stop"` and `"park"`, a sink that is not `key_prefix_safe`
            receives the rows of each key one by one.
        check: whether the sink is opened once here, before the job, so that a wrong address, table
            or column fails before a row is written. Pass `False` if only the executors can reach
            the destination.

    Before anything runs, raises `ConfigError` for a bad argument or a column type that the sink
    cannot write, and `NotPicklableError` for a sink that cannot be pickled; with `check` also the
    errors of opening the sink (`UnavailableError` if the destination does not answer). Raises
    `DeadLettersError` for more dead letters than allowed. If the destination refuses every write
    (`RefusedError`), the task ends, regardless of `dead_letters`. An error that ends a task is
    raised as Spark's error, with the task's traceback: `UnitRefused` for a version that was written
    with another number of `buckets`, another `key` or a key of another type, to a table of this
    name that was since dropped and created again, or to the table under another name;
    `NonDeterministicReplay` for a bucket that was committed with other rows. At `"atomic"`, these
    two are raised unchanged, and `StagesLost` is raised if staged rows were lost or altered in each
    of three runs of the job, with nothing published; the first and the second time, a warning is
    logged. At `"bucket"`, a job during which a standby is promoted also runs again;
    `UnknownOutcomeError` is raised after three such runs.
    """
    sink = as_sink(sink)
    check_names(df)
    if partition:
        check_there(df, "partition", tuple(partition))
    keys = KeySettings.of(
        df,
        key,
        order_by=order_by,
        buckets=buckets,
        latest_only=latest_only,
        on_key_failure=on_key_failure,
    )
    job = WriteJob(
        sink=sink,
        keys=keys,
        cuts=Cuts(
            chunk_rows=checks.count("chunk_rows", chunk_rows),
            chunk_bytes=checks.count("chunk_bytes", chunk_bytes),
            window=checks.count("max_in_flight", max_in_flight),
            key=keys.columns,
            is_collated=keys.is_collated,
            on_key_failure=on_key_failure,
            patience=checks.seconds("patience", patience, usual=checks.LONG_PERIOD),
        ),
        max_tasks=checks.optional_count("max_tasks", max_tasks),
        level=Level.of(
            sink,
            delivery=delivery,
            mode=mode,
            partition=partition,
            app_id=app_id,
            version=version,
            key=keys.columns,
        ),
        dead_rows=DeadRowLimits.of(dead_letters, max_dead_letters, in_units=delivery == "bucket"),
        content=Content.of(df, content, is_named=app_id is not None),
        unit_buffer_bytes=checks.count("unit_buffer_bytes", unit_buffer_bytes, least=0),
    )
    return job.run(df, check=check)


@dataclass(frozen=True, slots=True)
class DeadRowLimits:
    """Limits for rows that fail for good and that no dead-letter sink takes."""

    keep: int
    """Rows returned from a unit."""
    stop_at: float
    """Rows allowed in a unit; one more ends the unit."""
    most: float
    """Rows allowed in the whole write."""

    @classmethod
    def of(cls, dead_letters: DeadLetters, most: int | None, *, in_units: bool) -> DeadRowLimits:
        """Check the arguments; `in_units` limits each unit separately. Raises `ConfigError`."""
        raises = checks.choice("dead_letters", dead_letters, ("raise", "return")) == "raise"
        if most is None:
            most = 0 if raises else _RETURNED
        checks.count("max_dead_letters", most, least=0)
        if not raises:
            return cls(keep=most, stop_at=math.inf, most=math.inf)
        if in_units:
            return cls(keep=DEAD_ROWS_SHOWN, stop_at=most, most=math.inf)
        return cls(keep=DEAD_ROWS_SHOWN, stop_at=most + DEAD_ROWS_MARGIN, most=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    """The checked settings of one write."""

    sink: Sink[Any]
    keys: KeySettings
    cuts: Cuts
    max_tasks: int | None
    level: Level
    dead_rows: DeadRowLimits
    content: Content
    unit_buffer_bytes: int

    def run(self, df: DataFrame, *, check: bool) -> SparkWriteReport:
        """Write every row of `df`; blocks. `check` opens the sink here first."""
        keys = self.keys
        check_changes(self.sink, keys.columns, keys.order_by, latest=keys.latest_only)
        units = self.level.units(
            bucket_count(df, self.keys.buckets),
            types=describe_types(df, self.keys.columns),
            content_of=self.content.text,
            buffer_bytes=self.unit_buffer_bytes,
        )
        epoch, zone = self.level.epoch(), session_zone(df)
        schema = df.schema
        self._check(self.sink, schema)
        shipped = description(self.sink)
        if check:
            try_out(shipped, lambda opened: self._check(opened, schema))
        content = self.content
        if self.keys.latest_only:
            df = latest_rows(
                content.beside(df), self.keys.columns, self.keys.order_by, tie=content.hash_columns
            )
            content = replace(content, df=df)
        rows = self._arrange(df, has_units=units is not None)
        if takes_json(self.sink):
            rows = nested_as_json(rows)

        def run() -> Ran:
            partition = Partition(
                shipped,
                self.cuts,
                uuid4().hex,
                keep=self.dead_rows.keep,
                stop_at=self.dead_rows.stop_at,
                units=epoch or units,
                zone=zone,
                names=rows.columns,
            )
            lines = rename_plainly(rows).mapInArrow(partition, LINES).collect()
            report = read_report(lines)
            if report.failed > self.dead_rows.most:
                report.raise_for_dead_letters()
            return Ran(report, read_stages(lines), read_content(lines), read_histories(lines))

        if epoch is None:
            return write_units(run)
        return write_atomically(self.sink, epoch, content, run)

    def _check(self, sink: Sink[Any], schema: StructType) -> None:
        """Raise `ConfigError` if `sink`, open or not, cannot write the columns."""
        check_types(sink, schema, as_json=takes_json(sink))
        check_order(sink, self.keys.columns)
        if self.keys.on_key_failure == "park":
            check_single_store(sink)
        if self.keys.latest_only:
            check_replaced(sink, self.keys.columns)

    def _arrange(self, df: DataFrame, *, has_units: bool) -> DataFrame:
        rows = self.keys.arrange(df)
        rows = self.content.beside(with_bucket(rows) if has_units else rows)
        return rows if self.max_tasks is None else rows.coalesce(self.max_tasks)


def foreach_batch(
    sink: SinkLike[Any],
    *,
    on_report: Callable[[SparkWriteReport], object] | None = None,
    app_id: str | None = None,
    **options: Any,
) -> Callable[[DataFrame, int], None]:
    """Make the function for `df.writeStream.foreachBatch(...)`: `write_dataframe` per micro-batch.

    Args:
        sink: as in `write_dataframe`.
        on_report: called with each report; on Spark Connect in the server's process.
        app_id: the name under which micro-batches are committed; default: the id of the query,
            which its checkpoint keeps across restarts. Each checkpoint needs its own name: a query
            with a new or copied checkpoint counts from the position of that checkpoint, so under an
            old name its batches would have names that are already committed
            (`NonDeterministicReplay`). Writers to several tables in one micro-batch share the name.
            Required on Spark Connect, which does not provide the id.
        options: arguments of `write_dataframe`; `version` is the number of the micro-batch. With
            `check`, the sink is opened on the driver for the first micro-batch only.

    Spark runs a micro-batch again if its end was not recorded: it is then written again at
    `"at_least_once"`, and skipped if committed at the other levels. Raises `ConfigError` for
    `version`; the function raises the errors of `write_dataframe`, which end the query.
    """
    if "version" in options:
        raise checks.bad(
            "version", options["version"], "cannot be set: it is the number of the micro-batch"
        )
    is_named = (
        options.get("key") is not None
        or options.get("delivery", "at_least_once") != "at_least_once"
    )

    def write(df: DataFrame, batch_id: int) -> None:
        name: dict[str, Any] = (
            {"app_id": app_id or _query_id(df), "version": batch_id} if is_named else {}
        )
        report = write_dataframe(df, sink, **name, **options)
        options["check"] = False
        if on_report is not None:
            on_report(report)

    return write


def _query_id(df: DataFrame) -> str:
    """Return the id of the micro-batch's query."""
    try:
        found = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    except Exception:  # Spark Connect has no context, and its error differs between versions
        found = None
    if not found:
        raise checks.bad(
            "app_id",
            None,
            "is needed here: the query's id is not available (it never is on Spark Connect)",
        )
    return str(found)
