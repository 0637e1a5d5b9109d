"""A DataFrame through a stack of sinks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from .._core import checks
from .._core.function_sink import as_sink
from .driver.columns import (
    bucket_count,
    check_columns,
    check_names,
    is_collated,
    keyed,
    plainly_named,
    typed,
    with_bucket,
)
from .driver.content import Content
from .driver.trial import try_out
from .levels.atomic import write_atomically
from .levels.level import level
from .levels.runs import Ran, write_units
from .progress.progress import watched
from .task.key_failure import POLICIES
from .task.partition import (
    HOPELESS,
    LINES,
    SHOWN,
    Partition,
    read_content,
    read_histories,
    read_report,
    read_stages,
)
from .task.task import CHUNK_BYTES, CHUNK_ROWS, WINDOW, Cuts
from .values.travel import description
from .values.types import check_types
from .values.zone import session_zone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from .._core.sink import SinkLike
    from .levels.level import DeliveryLevel, WriteMode
    from .report import SparkWriteReport
    from .task.key_failure import OnKeyFailure

DeadLetters = Literal["raise", "return"]
_RETURNED = 1000
UNIT_BUFFER_BYTES = 32 << 20


def write_dataframe(
    df: DataFrame,
    sink: SinkLike[Any],
    *,
    key: str | Sequence[str] | None = None,
    order_by: str | Sequence[str] | None = None,
    buckets: int | None = None,
    chunk_rows: int = CHUNK_ROWS,
    chunk_bytes: int = CHUNK_BYTES,
    max_in_flight: int = WINDOW,
    max_tasks: int | None = None,
    dead_letters: DeadLetters = "raise",
    max_dead_letters: int | None = None,
    patience: float = 300.0,
    delivery: DeliveryLevel = "at_least_once",
    mode: WriteMode = "append",
    app_id: str | None = None,
    version: int | None = None,
    content: Sequence[str] | None = None,
    unit_buffer_bytes: int = UNIT_BUFFER_BYTES,
    on_key_failure: OnKeyFailure = "skip",
    check: bool = True,
    progress: bool | None = None,
) -> SparkWriteReport:
    """Write every row of `df` to `sink`, on the executors; return exact counts. One action; blocks
    until it is done.

    Args:
        df: a DataFrame of classic PySpark or of Spark Connect.
        sink: a sink, a stack of sinks, or a function of a batch. It is pickled here and opened once
            per worker process, which keeps it open for the tasks to come. It gets `ArrowBatch`es; a
            sink that knows no columns iterates over rows as dictionaries, which is slower.
        key: the columns by which rows are in order: those of one key are written by one task, in
            the order of `order_by`. Names are taken literally, dots and backticks included; arrays,
            maps, structs and variants are no keys. Keys are equal as Spark groups them. Where one
            has a collation, only Spark knows which are: chunks are then written one after the
            other, and `on_key_failure` must be `"skip"`.
        order_by: the columns that order the rows of a key; no maps and no variants.
        buckets: partitions to spread the keys over; default: `spark.sql.shuffle.partitions`. Only
            with `key`.
        chunk_rows: rows in a batch, at most; default 50,000.
        chunk_bytes: bytes in a batch, about; default 8 MiB.
        max_in_flight: batches that a task writes at the same time; default 4. With `key` none of
            them share a key.
        max_tasks: tasks that write at the same time, which bounds connections; default: as many as
            Spark runs.
        dead_letters: what is done with rows that fail for good and that no `DeadLetter` in the
            stack takes: `"raise"` fails the write, `"return"` returns them in the report.
        max_dead_letters: how many such rows there may be before the write fails (default 0), or how
            many each task returns (1,000). At `delivery="bucket"` it is the number of each bucket:
            one that has more is rolled back, others are committed.
        patience: seconds for which a batch backs off before it has one last try; must end before
            Spark gives the task up. Default 300.
        delivery: `"at_least_once"`: a task that fails is run again by Spark, so rows may be written
            twice unless the sink is idempotent (an upsert, or keys). `"bucket"`: the rows of each
            key bucket are committed together and once, however often they come; needs `key`,
            `app_id`, `version` and a sink with transactions, and writes the chunks of a bucket one
            after the other. `"atomic"`: everything becomes visible at once, and once; needs
            `app_id`, `version` and a sink with stages (`PostgresSink`), whose destination the
            driver must reach as well.
        mode: `"overwrite"`, at `"atomic"` only, puts the rows in the place of all that are there: a
            reader sees the old ones or the new ones.
        app_id: the name of the job or query that writes, the same after a restart. It must be
            unique among all jobs and queries that write to the table, and each checkpoint of a
            query needs one of its own. Writes of one application to several tables do not get in
            each other's way.
        version: which of its writes this is; a write that is repeated has the version that it had.
            With `key` both also name the batches at `"at_least_once"`, so that a repeated write
            sends the same idempotency keys; `order_by` must then order the rows of a key fully.
        content: the columns that a repeated write must repeat; default: all. A hash of them is
            stored for each bucket, or for the whole, and compared when it comes again. Leave out
            what is made anew in each run (`current_timestamp()`). `()`: only the numbers of rows
            are compared; so they are where the columns or their types have changed, with a warning.
            At `"at_least_once"` with `app_id` the hash of a batch's rows is part of its idempotency
            key, so that a destination takes no other rows for those that it has.
        unit_buffer_bytes: how much of a bucket is kept in memory, to be written again inside the
            task when its transaction is lost; default 32 MiB. A bucket that is larger is written
            again by Spark.
        on_key_failure: what becomes of the later rows of a key after one of its rows has failed for
            good; needs `key`. `"skip"`: they are written all the same. `"stop"`: none of them is
            written; they come back as dead rows, `KeyStopped`, and never go to a dead-letter sink.
            `"park"`: none is written; they go to the stack's `DeadLetter` in their order,
            `ParkedBehind`. A sink that is not `key_prefix_safe` is then written to row by row of
            each key.
        check: whether the sink is opened once here, before the job, so that a wrong address, table
            or column is told before a row is written. Pass `False` where only the executors reach
            the destination.
        progress: whether a bar on standard error shows tasks, rows, their rate and dead letters
            while the job runs; default: in a terminal and in a notebook. Never on Spark Connect.

    Raises `ConfigError` for a bad argument or a column of a type that the sink cannot write, and
    `NotPicklableError` for a sink that cannot travel; with `check` also whatever opening the sink
    raises (`UnavailableError` where nobody answers): all before anything runs. Raises
    `DeadLettersError` for more dead letters than allowed. A destination that refuses every write
    (`RefusedError`) ends the task, whatever `dead_letters` says. What ends a task comes as Spark's
    error, with the task's traceback: `UnitRefused` for a version that was written with another
    number of `buckets`, another `key` or a key of another type, or to a table of this name that was
    since dropped and made anew, or to the table under another name; `NonDeterministicReplay` for a
    bucket that was committed with other rows. At `"atomic"` these two come as they are. Raises
    `StagesLost` at `"atomic"` if the destination has lost what was staged, or was altered, in each
    of three runs of the job, with nothing published; after the first and the second it logs a
    warning. At `"bucket"` a job over which a standby is promoted runs again in the same way;
    `UnknownOutcomeError` after three such runs.
    """
    sink = as_sink(sink)
    check_names(df)
    names = check_columns(df, "key", key)
    if key is None and (order_by is not None or buckets is not None):
        raise checks.bad(
            "order_by" if order_by is not None else "buckets",
            order_by or buckets,
            "has no meaning without key",
        )
    if checks.choice("on_key_failure", on_key_failure, POLICIES) != "skip" and key is None:
        raise checks.bad("on_key_failure", on_key_failure, "has no meaning without key")
    check_columns(df, "order_by", order_by)
    collated = is_collated(df, names)
    if collated and on_key_failure != "skip":
        rule = (
            "needs a key of which only equal bytes are equal, and this one has a collation; "
            "key by a column such as lower(key)"
        )
        raise checks.bad("on_key_failure", on_key_failure, rule)
    cuts = Cuts(
        chunk_rows=checks.count("chunk_rows", chunk_rows),
        chunk_bytes=checks.count("chunk_bytes", chunk_bytes),
        window=checks.count("max_in_flight", max_in_flight),
        key=names,
        is_collated=collated,
        on_key_failure=on_key_failure,
        patience=checks.seconds("patience", patience),
    )
    limit = checks.optional_count("max_tasks", max_tasks)
    promise = level(sink, delivery=delivery, mode=mode, app_id=app_id, version=version, key=names)
    dead = _DeadRows.of(dead_letters, max_dead_letters, in_units=delivery == "bucket")
    same = Content.of(df, content, is_named=app_id is not None)
    kept = checks.count("unit_buffer_bytes", unit_buffer_bytes, least=0)
    units = promise.units(
        bucket_count(df, buckets), types=typed(df, names), content_of=same.text, buffer_bytes=kept
    )
    epoch, zone = promise.epoch(), session_zone(df)
    check_types(sink, df.schema)
    shipped = description(sink)
    if check:
        try_out(shipped, df.schema)
    rows = df if key is None else keyed(df, key, order_by=order_by, buckets=buckets)
    rows = same.beside(rows if units is None else with_bucket(rows))
    rows = rows if limit is None else rows.coalesce(limit)
    settings = _settings(
        sink,
        cuts,
        buckets=buckets,
        order_by=order_by,
        max_tasks=limit,
        delivery=delivery,
        mode=mode,
        dead_letters=dead_letters,
    )

    def run() -> Ran:
        with watched(df.sparkSession, progress) as write:
            done = None if write is None else write.done
            writing = Partition(
                shipped,
                cuts,
                uuid4().hex,
                keep=dead.keep,
                stop_at=dead.stop_at,
                units=epoch or units,
                done=done,
                zone=zone,
                names=rows.columns,
            )
            lines = plainly_named(rows).mapInArrow(writing, LINES).collect()
        report = replace(read_report(lines), settings=settings)
        if report.failed > dead.most:
            report.raise_for_dead_letters()
        return Ran(report, read_stages(lines), read_content(lines), read_histories(lines))

    return write_units(run) if epoch is None else write_atomically(sink, epoch, same, run)


def _settings(sink: object, cuts: Cuts, **others: object) -> dict[str, str]:
    """What was asked for, as text; what was left open is left out."""
    found = {"sink": sink, "key": ", ".join(cuts.key) or None, **others}
    if cuts.key:
        found["on_key_failure"] = cuts.on_key_failure
    found.update(
        chunk_rows=cuts.chunk_rows,
        chunk_bytes=cuts.chunk_bytes,
        max_in_flight=cuts.window,
        patience=cuts.patience,
    )
    return {name: str(value) for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class _DeadRows:
    """What becomes of rows that fail for good."""

    keep: int
    """How many come back from a unit."""
    stop_at: float
    """How many a unit may have; with one more it gives up."""
    most: float
    """How many the whole write may have."""

    @classmethod
    def of(cls, dead_letters: DeadLetters, most: int | None, *, in_units: bool) -> _DeadRows:
        """What was asked for. Units that can be rolled back are bounded each by itself. Raises
        `ConfigError`.
        """
        raises = checks.choice("dead_letters", dead_letters, ("raise", "return")) == "raise"
        if most is None:
            most = 0 if raises else _RETURNED
        checks.count("max_dead_letters", most, least=0)
        if not raises:
            return cls(keep=most, stop_at=math.inf, most=math.inf)
        if in_units:
            return cls(keep=SHOWN, stop_at=most, most=math.inf)
        return cls(keep=SHOWN, stop_at=most + HOPELESS, most=most)
