"""A DataFrame through a stack of sinks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from .._core import checks
from .._core.function_sink import as_sink
from ._driver import check_columns, keyed
from ._partition import LINES, Partition, read_report
from ._task import Cuts
from ._travel import description

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from .._core.sink import SinkLike
    from .report import SparkWriteReport

DeadLetters = Literal["raise", "return"]
_SHOWN = 20
"""Dead rows that a task sends back for the message of an error."""
_RETURNED = 1000
_HOPELESS = 1000
"""Dead rows in one task, beyond what is allowed, after which it does not go on."""

CHUNK_ROWS = 50_000
CHUNK_BYTES = 8 << 20
WINDOW = 4


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
) -> SparkWriteReport:
    """Write every row of `df` to `sink`, on the executors; return exact counts. One action; blocks until it is done.

    Args:
        df: a DataFrame of classic PySpark or of Spark Connect.
        sink: a sink, a stack of sinks, or a function of a batch. It is pickled here and opened once per worker process, which keeps it open for
            the tasks to come. It gets `ArrowBatch`es; a sink that knows no columns iterates over rows as dictionaries, which is slower.
        key: the columns by which rows are in order: those of one key are written by one task, in the order of `order_by`.
        order_by: the columns that order the rows of a key.
        buckets: partitions to spread the keys over; default: `spark.sql.shuffle.partitions`. Only with `key`.
        chunk_rows: rows in a batch, at most; default 50,000.
        chunk_bytes: bytes in a batch, about; default 8 MiB.
        max_in_flight: batches that a task writes at the same time; default 4. With `key` none of them share a key.
        max_tasks: tasks that write at the same time, which bounds connections; default: as many as Spark runs.
        dead_letters: what is done with rows that fail for good and that no `DeadLetter` in the stack takes: `"raise"` fails the write, `"return"`
            returns them in the report.
        max_dead_letters: how many such rows there may be in all before the write fails (default 0), or how many each task returns (1,000).
        patience: seconds for which a batch backs off before it has one last try; must end before Spark gives the task up. Default 300.

    A task that fails is run again by Spark, so rows may be written twice unless the sink is idempotent (an upsert, or keys).

    Raises `ConfigError` for a bad argument and `NotPicklableError` for a sink that cannot travel, before anything runs; `DeadLettersError` for
    more dead letters than allowed.
    """
    sink = as_sink(sink)
    if dead_letters not in {"raise", "return"}:
        raise checks.bad("dead_letters", dead_letters, "must be 'raise' or 'return'")
    names = check_columns(df, "key", key)
    cuts = Cuts(
        chunk_rows=checks.count("chunk_rows", chunk_rows),
        chunk_bytes=checks.count("chunk_bytes", chunk_bytes),
        window=checks.count("max_in_flight", max_in_flight),
        key=names,
        patience=checks.seconds("patience", patience),
    )
    most = _RETURNED if max_dead_letters is None and dead_letters == "return" else max_dead_letters or 0
    most = checks.count("max_dead_letters", most, least=0)
    limit = checks.optional_count("max_tasks", max_tasks)
    if key is None and (order_by is not None or buckets is not None):
        raise checks.bad("order_by" if order_by is not None else "buckets", order_by or buckets, "has no meaning without key")
    raises = dead_letters == "raise"
    keep, stop_at = (_SHOWN, most + _HOPELESS) if raises else (most, math.inf)
    writing = Partition(description(sink), cuts, uuid4().hex, keep=keep, stop_at=stop_at)
    rows = df if key is None else keyed(df, key, order_by=order_by, buckets=buckets)
    if limit is not None:
        rows = rows.coalesce(limit)
    report = read_report(rows.mapInArrow(writing, LINES).collect())
    if raises and report.failed > most:
        report.raise_for_dead_letters()
    return report
