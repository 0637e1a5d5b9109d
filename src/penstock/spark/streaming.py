"""Micro-batches of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .write import write_dataframe

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from .._core.sink import SinkLike
    from .report import SparkWriteReport


def foreach_batch(
    sink: SinkLike[Any], *, on_report: Callable[[SparkWriteReport], object] | None = None, **options: Any
) -> Callable[[DataFrame, int], None]:
    """What `df.writeStream.foreachBatch(...)` calls for each micro-batch: `write_dataframe` with these options.

    `on_report` is called with each report. A micro-batch that Spark runs again is written again, so use a sink that is idempotent.
    """

    def write(df: DataFrame, _: int) -> None:
        report = write_dataframe(df, sink, **options)
        if on_report is not None:
            on_report(report)

    return write
