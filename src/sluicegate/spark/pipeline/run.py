"""A checked pipeline on Spark.

1. Every view is created, and so analysed by Spark, before a row is read. A refusal by Spark is a
   mistake with its place, like any other.
2. A given session stays open, with its views and settings unchanged: the pipeline runs in a
   separate session of the same application.
3. A stream ends between two micro-batches, unless it fails. A micro-batch that begins after the
   stop request fails and writes nothing; the next run writes its rows. So does one that still opens
   its sink on the driver, and a batch.
4. Under `spark-submit`, the master and the jars are those of its own options.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from ..._core.errors import ConfigError, MissingExtra
from ..avro import register_avro
from ..description import WriteStopped, stoppable
from ..java import connector_jars, is_submitted
from ..report import PipelineReport
from ..write import foreach_batch, write_dataframe
from .check import AVAILABLE_NOW, whole_number
from .declaration import Mistake, PipelineError, names
from .sinks import SinkMaker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from threading import Event

    from pyspark.sql import DataFrame

    from ..._core.sink import Sink
    from ..report import SparkWriteReport
    from .check import Checked
    from .declaration import Declared, Scalar, Source, SparkSettings, Step

logger = logging.getLogger("sluicegate.spark")
_SUBMITTED = ("master", "connectors", "packages", "jars")
LOOK_SECONDS = 0.3
"""Seconds between checks whether a stream should end."""
_NO_VIEW = re.compile(r"TABLE_OR_VIEW_NOT_FOUND.*?`(\w+)`", re.DOTALL)
_PASSED_ON = (
    "buckets",
    "chunk_rows",
    "chunk_bytes",
    "max_in_flight",
    "max_tasks",
    "max_dead_letters",
    "patience",
    "unit_buffer_bytes",
)
_CHOSEN = ("dead_letters", "delivery", "mode", "on_key_failure", "latest_only", "check")


def run(
    checked: Checked,
    given: SparkSession | None,
    *,
    on_report: Callable[[SparkWriteReport], object] | None,
    stop: Event | None,
    progress: bool | None,
) -> PipelineReport:
    """Run the pipeline to its end; return the counts."""
    running = _Running(checked.pipeline, on_report)
    options: dict[str, Any] = {**_options(checked.pipeline), "progress": progress}
    with session(checked.pipeline, given) as spark:
        df = views(checked, spark)[checked.pipeline.write.view]
        sink = _sink(checked, df)
        if checked.pipeline.stream is None:
            running.batch(df, sink, options, stop)
        else:
            running.stream(df, sink, options, stop)
    return running.report


def plan(checked: Checked, given: SparkSession | None) -> str:
    """Return Spark's plan for the written rows; nothing is read."""
    with session(checked.pipeline, given) as spark:
        df = views(checked, spark)[checked.pipeline.write.view]
        _sink(checked, df)
        with redirect_stdout(StringIO()) as printed:
            df.explain(mode="formatted")
        return printed.getvalue()


@contextmanager
def session(pipeline: Declared, given: SparkSession | None) -> Iterator[SparkSession]:
    """Provide the session of the run; a new one is stopped at the end."""
    made = _make_session(pipeline) if given is None else _beside(given, pipeline.spark)
    try:
        yield made
    finally:
        if given is None:
            made.stop()


def _make_session(pipeline: Declared) -> SparkSession:
    settings = pipeline.spark
    builder: Any = SparkSession.builder.appName(pipeline.name)
    own: dict[str, Scalar] = {"spark.ui.showConsoleProgress": False}
    if is_submitted():  # its Java has started, so these would come too late
        unused = [name for name in _SUBMITTED if getattr(settings, name)]
        if unused:
            told = "%s: spark-submit's own options apply instead of %s in [spark]"
            logger.warning(told, pipeline.name, ", ".join(unused))
    else:
        own |= _outside_submit(settings)
    for name, value in {**own, **settings.conf}.items():
        if value != "":
            builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    return made


def _outside_submit(settings: SparkSettings) -> dict[str, str]:
    if settings.master is None or settings.master.startswith("local"):
        os.environ.setdefault(
            "PYSPARK_PYTHON", sys.executable
        )  # the workers are forked locally, from the same Python
    fetched = [connector_jars(*settings.connectors)] if settings.connectors else []
    return {
        "spark.master": settings.master or "",
        "spark.jars.packages": ",".join(settings.packages),
        "spark.jars": ",".join([*settings.jars, *fetched]),
    }


def _beside(given: SparkSession, settings: SparkSettings) -> SparkSession:
    try:
        spark = given.newSession()
    except PySparkException:  # older Spark Connect
        spark = given
    for name, value in settings.conf.items():
        if spark.conf.isModifiable(name):
            spark.conf.set(name, str(value) if isinstance(value, float) else value)
    return spark


def views(checked: Checked, spark: SparkSession) -> dict[str, DataFrame]:
    """Create every source and step as a view. Raises `PipelineError` with all refusals by Spark."""
    pipeline = checked.pipeline
    made: dict[str, DataFrame] = {}
    mistakes: list[Mistake] = []
    if pipeline.registry is not None:
        try:
            register_avro(spark, pipeline.registry)
        except (ConfigError, MissingExtra) as error:
            mistakes.append(Mistake(("registry",), checked.environment.hide(str(error))))
    making: list[tuple[tuple[str, ...], str, Callable[[], DataFrame]]] = [
        *(
            (("sources", name), name, lambda source=source: _read(spark, source, pipeline))
            for name, source in pipeline.sources.items()
        ),
        *(
            (("steps", name, "sql"), name, lambda step=step: spark.sql(step.sql))
            for name, step in pipeline.steps.items()
        ),
    ]
    described: dict[str, Source | Step] = {**pipeline.sources, **pipeline.steps}
    for path, name, make in making:
        try:
            made[name] = df = _late_and_double(make(), described[name])
            df.createOrReplaceTempView(name)
            df.columns  # noqa: B018  # triggers the analysis, also on Connect
        except PySparkException as error:
            text = checked.environment.hide(str(error))
            missing = _NO_VIEW.search(text)
            if missing is None or missing[1] not in described:
                mistakes.append(Mistake(path, text.splitlines()[0]))
    if mistakes:
        raise PipelineError(pipeline.with_file(mistakes))
    return made


def _read(spark: SparkSession, source: Source, pipeline: Declared) -> DataFrame:
    streams = pipeline.stream is not None and not source.static
    reader: Any = spark.readStream if streams else spark.read
    paths = names(source.path)
    if source.format == "table":
        table: DataFrame = reader.table(paths[0])
        return table
    reader = reader.format(source.format).options(**source.options)
    if source.schema is not None:
        reader = reader.schema(source.schema)
    df: DataFrame = (
        reader.load(paths[0] if len(paths) == 1 else list(paths)) if paths else reader.load()
    )
    return df


def _late_and_double(df: DataFrame, view: Source | Step) -> DataFrame:
    if view.watermark is not None:
        df = df.withWatermark(view.watermark.column, view.watermark.delay)
    columns = list(names(view.dedupe))
    if not columns:
        return df
    return (
        df.dropDuplicatesWithinWatermark(columns)
        if view.watermark is not None
        else df.dropDuplicates(columns)
    )


def _sink(checked: Checked, df: DataFrame) -> Sink[Any]:
    mistakes: list[Mistake] = []
    pipeline = checked.pipeline
    maker = SinkMaker(
        pipeline.sinks, df.columns, mistakes, schema=df.schema, key=names(pipeline.write.key)
    )
    made = maker.make(pipeline.write.sink)
    for name in ("key", "order_by", "content"):
        missing = [
            column
            for column in names(getattr(pipeline.write, name) or ())
            if column not in df.columns
        ]
        mistakes += [
            Mistake(("write", name), f"{pipeline.write.view} has no column {column!r}")
            for column in missing
        ]
    if mistakes or made is None:
        raise PipelineError(
            pipeline.with_file(
                [Mistake(each.path, checked.environment.hide(each.text)) for each in mistakes]
            )
        )
    return made


def _options(pipeline: Declared) -> dict[str, Any]:
    write = pipeline.write
    given = {name: getattr(write, name) for name in _PASSED_ON}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    options |= {name: getattr(write, name) for name in _CHOSEN}
    if names(write.key):
        options |= {"key": names(write.key), "order_by": names(write.order_by) or None}
    if write.partition:
        options["partition"] = write.partition
    if write.content is not None:
        options["content"] = names(write.content)
    if write.version is not None:
        options |= {"app_id": write.app_id or pipeline.name, "version": whole_number(write.version)}
    elif write.app_id is not None:
        options["app_id"] = write.app_id
    return options


class _Running:
    """One run and its counts."""

    def __init__(
        self, pipeline: Declared, on_report: Callable[[SparkWriteReport], object] | None
    ) -> None:
        self.report = PipelineReport(name=pipeline.name)
        self._pipeline = pipeline
        self._on_report = on_report
        self._error: BaseException | None = None

    def count(self, report: SparkWriteReport) -> None:
        """Add the report of a write."""
        self.report = self.report.after(report)
        if self._on_report is not None:
            self._on_report(report)

    def batch(
        self, df: DataFrame, sink: Sink[Any], options: dict[str, Any], stop: Event | None
    ) -> None:
        """Write the rows, unless `stop` is set before the write begins."""
        try:
            with stoppable(stop):
                self.count(write_dataframe(df, sink, **options))
        except WriteStopped:
            return

    def stream(
        self, df: DataFrame, sink: Sink[Any], options: dict[str, Any], stop: Event | None
    ) -> None:
        """Write micro-batches until the stream ends or `stop` is set."""
        stream = self._pipeline.stream
        assert stream is not None
        trigger: dict[str, Any] = (
            {"availableNow": True}
            if stream.trigger == AVAILABLE_NOW
            else {"processingTime": stream.trigger}
        )
        write = foreach_batch(sink, on_report=self.count, **options)

        def write_or_tell(rows: DataFrame, number: int) -> None:
            try:
                with stoppable(stop):
                    write(rows, number)
            except BaseException as error:
                self._error = error  # Spark keeps only the text of the error
                raise

        writer: Any = (
            df.writeStream.queryName(self._pipeline.name)
            .outputMode(stream.output_mode)
            .foreachBatch(write_or_tell)
        )
        query = writer.option("checkpointLocation", stream.checkpoint).trigger(**trigger).start()
        try:
            while not query.awaitTermination(LOOK_SECONDS):
                if stop is not None and stop.is_set() and not query.status["isTriggerActive"]:
                    return
        except StreamingQueryException as error:
            if isinstance(self._error, WriteStopped):
                return
            if self._error is not None:
                raise self._error from error
            raise
        finally:
            query.stop()
