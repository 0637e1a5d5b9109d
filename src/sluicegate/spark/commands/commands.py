"""`sluicegate pipeline`: validate a pipeline's file, explain it, run it.

1. Validation and explanation need neither Spark nor Java, except with `--spark`.
2. A run uses a separate thread, so that the main thread is free for signals. The first signal
   ends a stream after the current micro-batch, and a batch at once; the second ends both at once.
3. No message shows the value of an environment variable.
"""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..._core.errors import MissingExtra, SluicegateError
from ...cli.exits import BAD_USE, FAILED, INTERRUPTED, OK
from ..driver.session import cancel, has_java
from ..pipeline import Pipeline, PipelineError
from .view import RunView

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from types import FrameType

    from ..pipeline import PipelineReport

LOOK_SECONDS = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def pipeline(options: argparse.Namespace) -> int:
    """Perform the action; return 0, 1 for a failed run, 2 for mistakes, 130 for a signal."""
    try:
        declared = Pipeline.read(options.file)
        if options.action == "explain":
            print(declared.explain())
        declared.validate()
        for doubt in declared.doubts():
            print(f"{doubt} (not sure)", file=sys.stderr)
        if options.action == "run":
            _need_java()
            return _Run(declared, plain=options.plain).main()
        if options.spark:
            _need_java()
            _ask_spark(declared, shows=options.action == "explain")
        if options.action == "validate":
            print(f"{options.file}: valid")
    except PipelineError as error:
        print(error, file=sys.stderr)
        return BAD_USE
    except (MissingExtra, OSError, UnicodeDecodeError) as error:
        print(f"sluicegate pipeline: {_told(error)}", file=sys.stderr)
        return BAD_USE
    return OK


def _told(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _need_java() -> None:
    if not has_java():
        message = (
            "Spark needs Java, and none was found: there is no `java` on the PATH, and JAVA_HOME "
            "is not the folder of a Java installation"
        )
        raise MissingExtra(message)


def _ask_spark(declared: Pipeline, *, shows: bool) -> None:
    plan = declared.plan()
    if shows:
        print("\nSpark's plan:\n" + plan.rstrip())


class _Run:
    """One run and its output."""

    def __init__(self, declared: Pipeline, *, plain: bool) -> None:
        self._declared = declared
        self._view = RunView(plain=plain)
        self._progress = False if plain else None
        self._stop = threading.Event()
        self._signals = 0
        self._report: PipelineReport | None = None
        self._error: BaseException | None = None

    def main(self) -> int:
        """Run the pipeline to its end; return the exit code."""
        thread = threading.Thread(target=self._work, name="sluicegate pipeline", daemon=True)
        self._view.say(f"{self._declared.name}: starting Spark")
        with self._signals_seen():
            thread.start()
            while thread.is_alive() and self._signals < 2:
                thread.join(LOOK_SECONDS)
                if self._signals and self._declared.stream is None:
                    cancel()  # again: a job may have begun meanwhile
        return self._end()

    def _work(self) -> None:
        try:
            self._report = self._declared.run(
                on_report=self._view.wrote, stop=self._stop, progress=self._progress
            )
        except BaseException as error:
            self._error = error

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
            self._view.say(
                "interrupted: ending after this micro-batch; interrupt again to end it now"
            )

    def _end(self) -> int:
        if self._report is not None:
            self._view.sum_up(self._report)
        if self._signals:
            self._view.say("interrupted")
            return INTERRUPTED
        if self._error is not None:
            return self._failed(self._error)
        return FAILED if self._report is None or self._report.failed else OK

    def _failed(self, error: BaseException) -> int:
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
