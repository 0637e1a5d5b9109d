"""A sink as a Spark format under a chosen name; PySpark 3.5 has no data sources, but loads this."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark import AccumulatorParam
from pyspark.sql.session import SparkSession

from .._core import checks
from .._core.errors import SluicegateError, SluicegateWarning
from .._core.stacking import as_sink
from .description import description
from .task.results import read_report
from .task.task import CHUNK_BYTES, CHUNK_ROWS, WINDOW, Cuts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark import Accumulator

    from .._core.sink import SinkLike
    from .report import SparkWriteReport
    from .task.results import Line

_KEPT = 100
"""Number of writes whose reports are kept."""


class Registration:
    """A format made by `register`, with the reports of this session's writes to it."""

    def __init__(self, name: str, arrived: Accumulator[dict[str, list[Line]]] | None) -> None:
        self.name = name
        self._arrived = arrived

    @property
    def reports(self) -> Mapping[str, SparkWriteReport]:
        """Return the reports of the last 100 writes by name, in the order of their first tasks.

        Does not suspend. The name of a batch write is arbitrary; that of a micro-batch is the
        query's id, `-`, and the batch's number. The report is complete when Spark has ended the
        write, and counts each task once, however often Spark ran it.

        Raises `SluicegateError` on Spark Connect, which returns nothing from a data source; use
        `write_dataframe` there, which returns a report.
        """
        if self._arrived is None:
            message = (
                "Spark Connect returns no reports from a data source; write_dataframe returns one"
            )
            raise SluicegateError(message)
        return {write: read_report(lines) for write, lines in self._arrived.value.items()}

    @property
    def report(self) -> SparkWriteReport | None:
        """Return the report of the last write, if any; see `reports`."""
        return next(reversed([*self.reports.values()]), None)

    def __repr__(self) -> str:
        return f"Registration({self.name!r})"


def register(
    spark: Any,
    name: str,
    sink: SinkLike[Any],
    *,
    chunk_rows: int = CHUNK_ROWS,
    chunk_bytes: int = CHUNK_BYTES,
    max_in_flight: int = WINDOW,
    max_dead_letters: int = 0,
    patience: float = 300.0,
    check: bool = True,
) -> Registration:
    """Make `df.write.format(name).mode("append").save()` and `df.writeStream.format(name)` write to
    `sink`. Runs nothing.

    Args:
        spark: the session, of classic PySpark or of Spark Connect.
        name: the name of the format; an existing one is replaced.
        sink: as for `write_dataframe`.
        chunk_rows: maximum number of rows in a batch; default 50,000. The option `batchSize`
            replaces it for one write.
        chunk_bytes: approximate maximum size of a batch in bytes; default 8 MiB. The option
            `batchBytes` replaces it for one write.
        max_in_flight: batches that a task writes concurrently; default 4. The option `maxInFlight`
            replaces it for one write.
        max_dead_letters: rows that may fail for good without a dead-letter sink before a write (of
            a stream: a micro-batch) fails; default 0. The option `maxDeadLetters` replaces it for
            one write.
        patience: as for `write_dataframe`.
        check: whether the sink is opened once on the driver before each batch write; as for
            `write_dataframe`. The option `check` replaces it for one write. Streams are not
            checked.

    Rows are written at least once, without order per key; `write_dataframe` and `foreach_batch` can
    keep the rows of a key in order.

    Raises `ConfigError` for a bad argument or a PySpark older than 4.0, and `NotPicklableError` for
    a sink that cannot be pickled. Warns if a local session runs a Python without Sluicegate.
    """
    if importlib.util.find_spec("pyspark.sql.datasource") is None:
        raise checks.bad(
            "pyspark",
            pyspark.__version__,
            "has no Python data sources; use write_dataframe and foreach_batch",
        )
    from .options import WriteSettings
    from .source import Plan, RegisteredSource

    if not name.strip():
        raise checks.bad("name", name, "must not be empty")
    cuts = Cuts(
        chunk_rows=checks.count("chunk_rows", chunk_rows),
        chunk_bytes=checks.count("chunk_bytes", chunk_bytes),
        window=checks.count("max_in_flight", max_in_flight),
        patience=checks.seconds("patience", patience, usual=checks.LONG_PERIOD),
    )
    settings = WriteSettings(
        cuts=cuts,
        max_dead_letters=checks.count("max_dead_letters", max_dead_letters, least=0),
        check=check,
    )
    if isinstance(spark, SparkSession):
        _warn_of_another_python(spark)
    sent = description(as_sink(sink))
    arrived = (
        spark.sparkContext.accumulator({}, _Lines()) if isinstance(spark, SparkSession) else None
    )
    made = type(
        "RegisteredSource",
        (RegisteredSource,),
        {"format_name": name, "given": Plan(sink=sent, settings=settings, arrived=arrived)},
    )
    spark.dataSource.register(made)
    return Registration(name, arrived)


def _warn_of_another_python(spark: SparkSession) -> None:
    """Warn if the Python processes of a local session cannot import Sluicegate.

    Spark starts them with `python3` of the PATH unless PYSPARK_PYTHON is set. The data source is
    pickled by reference to this package, so their own error would name neither.
    """
    python = shutil.which(spark.sparkContext.pythonExec)
    is_local = str(spark.sparkContext.master).startswith("local")
    if not is_local or python is None or Path(python).parent == Path(sys.executable).parent:
        return
    ended = subprocess.run([python, "-c", "import sluicegate"], capture_output=True, check=False)  # noqa: S603  # Spark runs it too
    if ended.returncode:
        told = (
            f"Spark runs {python}, which cannot import sluicegate, and this program {sys.executable}; "
            f"set the environment variable PYSPARK_PYTHON={sys.executable} before Spark starts"
        )
        warnings.warn(told, SluicegateWarning, stacklevel=3)


class _Lines(AccumulatorParam[dict[str, "list[Line]"]]):
    """An accumulator that collects the lines of reports, by write."""

    def zero(self, value: dict[str, list[Line]]) -> dict[str, list[Line]]:
        """Return the empty value."""
        return {}

    def addInPlace(  # noqa: N802
        self, value1: dict[str, list[Line]], value2: dict[str, list[Line]]
    ) -> dict[str, list[Line]]:
        """Merge into a new dictionary, since a reader may hold the old one; drop the oldest writes."""
        both = {
            **value1,
            **{write: [*value1.get(write, ()), *lines] for write, lines in value2.items()},
        }
        return dict(list(both.items())[-_KEPT:])
