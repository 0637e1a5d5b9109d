"""The pipeline: sources, SQL, order per key and stacks of sinks, checked before Spark starts."""

from __future__ import annotations

import os
import re
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path as File
from typing import TYPE_CHECKING, cast

from ..._core.extras import need
from .check import Checked, check
from .declaration import (
    Declared,
    Destination,
    Incremental,
    Layer,
    Mistake,
    PipelineError,
    Source,
    Step,
    Write,
    names,
)
from .reading import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from threading import Event

    from pyspark.sql import SparkSession

    from ..report import PipelineReport, SparkWriteReport


_SECRET = re.compile(
    r"auth|client$|client_options|config|connect_options|credential|dsn|engine_options|headers|jaas|key$|nkeys|params|password|secret|servers|token|url",
    re.IGNORECASE,
)
_NOT_SECRET = {("kafka", "key"), ("kafka", "headers"), ("nats", "headers")}
"""The arguments, by kind, that name columns."""
_REFERENCE = re.compile(r"\$\{[^}]*\}|env:\w+")
_DELIVERY = {
    "at_least_once": "at least once: a repeated attempt writes again",
    "bucket": "exactly once per bucket of keys: each commits with its row in a ledger",
    "atomic": "all rows at once, or none",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Declared):
    """Rows from `sources` through `steps` into a sink. A description only: making one does nothing.

    Declare it in Python with these dataclasses, or in a file for `Pipeline.read`. `mistakes` finds
    all mistakes together, before Spark starts.
    """

    @classmethod
    def read(cls, file: str | os.PathLike[str]) -> Pipeline:
        """Read the pipeline that a TOML file declares. Reads the environment only after a mistake.

        Raises `PipelineError` with all mistakes for a file that does not have the form of a
        pipeline, with the line for one that is not TOML, `OSError` for a file that cannot be read,
        and `MissingExtra` without msgspec.
        """
        text = File(file).read_text(encoding="utf-8")
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise PipelineError([Mistake((), f"is not valid TOML: {error}", str(file))]) from error
        need("msgspec", "pipeline", "Pipeline.read")
        mistakes: list[Mistake] = []
        made = read(cls, tables, mistakes)
        placed = replace(made, _file=str(file))
        if mistakes:
            raise PipelineError(placed.with_file(check(placed, os.environ, mistakes).mistakes))
        return placed

    def mistakes(self, environment: Mapping[str, str] | None = None) -> tuple[Mistake, ...]:
        """Find all mistakes without Spark or Java; every sink is constructed, and none is opened.

        Args:
            environment: the variables for `${NAME}`; default: those of the process.
        """
        return self.with_file(self._check(environment).mistakes)

    def doubts(self, environment: Mapping[str, str] | None = None) -> tuple[Mistake, ...]:
        """Possible mistakes, and parts that could not be checked."""
        return self.with_file(self._check(environment).doubts)

    def validate(self, environment: Mapping[str, str] | None = None) -> None:
        """Raise `PipelineError` if there are mistakes."""
        found = self.mistakes(environment)
        if found:
            raise PipelineError(found)

    def explain(self) -> str:
        """Describe a run step by step. References are not resolved, and secrets are not shown."""
        return "\n".join(_lines(self))

    def plan(
        self, spark: SparkSession | None = None, *, environment: Mapping[str, str] | None = None
    ) -> str:
        """Validate, have Spark analyse every step, and return its plan as text. Nothing is read.

        Args:
            spark: the session; default: a new one, stopped at the end.
            environment: the variables for `${NAME}`; default: those of the process.

        Raises `PipelineError`, including for steps that Spark refuses, and `MissingExtra` without
        PySpark.
        """
        from .run import plan

        checked = self._sound(environment)
        return checked.environment.hide(plan(checked, spark))

    def without_secrets(self, text: str, environment: Mapping[str, str] | None = None) -> str:
        """Replace the values of the pipeline's variables in `text` by their references."""
        return self._check(environment).environment.hide(text)

    def run(
        self,
        spark: SparkSession | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        on_report: Callable[[SparkWriteReport], object] | None = None,
        stop: Event | None = None,
        progress: bool | None = None,
        since: str | None = None,
    ) -> PipelineReport:
        """Validate, then read, transform and write; return the counts.

        Blocks until the write is done or the stream ends.

        Args:
            spark: the session to run on, which stays open; default: a new one by `[spark]`, stopped
                at the end.
            environment: the variables for `${NAME}`; default: those of the process.
            on_report: called with the report of each write; in a stream, of each micro-batch.
            stop: ends a stream when set, after the current micro-batch. A write whose sink is still
                being opened on the driver ends immediately, and writes nothing.
            progress: whether a bar shows the progress of a write; default: on a terminal and in a
                notebook.
            since: read the rows of incremental sources above this value, or the files changed after
                this time, instead of those after the stored position, which then moves on as usual.

        Raises `PipelineError` before anything starts, `MissingExtra` without PySpark, and the
        errors of `write_dataframe`.
        """
        from .run import run

        return run(
            self._sound(environment),
            spark,
            on_report=on_report,
            stop=stop,
            progress=progress,
            since=since,
        )

    def dry_run(
        self,
        spark: SparkSession | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        since: str | None = None,
    ) -> str:
        """Return how many rows a run would read and write, as text; the rows are read and counted.

        Takes the arguments of `run`. Writes nothing, and creates no table.
        """
        from .run import dry_run

        return dry_run(self._sound(environment), spark, since)

    def _sound(self, environment: Mapping[str, str] | None) -> Checked:
        checked = self._check(environment)
        if checked.mistakes:
            raise PipelineError(self.with_file(checked.mistakes))
        return checked

    def _check(self, environment: Mapping[str, str] | None) -> Checked:
        need("msgspec", "pipeline", "the check of a pipeline")
        mistakes: list[Mistake] = []
        made = replace(read(type(self), self, mistakes), _file=self._file)
        return check(made, os.environ if environment is None else environment, mistakes)


def _lines(pipeline: Declared) -> Iterator[str]:
    stream = pipeline.stream
    if stream is None:
        yield f"{pipeline.name}: reads the available rows once"
    else:
        when = (
            "reads the available rows, then ends"
            if stream.trigger == "available_now"
            else f"every {stream.trigger}"
        )
        yield f"{pipeline.name}: a stream, {when}; stores its position in {stream.checkpoint}"
    for name, source in pipeline.sources.items():
        yield f"  read    {name}: {_source(source)}"
        if source.incremental is not None:
            yield f"          {_incremental(source.incremental)}"
        yield from _late_and_double(source)
    for name, step in pipeline.steps.items():
        yield f"  select  {name}:"
        yield textwrap.indent(textwrap.dedent(step.sql).strip(), " " * 12)
        yield from _late_and_double(step)
    for write in pipeline.writes.values():
        yield from _write(pipeline, write)
    for name, sink in pipeline.sinks.items():
        yield f"  sink    {name}: {_sink(sink)}"
        yield from _at_most_once(sink)
        for layer in sink.stack if isinstance(sink, Destination) else ():
            yield f"          in {_sink(layer)}"


def _source(source: Source) -> str:
    where = f" from {', '.join(names(source.path))}" if names(source.path) else ""
    options = f" ({_arguments(source.options)})" if source.options else ""
    schema = f", as {' '.join(source.schema.split())}" if source.schema else ""
    return f"{source.format}{where}{options}{schema}{', once' if source.static else ''}"


def _incremental(given: Incremental) -> str:
    if given.files:
        return "only files that no earlier run has read"
    until = f", up to {given.until}" if given.until else ""
    return f"only rows with {given.column} above that of the last run{until}"


def _late_and_double(view: Source | Step) -> Iterator[str]:
    if view.watermark is not None:
        yield f"          rows may be {view.watermark.delay} late by {view.watermark.column}"
    if names(view.dedupe):
        yield f"          one row for each {', '.join(names(view.dedupe))}"


def _write(pipeline: Declared, write: Write) -> Iterator[str]:
    yield (
        f"  write   {write.view} to "
        f"{write.sink}{', in place of the existing rows' if write.mode == 'overwrite' else ''}, "
        f"{_DELIVERY[write.delivery]}"
    )
    if names(write.key):
        order = (
            f", in the order of {', '.join(names(write.order_by))}" if names(write.order_by) else ""
        )
        yield f"          rows of one {', '.join(names(write.key))} by one task{order}"
        if write.latest_only:
            yield f"          only the last row of each {', '.join(names(write.key))}"
    if pipeline.incremental:
        when = "with the rows" if write.delivery == "atomic" else "after the rows"
        yield f"          the position as {pipeline.application_of(write)!r}, stored there {when}"


def _at_most_once(sink: object) -> Iterator[str]:
    if not isinstance(sink, Destination):
        return
    if sink.kind == "udp":
        yield "          at most once: the arrival of a datagram is unknown"


def _sink(declared: object) -> str:
    if not isinstance(declared, (Destination, Layer)):
        return repr(declared)
    return f"{declared.kind}({_arguments(declared.arguments, declared.kind)})"


def _arguments(given: Mapping[str, object], kind: str = "") -> str:
    return ", ".join(f"{name}={_value(name, value, kind)}" for name, value in given.items())


def _value(name: str, value: object, kind: str) -> str:
    """Format the value; for an argument that may be secret, only a reference."""
    if _SECRET.search(name) and (kind, name) not in _NOT_SECRET:
        return value if isinstance(value, str) and _REFERENCE.fullmatch(value) else "..."
    if isinstance(value, Mapping):
        return f"{{{_arguments(cast('Mapping[str, object]', value))}}}"
    return repr(value)
