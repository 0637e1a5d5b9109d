"""Micro-batches of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core import checks
from .report import StreamReport
from .write import write_dataframe

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from .._core.sink import SinkLike
    from .report import SparkWriteReport


class ForeachBatch:
    """The result of `foreach_batch`; Spark calls it with each micro-batch."""

    def __init__(self, write: Callable[[DataFrame, int], None], report: StreamReport) -> None:
        self._write = write
        self.report = report
        """The reports of the micro-batches so far."""

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write one micro-batch."""
        self._write(df, batch_id)


def foreach_batch(
    sink: SinkLike[Any],
    *,
    on_report: Callable[[SparkWriteReport], object] | None = None,
    app_id: str | None = None,
    **options: Any,
) -> ForeachBatch:
    """Make the function for `df.writeStream.foreachBatch(...)`: `write_dataframe` per micro-batch.

    Args:
        sink: as in `write_dataframe`.
        on_report: called with each report.
        app_id: the name under which micro-batches are committed; default: the id of the query,
            which its checkpoint keeps across restarts. Each checkpoint needs its own name: a query
            with a new or copied checkpoint counts from the position of that checkpoint, so under an
            old name its batches would have names that are already committed
            (`NonDeterministicReplay`). Writers to several tables in one micro-batch share the name.
            Required on Spark Connect, which does not provide the id.
        options: arguments of `write_dataframe`; `version` is the number of the micro-batch. With
            `check`, the sink is opened on the driver for the first micro-batch only.

    Spark runs a micro-batch again if its end was not recorded: it is then written again at
    `"at_least_once"`, and skipped if committed at the other levels. The result keeps the reports as
    `report`, a `StreamReport`; on Spark Connect the server's copy keeps them. Raises `ConfigError`
    for `version`, and the errors of `write_dataframe`, which end the query.
    """
    if "version" in options:
        raise checks.bad(
            "version", options["version"], "cannot be set: it is the number of the micro-batch"
        )
    check = options.pop("check", True)
    is_named = (
        options.get("key") is not None
        or options.get("delivery", "at_least_once") != "at_least_once"
    )

    history = StreamReport()

    def write(df: DataFrame, batch_id: int) -> None:
        nonlocal check
        name = (app_id or _query_id(df)) if is_named else None
        report = write_dataframe(
            df, sink, app_id=name, version=batch_id if is_named else None, check=check, **options
        )
        check = False
        history.add(batch_id, report)
        if on_report is not None:
            on_report(report)

    return ForeachBatch(write, history)


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
