"""A mistake as a program, and the messages that it causes."""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import warnings
from dataclasses import dataclass
from inspect import CO_COROUTINE
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from types import TracebackType

FILE = "<mistake>"
DSN = "postgresql://app:secret@db.example.com/sales"
BEFORE = """\
import asyncio
import time
from datetime import timedelta

from sluicegate import Ack, Backoff, Batcher, BlockingBatcher, CircuitBreaker, Consumer, DeadLetter, FanOut, Limits, Nak, Observer, Retry, Timeout, UnavailableError, WriteResult, run, stack
from sluicegate.sinks import RateLimit, Router, Split
from sluicegate.http import ElasticsearchSink, HttpSink
from sluicegate.files import FileSink
from sluicegate.postgres import PostgresSink
from sluicegate.consumer import MemoryLog, MemorySource, Poison
from sluicegate.testing import FakeClock

URL = "https://example.com/ingest"

async def write(batch):
    ...

log = MemoryLog()
log.produce("orders", "placed", key="ann")
source = MemorySource(log, ends=True)

async def handle(message):
    ...
"""
"""The code before every mistake."""


@dataclass(frozen=True)
class Mistake:
    """A faulty program, and the kind of its message: `error`, `warning` or `log`."""

    title: str
    code: str
    kind: str = "error"
    blocks: bool = False
    """Whether it blocks the event loop and so needs real time."""
    tables: str = ""
    """The SQL before it, if it needs a real server."""

    @property
    def is_real(self) -> bool:
        """Whether it needs real time."""
        return self.blocks or bool(self.tables)


@dataclass(frozen=True)
class Told:
    """The messages of a program: errors, warnings with their file, and log lines."""

    errors: list[str]
    warnings: list[tuple[str, str]]
    logged: list[str]
    phase: str
    """When: at construction, at opening, or at run time."""

    def of(self, kind: str) -> list[str]:
        """The texts of the messages of one kind."""
        warned = [text for text, _ in self.warnings]
        return {"error": self.errors, "warning": warned, "log": self.logged}[kind]

    def without(self, old: str, new: str) -> Told:
        """The same with other words in every message."""
        warned = [(text.replace(old, new), file) for text, file in self.warnings]
        errors, logged = (
            [each.replace(old, new) for each in texts] for texts in (self.errors, self.logged)
        )
        return Told(errors, warned, logged, self.phase)


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.name}: {record.getMessage()}")


def told_by(mistake: Mistake, dsn: str = DSN) -> Told:
    """Run the program, on a virtual loop unless it needs real time; return its messages."""
    names: dict[str, Any] = {"DSN": dsn}
    exec(compile(BEFORE, FILE, "exec"), names)
    code = compile(mistake.code, FILE, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    logger, kept = logging.getLogger("sluicegate"), _Kept()
    errors: list[str] = []
    phase = "At run time"
    logger.addHandler(kept)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                _run(eval(code, names), is_real=mistake.is_real)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
                phase = _phase_of(error.__traceback__, is_async=bool(code.co_flags & CO_COROUTINE))
    finally:
        logger.removeHandler(kept)
    warned = [(f"{each.category.__name__}: {each.message}", each.filename) for each in caught]
    return Told(errors, warned, kept.lines, phase)


def _phase_of(traceback: TracebackType | None, *, is_async: bool) -> str:
    """When the program raised, by the functions that it was in."""
    called = {each.name for each in extract_tb(traceback)}
    if "__aenter__" in called:
        return "At opening"
    is_made = not is_async or called & {"__init__", "__post_init__", "__new__"}
    return "At construction" if is_made else "At run time"


def _run(made: object, *, is_real: bool) -> None:
    if not inspect.iscoroutine(made):
        return
    if is_real:
        asyncio.run(made)
        return
    with FakeClock() as clock:
        clock.run(made)
