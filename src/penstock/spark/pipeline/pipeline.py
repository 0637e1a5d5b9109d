"""A source, SQL, order per key and a stack of sinks, declared; checked as a whole before Spark
starts.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path as File
from typing import TYPE_CHECKING

from .check import Checked, check
from .declaration import Declared
from .explain import explained
from .mistakes import Mistake, PipelineError
from .places import locate
from .reading import read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from threading import Event

    from pyspark.sql import SparkSession

    from ..report import SparkWriteReport
    from .mistakes import Path
    from .report import PipelineReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Declared):
    """Rows from `sources` through `steps` into a sink. A description: making one does nothing.

    Declare it in Python with these dataclasses, or in a file that `Pipeline.read` reads. Whatever
    is wrong with it is found together, by `mistakes`, and before Spark starts.
    """

    @classmethod
    def read(cls, file: str | os.PathLike[str]) -> Pipeline:
        """The pipeline that a TOML file declares. Does not look at the environment, unless
        something is wrong.

        Raises `PipelineError`, which has all mistakes with their lines, for a file that is no TOML
        or does not have the form of a pipeline; `OSError` for one that cannot be read.
        """
        text = File(file).read_text(encoding="utf-8")
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise PipelineError([Mistake((), f"is no TOML: {error}", str(file))]) from error
        mistakes: list[Mistake] = []
        made = read(cls, tables, mistakes)
        placed = replace(made, _lines=locate(text), _file=str(file))
        if mistakes:
            raise PipelineError(placed.placed(check(placed, os.environ, mistakes).mistakes))
        return placed

    def mistakes(self, environment: Mapping[str, str] | None = None) -> tuple[Mistake, ...]:
        """Everything that is wrong, without Spark or Java; every sink is constructed, none is
        opened.

        Args:
            environment: what `${NAME}` refers to; default: the process's.
        """
        return self.placed(self._checked(environment).mistakes)

    def doubts(self, environment: Mapping[str, str] | None = None) -> tuple[Mistake, ...]:
        """What may be wrong, and what could not be looked at."""
        return self.placed(self._checked(environment).doubts)

    def validate(self, environment: Mapping[str, str] | None = None) -> None:
        """Raise `PipelineError` if there are mistakes."""
        found = self.mistakes(environment)
        if found:
            raise PipelineError(found)

    def explain(self) -> str:
        """What a run does, step by step, in words. References are not followed, and what may be
        secret is not shown.
        """
        return explained(self)

    def plan(
        self, spark: SparkSession | None = None, *, environment: Mapping[str, str] | None = None
    ) -> str:
        """Validate, have Spark analyse every step, and return its plan as text. Nothing is read.

        Args:
            spark: the session to ask; default: one of its own, stopped at the end.
            environment: what `${NAME}` refers to; default: the process's.

        Raises `PipelineError`, also for what Spark refuses, and `MissingExtra` without PySpark.
        """
        from .run import plan

        checked = self._sound(environment)
        return checked.environment.hide(plan(checked, spark))

    def without_secrets(self, text: str, environment: Mapping[str, str] | None = None) -> str:
        """`text` with the values of the variables that the pipeline refers to replaced by the
        references.
        """
        return self._checked(environment).environment.hide(text)

    def run(
        self,
        spark: SparkSession | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        on_report: Callable[[SparkWriteReport], object] | None = None,
        stop: Event | None = None,
        progress: bool | None = None,
    ) -> PipelineReport:
        """Validate, then read, transform and write; return the counts. Blocks until it is done; a
        stream, until it ends.

        Args:
            spark: the session to run on, which stays open; default: one of its own by `[spark]`,
                stopped at the end.
            environment: what `${NAME}` refers to; default: the process's.
            on_report: called with the report of each write, in a stream one for every micro-batch.
            stop: ends a stream when it is set, after the micro-batch that is being written.
            progress: whether a bar shows how far a write is; default: on a terminal and in a
                notebook.

        Raises `PipelineError` before anything starts, `MissingExtra` without PySpark, and what
        `write_dataframe` raises.
        """
        from .run import run

        return run(
            self._sound(environment), spark, on_report=on_report, stop=stop, progress=progress
        )

    def _sound(self, environment: Mapping[str, str] | None) -> Checked:
        checked = self._checked(environment)
        if checked.mistakes:
            raise PipelineError(self.placed(checked.mistakes))
        return checked

    def _checked(self, environment: Mapping[str, str] | None) -> Checked:
        mistakes: list[Mistake] = []
        made = replace(read(type(self), self, mistakes), _lines=self._lines, _file=self._file)
        return check(made, os.environ if environment is None else environment, mistakes)

    def placed(self, mistakes: Sequence[Mistake]) -> tuple[Mistake, ...]:
        """With file and line, in the order of the file."""
        if not self._file:
            return tuple(mistakes)
        return tuple(
            Mistake(each.path, each.text, f"{self._file}:{line}" if line else self._file)
            for line, each in sorted(
                ((self._line(each.path), each) for each in mistakes), key=lambda pair: pair[0]
            )
        )

    def _line(self, path: Path) -> int:
        """The line of a path, or of what it would be in."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 0)
