"""A mistake as a program, and the messages that it causes."""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import warnings
from dataclasses import dataclass
from typing import Any

from penstock.testing import FakeClock

FILE = "<mistake>"
BEFORE = """\
import asyncio
import time
from datetime import timedelta

from penstock import (
    Ack, Backoff, Batcher, BlockingBatcher, CircuitBreaker, Consumer, DeadLetter, FanOut, Limits,
    Nak, Observer, RateLimit, Retry, Router, Split, Timeout, UnavailableError,
    WriteResult, run, stack,
)
from penstock.sinks import ElasticsearchSink, FileSink, HttpSink, PostgresSink
from penstock.sources.memory import MemoryLog, MemorySource
from penstock.testing import FakeClock

URL = "https://example.com/ingest"
DSN = "postgresql://app:secret@db.example.com/sales"

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


@dataclass(frozen=True)
class Told:
    """The messages of a program: errors, warnings with their file, and log lines."""

    errors: list[str]
    warnings: list[tuple[str, str]]
    logged: list[str]

    def of(self, kind: str) -> list[str]:
        """The texts of the messages of one kind."""
        warned = [text for text, _ in self.warnings]
        return {"error": self.errors, "warning": warned, "log": self.logged}[kind]


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.name}: {record.getMessage()}")


def told_by(mistake: Mistake) -> Told:
    """Run the program, on a virtual loop unless it blocks; return its messages."""
    names: dict[str, Any] = {}
    exec(compile(BEFORE, FILE, "exec"), names)
    code = compile(mistake.code, FILE, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    logger, kept = logging.getLogger("penstock"), _Kept()
    errors: list[str] = []
    logger.addHandler(kept)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                _run(eval(code, names), blocks=mistake.blocks)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
    finally:
        logger.removeHandler(kept)
    warned = [(f"{each.category.__name__}: {each.message}", each.filename) for each in caught]
    return Told(errors, warned, kept.lines)


def _run(made: object, *, blocks: bool) -> None:
    if not inspect.iscoroutine(made):
        return
    if blocks:
        asyncio.run(made)
        return
    with FakeClock() as clock:
        clock.run(made)
