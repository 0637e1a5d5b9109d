"""`sluicegate pipeline`: validate a pipeline's file, explain it, run it on Spark, package its
runner.

1. Validation and explanation need neither Spark nor Java, except with `--spark`.
2. A run uses a separate thread, so that the main thread is free for signals. The first signal
   ends a stream after the current micro-batch, and a batch immediately; the second ends both
   immediately.
3. No message shows the value of an environment variable.
"""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .._core.errors import MissingExtra, SluicegateError
from ..cli.console import BAD_USE, FAILED, INTERRUPTED, OK
from ..cli.parser import Group
from .java import cancel, has_java
from .pipeline.declaration import Mistake, PipelineError
from .pipeline.package import write_package
from .pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from types import FrameType

    from ..cli.parser import Parser
    from .report import PipelineReport, SparkWriteReport

LOOK_SECONDS = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _options(parser: Parser) -> None:
    add = parser.accept_commands("action")
    helps = {
        "run": "run a pipeline to its end",
        "validate": "report every error of a pipeline",
        "explain": "print a pipeline's steps",
    }
    package = add(
        "package",
        "write sluicegate.zip and run_pipeline.py, for spark-submit",
        "sluicegate pipeline package shipped",
    )
    package.add_argument("folder", metavar="FOLDER", help="created if it does not exist")
    for action, text in helps.items():
        command = add(action, text, f"sluicegate pipeline {action} sales.toml")
        command.add_argument("file", metavar="FILE", help="the pipeline's TOML file")
        if action == "run":
            command.add_argument(
                "--since",
                metavar="VALUE",
                help="read the rows of incremental sources above this value, or files changed after "
                "this time, not those after the stored position",
            )
            command.add_argument(
                "--dry-run",
                action="store_true",
                help="read and count the rows, and write nothing",
            )
        else:
            command.add_argument(
                "--spark", action="store_true", help="start Spark and let it check the plan too"
            )


def pipeline(options: argparse.Namespace) -> int:
    """Perform the action; return 0, 1 for a failed run, 2 for mistakes, 130 for a signal."""
    try:
        if options.action == "package":
            print(*write_package(options.folder), sep="\n")
            return OK
        declared = Pipeline.read(options.file)
        if options.action == "explain":
            print(declared.explain())
        declared.validate()
        if options.action == "run":
            _need_java()
            if options.since is not None and not declared.incremental:
                raise PipelineError([Mistake(("--since",), "has no meaning without [incremental]")])
            return _Run(declared, since=options.since, is_dry=options.dry_run).main()
        if options.spark:
            _need_java()
            plan = declared.plan()
            if options.action == "explain":
                print("\nSpark's plan:\n" + plan.rstrip())
        if options.action == "validate":
            print(f"{options.file}: valid")
    except PipelineError as error:
        print(error, file=sys.stderr)
        return BAD_USE
    except (MissingExtra, OSError, UnicodeDecodeError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            text = f"{error.filename}: {error.strerror}"
        print(f"sluicegate pipeline: {text}", file=sys.stderr)
        return BAD_USE
    return OK


def _need_java() -> None:
    if not has_java():
        message = (
            "Spark needs Java, and none was found: there is no `java` on the PATH, and JAVA_HOME "
            "is not the folder of a Java installation"
        )
        raise MissingExtra(message)


def _print(text: object) -> None:
    """Print whole lines at once: a signal may print between the writes of another thread."""
    print(f"{text}\n", end="", flush=True)


class _Run:
    """One run and its output."""

    def __init__(self, declared: Pipeline, *, since: str | None, is_dry: bool) -> None:
        self._declared = declared
        self._since = since
        self._is_dry = is_dry
        self._writes = 0
        self._stop = threading.Event()
        self._signals = 0
        self._report: PipelineReport | None = None
        self._error: BaseException | None = None

    def main(self) -> int:
        """Run the pipeline to its end; return the exit code."""
        thread = threading.Thread(target=self._work, name="sluicegate pipeline", daemon=True)
        _print(f"{self._declared.name}: starting Spark")
        with self._signals_seen():
            thread.start()
            while thread.is_alive() and self._signals < 2:
                thread.join(LOOK_SECONDS)
                if self._signals and self._declared.stream is None:
                    cancel()  # again: a job may have begun meanwhile
        return self._end()

    def _work(self) -> None:
        try:
            if self._is_dry:
                _print(self._declared.dry_run(since=self._since))
                return
            self._report = self._declared.run(
                on_report=self._wrote,
                stop=self._stop,
                since=self._since,
            )
        except BaseException as error:
            self._error = error

    def _wrote(self, report: SparkWriteReport) -> None:
        """Print a line for a finished write, unless it was empty. Called in the run's thread."""
        self._writes += 1
        if report.rows:
            _print(f"write {self._writes}: {report}")

    @contextmanager
    def _signals_seen(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        self._stop.set()
        if self._declared.stream is None:
            cancel()
        elif self._signals == 1:
            _print("interrupted: ending after this micro-batch; interrupt again to end it now")

    def _end(self) -> int:
        report = self._report
        if report is not None:
            _print(str(report) if report.writes else f"{report.name}: nothing new")
        if self._signals:
            _print("interrupted")
            return INTERRUPTED
        if self._error is not None:
            return self._exit_code_of(self._error)
        if self._is_dry:
            return OK
        return FAILED if report is None or report.failed else OK

    def _exit_code_of(self, error: BaseException) -> int:
        if isinstance(error, PipelineError):
            raise error
        if not isinstance(error, SluicegateError) and not type(error).__module__.startswith(
            ("py4j", "pyspark")
        ):
            raise error
        print(
            "sluicegate pipeline: "
            f"{self._declared.without_secrets(str(error)) or type(error).__name__}",
            file=sys.stderr,
        )
        return BAD_USE if isinstance(error, MissingExtra) else FAILED


GROUP = Group(
    description="Validate a pipeline's file, explain its steps, run it on Spark, or package its "
    "runner.",
    example="sluicegate pipeline run sales.toml",
    options=_options,
    run=pipeline,
    extras={"pyspark": "pipeline"},
)
