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
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import fields, replace
from io import StringIO
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from ..._core.errors import ConfigError, MissingExtra
from ...telemetry.prometheus import serving_metrics
from ..avro import register_avro
from ..description import WriteStopped, stoppable
from ..java import connector_jars, is_submitted
from ..keys import column_of
from ..levels import moving
from ..listener import PrometheusQueryListener
from ..report import PipelineReport
from ..write import foreach_batch, write_dataframe
from .check import AVAILABLE_NOW, shared_views, whole_number
from .declaration import Destination, Mistake, PipelineError, names
from .decoding import decode_values, unused_reasons
from .increments import Run, find_runs
from .refusal import UNDECODABLE
from .sinks import SinkMaker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from threading import Event

    from pyspark.sql import Column, DataFrame

    from ..._core.sink import Sink
    from ..._core.staging import Progress
    from ..report import SparkWriteReport
    from .check import Checked
    from .declaration import Declared, Path, Scalar, Source, SparkSettings, Step, Write

logger = logging.getLogger("sluicegate.spark")
_SUBMITTED = ("master", "connectors", "packages", "jars")
LOOK_SECONDS = 0.3
"""Seconds between checks whether a stream should end."""
_NO_VIEW = re.compile(r"TABLE_OR_VIEW_NOT_FOUND.*?`(\w+)`", re.DOTALL)


def run(
    checked: Checked,
    given: SparkSession | None,
    *,
    on_report: Callable[[SparkWriteReport], object] | None,
    stop: Event | None,
    since: str | None,
) -> PipelineReport:
    """Run the pipeline to its end; return the counts."""
    pipeline = checked.pipeline
    running = _Running(pipeline, on_report, stop)
    with session(pipeline, given) as spark:
        read: dict[str, DataFrame] = {}
        made = views(checked, spark, read)
        sinks = {path: _sink(checked, path, made) for path in pipeline.writes}
        if pipeline.stream is not None:
            running.stream(made, sinks)
        elif pipeline.incremental:
            for run in find_runs(pipeline, made, sinks, since):
                if run.has_rows:
                    new = views(checked, spark, read, run.conditions)
                    with _computed_once(pipeline, new) as new:
                        running.batch(new, sinks, run.progress)
        else:
            with _computed_once(pipeline, made) as made:
                running.batch(made, sinks, dict.fromkeys(pipeline.writes))
    return running.report


def plan(checked: Checked, given: SparkSession | None) -> str:
    """Return Spark's plan for the written rows; nothing is read."""
    with session(checked.pipeline, given) as spark:
        made = views(checked, spark)
        with redirect_stdout(StringIO()) as printed:
            for path, write in checked.pipeline.writes.items():
                _sink(checked, path, made)
                made[write.view].explain(mode="formatted")
        return printed.getvalue()


def dry_run(checked: Checked, given: SparkSession | None, since: str | None) -> str:
    """Read, and count the rows that a run would write; return the counts as text."""
    pipeline = checked.pipeline
    if pipeline.stream is not None:
        raise PipelineError([Mistake(("stream",), "has no dry run; only a batch has one")])
    lines = [f"{pipeline.name}: a run would"]
    with session(pipeline, given) as spark:
        read: dict[str, DataFrame] = {}
        made = views(checked, spark, read)
        runs = [Run.whole(pipeline)]
        if pipeline.incremental:
            sinks = {path: _sink(checked, path, made, creates=False) for path in pipeline.writes}
            runs = find_runs(pipeline, made, sinks, since, is_dry=True)
        for run in runs:
            new = views(checked, spark, read, run.conditions)
            with _computed_once(pipeline, new) as new:
                for name in pipeline.sources:
                    told = f", {run.told[name]}" if name in run.told else ""
                    lines.append(f"  read    {name}: {new[name].count():,} rows{told}")
                for path, progress in run.progress.items():
                    write = pipeline.writes[path]
                    rows = new[write.view].count() if run.has_rows else 0
                    number = "" if progress is None else f" as run {progress.version}"
                    lines.append(
                        f"  write   {write.view} to {write.sink}: {rows:,} rows, "
                        f"{write.delivery}{number if rows else ''}"
                    )
    return checked.environment.hide("\n".join(lines))


@contextmanager
def _computed_once(
    pipeline: Declared, made: dict[str, DataFrame]
) -> Iterator[dict[str, DataFrame]]:
    """Keep the views that several writes share in Spark's memory and on its disks."""
    shared = [made[name] for name in shared_views(pipeline)]
    for df in shared:
        df.persist()
    try:
        yield made
    finally:
        for df in shared:
            df.unpersist()


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
    own: dict[str, Scalar] = {"spark.ui.showConsoleProgress": sys.stderr.isatty()}
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


def views(
    checked: Checked,
    spark: SparkSession,
    read: dict[str, DataFrame] | None = None,
    conditions: Mapping[str, Column] | None = None,
) -> dict[str, DataFrame]:
    """Create every source, its rows on `conditions`, and every step as a view.

    `read` keeps the sources from call to call: a DataFrame lists its files once, so that the files
    that a run reads are those of its position. Raises `PipelineError` with all refusals by Spark.
    """
    read = {} if read is None else read
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
            df = read[name] if name in read else make()
            if name in pipeline.sources and name not in read:
                read[name] = df
                mistakes += _position_mistakes(checked, df, name)
            if conditions is not None and name in conditions:
                df = df.where(conditions[name])
            made[name] = df = _late_and_double(df, described[name])
            df.createOrReplaceTempView(name)
            df.columns  # noqa: B018  # triggers the analysis, also on Connect
        except PySparkException as error:
            text = checked.environment.hide(str(error))
            missing = _NO_VIEW.search(text)
            if missing is None or missing[1] not in described:
                mistakes.append(Mistake(path, text.splitlines()[0]))
    if not mistakes:
        mistakes += unused_reasons(pipeline, made)
    if mistakes:
        raise PipelineError(pipeline.with_file(mistakes))
    return made


def _position_mistakes(checked: Checked, df: DataFrame, name: str) -> Iterator[Mistake]:
    """Find what Spark refuses in the position of a source."""
    given = checked.pipeline.incremental.get(name)
    if given is None or given.column is None:
        return
    parts = {"column": column_of(given.column)}
    if given.until is not None:
        parts["until"] = F.expr(given.until)
    for key, part in parts.items():
        try:
            df.select(part).columns  # noqa: B018  # triggers the analysis, also on Connect
        except PySparkException as error:
            text = checked.environment.hide(str(error)).splitlines()[0]
            yield Mistake(("sources", name, "incremental", key), text)


def _read(spark: SparkSession, source: Source, pipeline: Declared) -> DataFrame:
    streams = pipeline.stream is not None and not source.static
    reader: Any = spark.readStream if streams else spark.read
    paths = names(source.path)
    if source.format == "table":
        table: DataFrame = reader.table(paths[0])
        return table
    reader = reader.format(source.format).options(**source.options)
    if source.schema is not None and source.value is None:
        reader = reader.schema(source.schema)
    df: DataFrame = (
        reader.load(paths[0] if len(paths) == 1 else list(paths)) if paths else reader.load()
    )
    return df if source.value is None else decode_values(df, source, pipeline.registry)


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


def _sink(
    checked: Checked, path: Path, made: Mapping[str, DataFrame], *, creates: bool = True
) -> Sink[Any]:
    """Build the sink of a write; without `creates`, one that changes no table."""
    mistakes: list[Mistake] = []
    pipeline, write = checked.pipeline, checked.pipeline.writes[path]
    df = made[write.view]
    sinks = pipeline.sinks
    if not creates:
        sinks = {name: _unchanging(sink, df.columns) for name, sink in sinks.items()}
    refuses = UNDECODABLE in df.columns and any(each.value for each in pipeline.sources.values())
    maker = SinkMaker(
        sinks, df.columns, mistakes, schema=df.schema, key=names(write.key), refuses=refuses
    )
    sink = maker.make(write.sink)
    for name in ("key", "order_by", "content"):
        missing = [
            column for column in names(getattr(write, name) or ()) if column not in df.columns
        ]
        mistakes += [
            Mistake((*path, name), f"{write.view} has no column {column!r}") for column in missing
        ]
    if mistakes or sink is None:
        raise PipelineError(
            pipeline.with_file(
                [Mistake(each.path, checked.environment.hide(each.text)) for each in mistakes]
            )
        )
    return sink


def _unchanging(sink: object, columns: Sequence[str]) -> object:
    if not isinstance(sink, Destination):
        return sink
    kept = {name: each for name, each in sink.arguments.items() if name != "create_table"}
    if kept.get("on_new_column") == "add":
        kept["columns"] = tuple(kept.get("columns", columns))  # without types, for the first value
    return replace(sink, arguments=kept)


def _options(pipeline: Declared, write: Write) -> dict[str, Any]:
    given = {each.name: getattr(write, each.name) for each in fields(write)} | {
        "key": names(write.key) or None,
        "order_by": names(write.order_by) or None,
        "partition": write.partition or None,
        "content": None if write.content is None else names(write.content),
    }
    named_here = {"view", "sink", "app_id", "version"}
    options: dict[str, Any] = {
        name: value for name, value in given.items() if name not in named_here and value is not None
    }
    if write.version is not None:
        name, version = pipeline.application_of(write), whole_number(write.version)
        options |= {"app_id": name, "version": version}
    elif write.app_id is not None and not pipeline.incremental:
        options["app_id"] = write.app_id
    return options


class _Running:
    """One run and its counts."""

    def __init__(
        self,
        pipeline: Declared,
        on_report: Callable[[SparkWriteReport], object] | None,
        stop: Event | None,
    ) -> None:
        self.report = PipelineReport(name=pipeline.name)
        self._pipeline = pipeline
        self._on_report = on_report
        self._stop = stop
        self._error: BaseException | None = None

    def count(self, report: SparkWriteReport) -> None:
        """Add the report of a write."""
        self.report = self.report.after(report)
        if self._on_report is not None:
            self._on_report(report)

    def batch(
        self,
        made: Mapping[str, DataFrame],
        sinks: Mapping[Path, Sink[Any]],
        progress: Mapping[Path, Progress | None],
    ) -> None:
        """Make these writes, in order, unless the stop request comes before one begins.

        The progress of each is stored with it.
        """
        try:
            for path, progressed in progress.items():
                write, sink = self._pipeline.writes[path], sinks[path]
                df, options = made[write.view], _options(self._pipeline, write)
                with stoppable(self._stop), ExitStack() as around:
                    if progressed is not None:
                        is_atomic = write.delivery == "atomic"
                        if is_atomic or names(write.key):
                            options["app_id"] = progressed.application
                            options["version"] = progressed.version
                        around.enter_context(moving(sink, progressed, is_atomic=is_atomic))
                    self.count(write_dataframe(df, sink, **options))
        except WriteStopped:
            return

    def stream(self, made: Mapping[str, DataFrame], sinks: Mapping[Path, Sink[Any]]) -> None:
        """Write micro-batches until the stream ends or the stop request comes."""
        stream, stop = self._pipeline.stream, self._stop
        assert stream is not None
        trigger: dict[str, Any] = (
            {"availableNow": True}
            if stream.trigger == AVAILABLE_NOW
            else {"processingTime": stream.trigger}
        )
        writes = self._pipeline.writes
        df = made[next(iter(writes.values())).view]
        functions = [
            foreach_batch(sinks[path], on_report=self.count, **_options(self._pipeline, write))
            for path, write in writes.items()
        ]

        def write_or_tell(rows: DataFrame, number: int) -> None:
            try:
                with stoppable(stop):
                    if len(functions) > 1:
                        rows.persist()
                    for write in functions:
                        write(rows, number)
            except BaseException as error:
                self._error = error  # Spark keeps only the text of the error
                raise
            finally:
                if len(functions) > 1:
                    rows.unpersist()

        writer: Any = (
            df.writeStream.queryName(self._pipeline.name)
            .outputMode(stream.output_mode)
            .foreachBatch(write_or_tell)
        )
        writer = writer.option("checkpointLocation", stream.checkpoint).trigger(**trigger)
        with _metrics(self._pipeline, stream.metrics, df.sparkSession):
            self._follow(writer.start())

    def _follow(self, query: Any) -> None:
        """Wait until the query ends or the stop request comes."""
        stop = self._stop
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


@contextmanager
def _metrics(pipeline: Declared, address: str | None, spark: SparkSession) -> Iterator[None]:
    """Serve the metrics of the queries of a session."""
    if address is None:
        yield
        return
    listener = PrometheusQueryListener()
    host, _, port = address.rpartition(":")
    with ExitStack() as served:
        try:
            served.enter_context(serving_metrics(host.strip("[]"), int(port)))
        except (OSError, OverflowError) as error:
            mistake = Mistake(("stream", "metrics"), f"cannot listen at {address}: {error}")
            raise PipelineError(pipeline.with_file([mistake])) from error
        spark.streams.addListener(listener)
        try:
            yield
        finally:
            spark.streams.removeListener(listener)
            listener.forget()
