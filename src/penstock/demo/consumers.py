"""The consumers of the scene on Kafka: child processes that do not outlive this one.

They have a session of their own, so that Ctrl-C reaches only this process, and work in a guarded
folder, so that they end with it, whatever its end is.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from .._core.errors import PenstockError
from ..testing.servers.guarded import PACKAGES, GuardedFolder
from ..testing.servers.processes import kill_all_in

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from .consumer import Place

MODULE = "penstock.demo.consumer"
KILL_SECONDS = 30.0
_LAST = 2000
"""Characters of a consumer's output that are shown if it fails."""


class ConsumerFailed(PenstockError):
    """A consumer ended by itself."""


@dataclass(slots=True)
class _Consumer:
    process: Process
    log: Path
    state: str = "starting"


class Consumers:
    """A context with consumers by name; at its end those that still run are killed."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._folder: GuardedFolder | None = None
        self._started: dict[str, _Consumer] = {}

    async def __aenter__(self) -> Self:
        self._folder = GuardedFolder("penstock-demo-kafka-")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._folder is not None:
            kill_all_in(self._folder.path, KILL_SECONDS)
            self._folder.remove()

    @property
    def states(self) -> str:
        """The state of each, for display."""
        return ", ".join(f"{name} {each.state}" for name, each in self._started.items()) or "none"

    async def start(self, name: str) -> None:
        """Start a consumer; return when it has partitions. Raises `ConsumerFailed`."""
        assert self._folder is not None
        log = self._folder.path / f"{name}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                MODULE,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                cwd=self._folder.path,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGES), *sys.path])},
            )
        started = self._started[name] = _Consumer(process, log)
        assert process.stdin is not None
        assert process.stdout is not None
        settings = {"place": asdict(self._place), "name": name}
        process.stdin.write(json.dumps(settings).encode() + b"\n")  # no argument: it has a password
        if await process.stdout.readline() != b"ready\n":
            raise self._failed(name, started)
        started.state = "up"

    def check(self) -> None:
        """Raise `ConsumerFailed` if one has ended by itself."""
        for name, each in self._started.items():
            if each.state == "up" and each.process.returncode is not None:
                raise self._failed(name, each)

    async def kill(self, name: str) -> None:
        """Kill it with SIGKILL."""
        killed = self._started[name]
        killed.state = "killed"
        killed.process.kill()
        await killed.process.wait()

    async def stop(self) -> list[int]:
        """Let those that are up drain, by SIGTERM; return their exit codes."""
        up = [each for each in self._started.values() if each.state == "up"]
        for each in up:
            each.state = "draining"
            each.process.terminate()
        codes = [await each.process.wait() for each in up]
        for each in up:
            each.state = "ended"
        return codes

    def _failed(self, name: str, consumer: _Consumer) -> ConsumerFailed:
        told = consumer.log.read_text(errors="replace").strip()[-_LAST:]
        return ConsumerFailed(f"the {name} consumer has ended by itself:\n{told}")
