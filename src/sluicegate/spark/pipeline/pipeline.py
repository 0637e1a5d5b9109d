"""The pipeline: sources, SQL, order per key and stacks of sinks, checked before Spark starts."""

from __future__ import annotations

import os
import re
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path as File
from typing import TYPE_CHECKING, NamedTuple, cast

from ..._core.extras import need
from ..._core.public import publish
from .check import Checked, check, read_select
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
    format_path,
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
        and `MissingExtra` without msgspec or sqlglot.
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

        checked = self._sound(environment, spark)
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
            since: read the rows of incremental sources above this value, or the files changed after
                this time, instead of those after the stored position, which then moves on as usual.

        Raises `PipelineError` before anything starts, `MissingExtra` without PySpark, and the
        errors of `write_dataframe`.
        """
        from .run import run

        return run(
            self._sound(environment, spark),
            spark,
            on_report=on_report,
            stop=stop,
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

        return dry_run(self._sound(environment, spark), spark, since)

    def _sound(self, environment: Mapping[str, str] | None, spark: SparkSession | None) -> Checked:
        checked = self._check(environment, spark)
        if checked.mistakes:
            raise PipelineError(self.with_file(checked.mistakes))
        return checked

    def _check(
        self, environment: Mapping[str, str] | None, spark: SparkSession | None = None
    ) -> Checked:
        need("msgspec", "pipeline", "the check of a pipeline")
        mistakes: list[Mistake] = []
        made = replace(read(type(self), self, mistakes), _file=self._file)
        return check(made, os.environ if environment is None else environment, mistakes, spark)


publish("sluicegate.spark", Pipeline)


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
    nodes = {name: _source(name, source) for name, source in pipeline.sources.items()}
    nodes |= {name: _step(name, step) for name, step in pipeline.steps.items()}
    writes = pipeline.writes.items()
    nodes |= {f"to {format_path(path)}": _write(pipeline, each) for path, each in writes}
    seen: set[str] = set()
    for name in nodes:
        if name not in seen:
            yield from _draw(name, nodes, seen)
    for name, sink in pipeline.sinks.items():
        yield f"  sink    {name}: {_sink(sink)}"
        for layer in sink.stack if isinstance(sink, Destination) else ():
            yield f"          in {_sink(layer)}"


class _Node(NamedTuple):
    """A view or a write: its lines, and what it reads, in lower case."""

    title: str
    details: list[str]
    reads: set[str]


def _draw(
    name: str, nodes: Mapping[str, _Node], seen: set[str], lead: str = "", rest: str = ""
) -> Iterator[str]:
    """Draw a view above everything that reads it; a view that is drawn already, as its name."""
    node = nodes[name]
    if name in seen:
        yield f"{lead}{node.title.partition(':')[0]}: see above"
        return
    seen.add(name)
    yield lead + node.title
    readers = [each for each in nodes if name.lower() in nodes[each].reads]
    for line in node.details:
        yield f"{rest}{'│' if readers else ' '}    {line}"
    for place, reader in enumerate(readers, 1):
        corner, below = ("└─ ", "   ") if place == len(readers) else ("├─ ", "│  ")
        yield from _draw(reader, nodes, seen, rest + corner, rest + below)


def _source(name: str, source: Source) -> _Node:
    where = f" from {', '.join(names(source.path))}" if names(source.path) else ""
    options = f" ({_arguments(source.options)})" if source.options else ""
    schema = f", as {' '.join(source.schema.split())}" if source.schema else ""
    values = f", values in {source.value}" if source.value else ""
    events = ", change events of Debezium" if source.debezium else ""
    once = ", once" if source.static else ""
    details = [] if source.incremental is None else [_incremental(source.incremental)]
    details += _late_and_double(source)
    title = f"read {name}: {source.format}{where}{options}{values}{events}{schema}{once}"
    return _Node(title, details, set())


def _step(name: str, step: Step) -> _Node:
    sql = textwrap.dedent(step.sql).strip().splitlines()
    views = re.findall(r"\w+", step.sql) if step.unchecked else read_select(step.sql).views
    reads = {each.lower() for each in views}
    return _Node(f"select {name}:", [*sql, *_late_and_double(step)], reads)


def _incremental(given: Incremental) -> str:
    if given.files:
        return "only files that no earlier run has read"
    until = f", up to {given.until}" if given.until else ""
    return f"only rows with {given.column} above that of the last run{until}"


def _late_and_double(view: Source | Step) -> Iterator[str]:
    if view.watermark is not None:
        yield f"rows may be {view.watermark.delay} late by {view.watermark.column}"
    if names(view.dedupe):
        yield f"one row for each {', '.join(names(view.dedupe))}"


def _write(pipeline: Declared, write: Write) -> _Node:
    instead = ", in place of the existing rows" if write.mode == "overwrite" else ""
    details: list[str] = []
    if names(write.key):
        order = (
            f", in the order of {', '.join(names(write.order_by))}" if names(write.order_by) else ""
        )
        details.append(f"rows of one {', '.join(names(write.key))} by one task{order}")
        if write.latest_only:
            details.append(f"only the last row of each {', '.join(names(write.key))}")
    if pipeline.incremental:
        when = "with the rows" if write.delivery == "atomic" else "after the rows"
        name = pipeline.application_of(write)
        details.append(f"the position as {name!r}, stored there {when}")
    title = f"write to {write.sink}{instead}, {_DELIVERY[write.delivery]}"
    return _Node(title, details, {write.view.lower()})


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
