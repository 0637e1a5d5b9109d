"""Starts consumers in their own processes, and reads their results."""

from __future__ import annotations

import json
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.children import child

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Callable

    from sluicegate.testing import EmbeddedKafka

NOTHING = {"acked": -1, "received": -1, "committed": -1, "event": None}
PROGRAM = Path(__file__).with_name("consumer_child.py")


class Child:
    """A running process that reports its state."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def until(self, is_met: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read its reports until one satisfies the condition; return that report."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            told: dict[str, Any] = json.loads(line)
            if is_met({**NOTHING, **told}):
                return told
        raise AssertionError(f"it ended with {await self.process.wait()}: {await self.errors()}")

    async def errors(self) -> str:
        """The rest of its log; returns once it has ended."""
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()


class AuditedChild(Child):
    """A running consumer process."""

    def __init__(self, process: Process, audit: Path) -> None:
        super().__init__(process)
        self._audit = audit
        audit.touch()

    async def kill(self) -> list[int]:
        """Kill it; return the offsets that it had finished, in order."""
        self.process.kill()
        await self.process.wait()
        return self.finished()

    def finished(self) -> list[int]:
        """The offsets that it has finished, in order."""
        return [int(line) for line in self._audit.read_text().splitlines()]


@asynccontextmanager
async def child_process(program: Path, **options: Any) -> AsyncIterator[Process]:
    """Start a program with these options; it is killed at the end if it still runs."""
    command = (sys.executable, str(program), json.dumps(options))
    async with child(*command, stdout=PIPE, stderr=PIPE) as process:
        yield process


@asynccontextmanager
async def consumer_child(
    broker: EmbeddedKafka, topic: str, group: str, audit: Path, **options: Any
) -> AsyncIterator[AuditedChild]:
    """Start a consumer."""
    given = {"bootstrap": broker.bootstrap, "topic": topic, "group": group, "audit": str(audit)}
    async with child_process(PROGRAM, **given, **options) as process:
        yield AuditedChild(process, audit)
