"""All checks of a pipeline that are possible before Spark starts."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..._core.errors import ConfigError
from ..._core.extras import missing
from ..._core.staging import check_staging
from ..._core.transaction import check_transactional
from ..destination import scattered_by
from .check_write import WriteCheck
from .declaration import Source, names
from .environment import Environment
from .mistakes import Mistake, meant
from .sinks import SinkMaker
from .sql import Reading, can_read, read_select

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .declaration import Declared, Step
    from .mistakes import Path

FILES = frozenset({"csv", "json", "orc", "parquet", "text"})
_UNTYPED = frozenset({"csv", "json"})
_TYPED_IN_STREAMS = FILES - {"text"}
AVAILABLE_NOW = "available_now"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTERVAL = re.compile(r"\d+(\.\d+)?\s+(microsecond|millisecond|second|minute|hour|day|week)s?")
_KAFKA_TOPICS = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True)
class Checked:
    """A pipeline with its references resolved, and the findings."""

    pipeline: Declared
    environment: Environment
    mistakes: tuple[Mistake, ...]
    doubts: tuple[Mistake, ...]


def check(declared: Declared, variables: Mapping[str, str], known: Sequence[Mistake]) -> Checked:
    """Check everything. `known` are the mistakes found by reading; no further mistakes are added to
    their paths.
    """
    environment = Environment(variables)
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
    doubts = tuple(Mistake(each.path, environment.hide(each.text)) for each in found.doubts)
    return Checked(pipeline, environment, tuple(dict.fromkeys([*known, *unset, *more])), doubts)


class _Check:
    def __init__(self, pipeline: Declared) -> None:
        self.mistakes: list[Mistake] = []
        self.doubts: list[Mistake] = []
        self._pipeline = pipeline
        self._readings: dict[str, Reading] = {}

    def run(self) -> None:
        self._views()
        for name, source in self._pipeline.sources.items():
            self._source(source, ("sources", name))
        self._steps()
        WriteCheck(self._pipeline, self._out(), self._say).run()
        self._sinks()
        self._stream()
        self._unused()

    def _say(self, path: Path, text: str) -> None:
        self.mistakes.append(Mistake(path, text))

    def _views(self) -> None:
        pipeline = self._pipeline
        if not pipeline.name.strip():
            self._say(("name",), "must not be empty")
        for table in ("sources", "sinks"):
            if not getattr(pipeline, table):
                self._say((table,), "must have at least one")
        for path in [
            (table, name) for table in ("sources", "steps") for name in getattr(pipeline, table)
        ]:
            if not _NAME.fullmatch(path[1]):
                self._say(
                    path,
                    "is not a valid view name: letters, digits and underscores, not starting with a digit",
                )
        spelled = Counter(name.lower() for name in (*pipeline.sources, *pipeline.steps))
        for name in pipeline.steps:
            if spelled[name.lower()] > 1:
                self._say(
                    ("steps", name),
                    "there is another view of this name; names are compared without case",
                )

    def _source(self, source: Source, path: Path) -> None:
        needs_path = source.format in FILES or source.format == "table"
        if not source.format:
            self._say((*path, "format"), "must not be empty")
        if needs_path and not any(names(source.path)):
            self._say((*path, "path"), f"is missing, and {source.format} needs it")
        if source.format == "kafka":
            self._kafka(source, path)
        streams = self._pipeline.stream is not None and not source.static
        if len(names(source.path)) > 1 and (streams or source.format == "table"):
            self._say((*path, "path"), "must be a single path here")
        if source.schema is None and source.format in (_TYPED_IN_STREAMS if streams else _UNTYPED):
            self._say(
                (*path, "schema"),
                f"is missing: {source.format} {'in a stream ' if streams else ''}does not "
                "define its columns",
            )
        if source.static and self._pipeline.stream is None:
            self._say((*path, "static"), "has no meaning without [stream]")
        self._late_and_double(source, path)

    def _kafka(self, source: Source, path: Path) -> None:
        spark = self._pipeline.spark
        given = [
            *spark.connectors,
            *spark.packages,
            *spark.jars,
            *(str(value) for name, value in spark.conf.items() if "jars" in name),
        ]
        if not any("kafka" in each for each in given):
            self.doubts.append(
                Mistake(
                    path,
                    'Spark does not include its Kafka connector: set [spark] connectors = ["kafka"], '
                    "or packages, or jars",
                )
            )
        if "kafka.bootstrap.servers" not in source.options:
            self._say(
                (*path, "options", "kafka.bootstrap.servers"), "is missing, and kafka needs it"
            )
        if sum(name in source.options for name in _KAFKA_TOPICS) != 1:
            self._say((*path, "options"), f"must have one of {', '.join(_KAFKA_TOPICS)}")
        if source.schema is not None:
            self._say(
                (*path, "schema"),
                "kafka has fixed columns; parse its value in a step: "
                "from_json(cast(value AS STRING), ...)",
            )

    def _late_and_double(self, view: Source | Step, path: Path) -> None:
        if view.watermark is not None:
            if self._pipeline.stream is None:
                self._say((*path, "watermark"), "has no meaning without [stream]")
            if not _INTERVAL.fullmatch(view.watermark.delay.strip()):
                self._say(
                    (*path, "watermark", "delay"),
                    f"{view.watermark.delay!r} is not a duration such as '10 minutes'",
                )
        elif (
            names(view.dedupe)
            and self._pipeline.stream is not None
            and not (isinstance(view, Source) and view.static)
        ):
            self._say(
                (*path, "dedupe"),
                "needs a watermark in a stream, which otherwise must remember every row forever",
            )

    def _steps(self) -> None:
        seen: dict[str, str] = {name.lower(): name for name in self._pipeline.sources}
        reads = can_read()
        if not reads and self._pipeline.steps:
            self.doubts.append(
                Mistake(
                    ("steps",),
                    f"the SQL was not checked: {missing('sqlglot', 'pipeline', 'that')}, or let Spark "
                    "check it (--spark)",
                )
            )
        for name, step in self._pipeline.steps.items():
            path = ("steps", name)
            if not step.sql.strip():
                self._say((*path, "sql"), "must not be empty")
            elif reads and not step.unchecked:
                self._readings[name] = reading = read_select(step.sql)
                self._reading(name, reading, seen)
            self._late_and_double(step, path)
            seen[name.lower()] = name

    def _reading(self, name: str, reading: Reading, seen: Mapping[str, str]) -> None:
        path = ("steps", name, "sql")
        if reading.fault:
            self._say(path, reading.fault)
        later = {step.lower() for step in self._pipeline.steps} - set(seen)
        for view in reading.views:
            if view.lower() in seen:
                continue
            if view.lower() == name.lower():
                self._say(path, f"a cycle: {name} reads itself")
            elif view.lower() in later:
                self._say(
                    path,
                    f"reads {view}, which comes later; a step reads only views before "
                    f"it{self._circle(name, view)}",
                )
            else:
                self._say(
                    path, f"reads {view}, but there is no such view; {meant(view, seen.values())}"
                )

    def _circle(self, name: str, view: str) -> str:
        step = {each.lower(): step for each, step in self._pipeline.steps.items()}[view.lower()]
        back = not step.unchecked and name.lower() in {
            each.lower() for each in read_select(step.sql).views
        }
        return f": a cycle, {name} -> {view} -> {name}" if back else ""

    def _out(self) -> tuple[str, ...] | None:
        """The written columns, if the SQL names them."""
        reading = self._readings.get(self._pipeline.write.view)
        return None if reading is None or reading.fault else reading.columns

    def _sinks(self) -> None:
        declared = self._pipeline.sinks
        maker = SinkMaker(declared, self._out(), self.mistakes)
        made = {name: maker.make(name) for name in declared}
        sink = made.get(self._pipeline.write.sink)
        if names(self._pipeline.write.key) and (reason := scattered_by(sink)) is not None:
            self._say(("write", "key"), f"cannot be kept in order: {reason}")
        if sink is not None and self._pipeline.write.delivery != "at_least_once":
            try:
                check_staging(
                    sink
                ) if self._pipeline.write.delivery == "atomic" else check_transactional(sink)
            except ConfigError as error:
                self._say(
                    ("write", "delivery"),
                    f"{self._pipeline.write.delivery!r} cannot be kept: {error}",
                )

    def _stream(self) -> None:
        stream, pipeline = self._pipeline.stream, self._pipeline
        if stream is None:
            return
        if not stream.checkpoint.strip():
            self._say(("stream", "checkpoint"), "must not be empty")
        if stream.trigger != AVAILABLE_NOW and not _INTERVAL.fullmatch(stream.trigger.strip()):
            self._say(
                ("stream", "trigger"),
                f"{stream.trigger!r} is neither a duration such as '10 seconds' nor "
                f"'{AVAILABLE_NOW}'",
            )
        if pipeline.sources and all(source.static for source in pipeline.sources.values()):
            self._say(("sources",), "all are static: there is nothing to stream")

    def _unused(self) -> None:
        """Report unused views, which are known only if every step could be read."""
        pipeline = self._pipeline
        if len(self._readings) < len(pipeline.steps):
            return
        used = {view.lower() for reading in self._readings.values() for view in reading.views} | {
            pipeline.write.view.lower()
        }
        for path in [
            (table, name) for table in ("sources", "steps") for name in getattr(pipeline, table)
        ]:
            if path[1].lower() not in used:
                self.doubts.append(Mistake(path, "it is never read"))
