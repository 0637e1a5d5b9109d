"""All checks of a pipeline that are possible before Spark starts.

The SQL of a step is parsed by sqlglot.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..._core import checks
from ..._core.errors import ConfigError
from ..._core.extras import need
from ..._core.positions import destination_of
from ..._core.staging import HasStages, check_staging
from ..._core.transaction import check_transactional
from ..destination import scattered_by
from ..java import setting
from .declaration import Mistake, Source, Write, names, suggest
from .reading import Environment
from .sinks import SinkMaker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from ..._core.sink import Sink
    from .declaration import Declared, Incremental, Path, Step

_SECTIONS = ("name", "registry", "spark", "stream", "sources", "steps", "write", "sinks")
"""The tables in the order of a file."""
FILES = frozenset({"csv", "json", "orc", "parquet", "text"})
_UNTYPED = frozenset({"csv", "json"})
_TYPED_IN_STREAMS = FILES - {"text"}
AVAILABLE_NOW = "available_now"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTERVAL = re.compile(r"\d+(\.\d+)?\s+(microsecond|millisecond|second|minute|hour|day|week)s?")
_ADDRESS = re.compile(r"[^\s/]+:\d{1,5}")
_KAFKA_TOPICS = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True)
class Checked:
    """A pipeline with its references resolved, and the findings."""

    pipeline: Declared
    environment: Environment
    mistakes: tuple[Mistake, ...]


def check(
    declared: Declared,
    variables: Mapping[str, str],
    known: Sequence[Mistake],
    session: SparkSession | None = None,
) -> Checked:
    """Check everything. `known` are the mistakes found by reading; no further mistakes are added to
    their paths. Settings are those of the session, by default the active one.
    """
    environment = Environment(variables, partial(setting, given=session))
    unset: list[Mistake] = []
    pipeline = environment.resolve(declared, unset)
    found = _Check(pipeline)
    found.run()
    silent = {mistake.path for mistake in (*known, *unset)}
    more = [
        Mistake(each.path, environment.hide(each.text))
        for each in found.mistakes
        if each.path not in silent
    ]
    mistakes = dict.fromkeys(sorted([*known, *unset, *more], key=_section))
    return Checked(pipeline, environment, tuple(mistakes))


def _section(mistake: Mistake) -> int:
    table = mistake.path[0] if mistake.path else "name"
    return _SECTIONS.index(table) if table in _SECTIONS else 0


class _Check:
    def __init__(self, pipeline: Declared) -> None:
        self.mistakes: list[Mistake] = []
        self._pipeline = pipeline
        self._readings: dict[str, Reading] = {}
        self._at: Path = ()
        """The path of the write in hand."""
        self._write = next(iter(pipeline.writes.values()), Write(view="", sink=""))

    def run(self) -> None:
        self._check_views()
        for name, source in self._pipeline.sources.items():
            self._check_source(source, ("sources", name))
        self._check_steps()
        for path, write in self._pipeline.writes.items():
            self._at, self._write = path, write
            self._check_write()
        self._check_several()
        self._check_sinks()
        self._check_stream()

    def _report(self, path: Path, text: str) -> None:
        self.mistakes.append(Mistake(path, text))

    def _check_views(self) -> None:
        pipeline = self._pipeline
        if not pipeline.name.strip():
            self._report(("name",), "must not be empty")
        for table in ("sources", "sinks"):
            if not getattr(pipeline, table):
                self._report((table,), "must have at least one")
        for path in [
            (table, name) for table in ("sources", "steps") for name in getattr(pipeline, table)
        ]:
            if not _NAME.fullmatch(path[1]):
                self._report(
                    path,
                    "is not a valid view name: letters, digits and underscores, not starting with a digit",
                )
        spelled = Counter(name.lower() for name in (*pipeline.sources, *pipeline.steps))
        for name in pipeline.steps:
            if spelled[name.lower()] > 1:
                self._report(
                    ("steps", name),
                    "there is another view of this name; names are compared without case",
                )

    def _check_source(self, source: Source, path: Path) -> None:
        needs_path = source.format in FILES or source.format == "table"
        if not source.format:
            self._report((*path, "format"), "must not be empty")
        if needs_path and not any(names(source.path)):
            self._report((*path, "path"), f"is missing, and {source.format} needs it")
        if source.format == "kafka":
            self._check_kafka(source, path)
        elif source.value is not None:
            self._report((*path, "value"), "has no meaning here: only kafka has values")
        if source.debezium and source.value is None:
            self._report((*path, "debezium"), "needs value")
        streams = self._pipeline.stream is not None and not source.static
        if len(names(source.path)) > 1 and (streams or source.format == "table"):
            self._report((*path, "path"), "must be a single path here")
        if source.schema is None and source.format in (_TYPED_IN_STREAMS if streams else _UNTYPED):
            self._report(
                (*path, "schema"),
                f"is missing: {source.format} {'in a stream ' if streams else ''}does not "
                "define its columns",
            )
        if source.static and self._pipeline.stream is None:
            self._report((*path, "static"), "has no meaning without [stream]")
        if source.incremental is not None:
            self._check_incremental(source, source.incremental, (*path, "incremental"))
        self._late_and_double(source, path)

    def _check_incremental(self, source: Source, given: Incremental, path: Path) -> None:
        if self._pipeline.stream is not None:
            self._report(path, "has no meaning in a stream, whose checkpoint has its position")
        if (given.column is None) == (not given.files):
            self._report(path, "must have either column or files = true")
        if given.files and source.format not in FILES:
            self._report((*path, "files"), f"needs one of {', '.join(sorted(FILES))}")
        if given.until is not None and given.column is None:
            self._report((*path, "until"), "has no meaning without column")

    def _check_kafka(self, source: Source, path: Path) -> None:
        if "kafka.bootstrap.servers" not in source.options:
            self._report(
                (*path, "options", "kafka.bootstrap.servers"), "is missing, and kafka needs it"
            )
        if sum(name in source.options for name in _KAFKA_TOPICS) != 1:
            self._report((*path, "options"), f"must have one of {', '.join(_KAFKA_TOPICS)}")
        if (source.schema is None) != (source.value is None):
            text = "goes with schema: value = 'json' or 'avro', and the columns of the values"
            self._report((*path, "value"), text)
        if source.value == "avro" and self._pipeline.registry is None:
            self._report(("registry",), "is missing, and value = 'avro' needs it")

    def _late_and_double(self, view: Source | Step, path: Path) -> None:
        if view.watermark is not None:
            if self._pipeline.stream is None:
                self._report((*path, "watermark"), "has no meaning without [stream]")
            if not _INTERVAL.fullmatch(view.watermark.delay.strip()):
                self._report(
                    (*path, "watermark", "delay"),
                    f"{view.watermark.delay!r} is not a duration such as '10 minutes'",
                )
        elif (
            names(view.dedupe)
            and self._pipeline.stream is not None
            and not (isinstance(view, Source) and view.static)
        ):
            self._report(
                (*path, "dedupe"),
                "needs a watermark in a stream, which otherwise must remember every row forever",
            )

    def _check_steps(self) -> None:
        seen: dict[str, str] = {name.lower(): name for name in self._pipeline.sources}
        for name, step in self._pipeline.steps.items():
            path = ("steps", name)
            if not step.sql.strip():
                self._report((*path, "sql"), "must not be empty")
            elif not step.unchecked:
                self._readings[name] = reading = read_select(step.sql)
                self._reading(name, reading, seen)
            self._late_and_double(step, path)
            seen[name.lower()] = name

    def _reading(self, name: str, reading: Reading, seen: Mapping[str, str]) -> None:
        path = ("steps", name, "sql")
        if reading.fault:
            self._report(path, reading.fault)
        steps = {step.lower() for step in self._pipeline.steps}
        for view in reading.views:
            if view.lower() in seen:
                continue
            if view.lower() in steps:
                self._report(path, f"reads {view}, but a step reads only views before it")
            else:
                self._report(
                    path, f"reads {view}, but there is no such view; {suggest(view, seen.values())}"
                )

    def _check_write(self) -> None:
        write = self._write
        self._check_ends()
        if not names(write.key):
            self._check_without_key()
        elif write.latest_only and not names(write.order_by):
            self._report(
                (*self._at, "latest_only"), "needs order_by, which defines the last row of a key"
            )
        self._check_level()
        self._check_version()
        self._check_write_columns()
        self._check_numbers()

    def _check_ends(self) -> None:
        pipeline, write = self._pipeline, self._write
        views = [*pipeline.sources, *pipeline.steps]
        if write.view.lower() not in {view.lower() for view in views}:
            self._report(
                (*self._at, "view"),
                f"there is no view {write.view!r}; {suggest(write.view, views)}",
            )
        if write.sink not in pipeline.sinks:
            text = f"there is no sink {write.sink!r}; {suggest(write.sink, pipeline.sinks)}"
            self._report((*self._at, "sink"), text)

    def _check_without_key(self) -> None:
        write = self._write
        for name in ("order_by", "buckets"):
            if getattr(write, name):
                self._report((*self._at, name), "has no meaning without key")
        if write.latest_only:
            self._report((*self._at, "latest_only"), "has no meaning without key and order_by")
        if write.on_key_failure != "skip":
            self._report((*self._at, "on_key_failure"), "has no meaning without key")
        is_plain = write.delivery != "atomic" and not self._pipeline.incremental
        for name in ("app_id", "version") if is_plain else ():
            if getattr(write, name) is not None:
                self._report(
                    (*self._at, name), "has no meaning without key: only buckets of keys have names"
                )
        if write.delivery == "bucket":
            self._report(
                (*self._at, "delivery"), "'bucket' needs key: its ledger counts buckets of keys"
            )

    def _check_level(self) -> None:
        write = self._write
        if write.mode == "overwrite" and write.delivery != "atomic":
            self._report(
                (*self._at, "mode"),
                "'overwrite' needs delivery = 'atomic': readers would see a partly filled table",
            )
        is_plain = write.delivery == "at_least_once"
        if write.content is not None and is_plain and not self._has_names():
            self._report(
                (*self._at, "content"),
                "has no meaning here: repeated rows are recognized only with a key, and a version or "
                "a stream",
            )

    def _has_names(self) -> bool:
        """Whether repeated batches have the same names."""
        return bool(names(self._write.key or ())) and (
            self._pipeline.stream is not None or self._write.version is not None
        )

    def _check_version(self) -> None:
        write, is_stream = self._write, self._pipeline.stream is not None
        is_plain = write.delivery == "at_least_once"
        if self._pipeline.incremental:
            self._check_incremental_write()
        elif is_stream and write.version is not None:
            self._report(
                (*self._at, "version"),
                "cannot be set in a stream: it is the number of the micro-batch",
            )
        elif write.version is None and not is_stream and (not is_plain or write.app_id is not None):
            needs = "app_id" if is_plain else f"delivery = {write.delivery!r}"
            self._report(
                (*self._at, "version"),
                f"is missing, and {needs} needs it: it distinguishes a repeated write from the next",
            )
        elif write.version is not None and whole_number(write.version) is None:
            self._report(
                (*self._at, "version"), f"{write.version!r} is not a whole number of at least 0"
            )

    def _check_incremental_write(self) -> None:
        write = self._write
        if write.version is not None:
            text = "cannot be set with an incremental source: the runs are numbered"
            self._report((*self._at, "version"), text)
        if write.delivery == "bucket":
            self._report(
                (*self._at, "delivery"),
                "cannot be 'bucket' with an incremental source: a position commits with all rows "
                "('atomic') or after them ('at_least_once')",
            )
        if write.mode == "overwrite":
            text = "cannot be 'overwrite' with an incremental source: a run has only the new rows"
            self._report((*self._at, "mode"), text)

    def _check_write_columns(self) -> None:
        columns = self._out()
        if columns is None:
            return
        known = {column.lower() for column in columns}
        for name in ("key", "order_by", "content"):
            for column in names(getattr(self._write, name) or ()):
                if column.lower() not in known:
                    text = f"{self._write.view} has no column {column!r}; "
                    self._report((*self._at, name), text + suggest(column, columns))

    def _check_numbers(self) -> None:
        counted: Iterable[tuple[str, Callable[[str, object], object]]] = [
            *(
                (name, checks.optional_count)
                for name in ("buckets", "chunk_rows", "chunk_bytes", "max_in_flight", "max_tasks")
            ),
            *(
                (name, lambda name, value: checks.optional_count(name, value, least=0))
                for name in ("max_dead_letters", "unit_buffer_bytes")
            ),
            ("patience", partial(checks.optional_seconds, usual=checks.LONG_PERIOD)),
        ]
        for name, rule in counted:
            try:
                rule(name, getattr(self._write, name))
            except ConfigError as error:
                self._report((*self._at, name), str(error))

    def _out(self) -> tuple[str, ...] | None:
        """The written columns, if the SQL names them."""
        reading = self._readings.get(self._write.view)
        return None if reading is None or reading.fault else reading.columns

    def _check_several(self) -> None:
        """Check the rules that concern more than one write."""
        writes = self._pipeline.writes
        if not writes:
            self._report(("write",), "must have at least one")
        if self._pipeline.stream is not None and len({each.view for each in writes.values()}) > 1:
            self._report(
                ("write",), "must write one view in a stream, into several sinks if needed"
            )
        named: dict[tuple[str, str], Path] = {}
        for path, write in writes.items():
            name = (self._pipeline.application_of(write), write.sink)
            if name in named:
                text = f"{write.sink!r} has a write of this name already; set another one"
                self._report((*path, "app_id"), text)
            named[name] = path

    def _check_sinks(self) -> None:
        declared = self._pipeline.sinks
        written = {write.sink for write in self._pipeline.writes.values()}
        columns = None
        for path, write in self._pipeline.writes.items():
            self._at, self._write = path, write
            columns, key = self._out(), names(write.key)
            maker = SinkMaker(declared, columns, self.mistakes, key=key)
            if write.sink in declared:
                self._check_sink(maker.make(write.sink))
        columns = columns if len(written) == 1 else None
        maker = SinkMaker(declared, columns, self.mistakes)
        for name in declared:
            if name not in written:
                maker.make(name)

    def _check_sink(self, sink: Sink[Any] | None) -> None:
        write = self._write
        if names(write.key) and (reason := scattered_by(sink)) is not None:
            self._report((*self._at, "key"), f"cannot be kept in order: {reason}")
        keeps = isinstance(destination_of(sink), HasStages)
        if sink is not None and self._pipeline.incremental and not keeps:
            rule = "cannot store the position of an incremental source; use a postgres sink"
            self._report((*self._at, "sink"), f"{write.sink!r} {rule}")
        if sink is not None and write.delivery != "at_least_once":
            try:
                check_staging(sink) if write.delivery == "atomic" else check_transactional(sink)
            except ConfigError as error:
                self._report((*self._at, "delivery"), f"{write.delivery!r} cannot be kept: {error}")

    def _check_stream(self) -> None:
        stream, pipeline = self._pipeline.stream, self._pipeline
        if stream is None:
            return
        if not stream.checkpoint.strip():
            self._report(("stream", "checkpoint"), "must not be empty")
        if stream.trigger != AVAILABLE_NOW and not _INTERVAL.fullmatch(stream.trigger.strip()):
            self._report(
                ("stream", "trigger"),
                f"{stream.trigger!r} is neither a duration such as '10 seconds' nor "
                f"'{AVAILABLE_NOW}'",
            )
        if stream.metrics is not None and not _ADDRESS.fullmatch(stream.metrics):
            text = f"{stream.metrics!r} is not HOST:PORT, such as '127.0.0.1:9464'"
            self._report(("stream", "metrics"), text)
        if pipeline.sources and all(source.static for source in pipeline.sources.values()):
            self._report(("sources",), "all are static: there is nothing to stream")


def shared_views(pipeline: Declared) -> set[str]:
    """Return the views that several writes or steps read, to be computed once.

    If a step is unchecked, the sources: what it reads is not known.
    """
    if len(pipeline.writes) == 1:
        return set()
    if any(step.unchecked for step in pipeline.steps.values()):
        return set(pipeline.sources)
    read = [view for step in pipeline.steps.values() for view in read_select(step.sql).views]
    used = Counter(each.lower() for each in (*read, *(w.view for w in pipeline.writes.values())))
    return {name for name in (*pipeline.sources, *pipeline.steps) if used[name.lower()] > 1}


def whole_number(version: int | str) -> int | None:
    """Return the version as a number; `None` if it is not a whole number of at least 0."""
    text = str(version)
    return int(text) if text.isascii() and text.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Reading:
    """The properties of one step's SELECT."""

    views: tuple[str, ...] = ()
    """The unqualified names of the views that it reads."""
    columns: tuple[str, ...] | None = None
    """The columns of the result; `None` if it has a star."""
    fault: str = ""
    """The reason why the SQL is not one SELECT."""


def read_select(sql: str) -> Reading:
    """Read one SELECT. Raises `MissingExtra` without sqlglot."""
    need("sqlglot", "pipeline", "the check of a pipeline")
    from sqlglot import exp, parse
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.scope import traverse_scope

    try:
        statements = [
            statement for statement in parse(sql, dialect="spark") if statement is not None
        ]
        if len(statements) != 1 or not isinstance(statements[0], exp.Query):
            return Reading(
                fault="must be one SELECT, but is "
                f"{_describe_statements([type(each).__name__ for each in statements])}"
            )
        query = statements[0]
        tables = [
            table
            for scope in traverse_scope(query)
            for table in scope.sources.values()
            if isinstance(table, exp.Table)
        ]
    except SqlglotError as error:
        return Reading(
            fault=f"cannot be read as SQL: {str(error).splitlines()[0]} (if Spark accepts "
            "it anyway, set unchecked = true)"
        )
    names = dict.fromkeys(table.name for table in tables if table.name and not table.db)
    return Reading(tuple(names), None if query.is_star else tuple(query.named_selects))


def _describe_statements(kinds: list[str]) -> str:
    return {0: "empty", 1: f"another kind of statement ({''.join(kinds).upper()})"}.get(
        len(kinds), f"{len(kinds)} statements"
    )
