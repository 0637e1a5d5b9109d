"""The consumers of a scene: child processes that do not outlive this one.

Each has its own session, so that Ctrl-C reaches only this process, and works in a guarded folder,
so that it ends with this process, however that ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sluicegate import SluicegateError
from sluicegate.testing.servers.guard import kill_all_in
from sluicegate.testing.servers.program import GuardedFolder, reap

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from _typeshed import DataclassInstance

CHECKOUT = Path(__file__).parents[2]
KILL_SECONDS = 30.0
_LAST = 2000
"""Characters of a consumer's output that are shown if it fails."""


class ConsumerFailed(SluicegateError):
    """A consumer ended unexpectedly."""


class _Consumer:
    """A process and its state."""

    def __init__(self, process: Process, log: Path) -> None:
        self.process = process
        self._log = log
        self.state = "starting"

    async def configure(self, settings: Mapping[str, object]) -> bool:
        """Send the settings; return whether it is ready before it ends."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(settings).encode() + b"\n")
        is_up = await self.process.stdout.readline() == b"ready\n"
        self.state = "up" if is_up else "failed"
        return is_up

    async def kill(self) -> None:
        """Kill it with SIGKILL, and wait."""
        self.state = "killed"
        self.process.kill()
        await self.process.wait()

    async def drain(self) -> int:
        """Drain it by SIGTERM; return the exit code."""
        self.state = "draining"
        self.process.terminate()
        code = await self.process.wait()
        self.state = "drained"
        return code

    @property
    def has_failed(self) -> bool:
        """Whether it has ended unexpectedly."""
        return self.state == "failed" or (
            self.state == "up" and self.process.returncode is not None
        )

    @property
    def last_words(self) -> str:
        """The end of its output."""
        return self._log.read_text(errors="replace").strip()[-_LAST:]


class Consumers:
    """A context with consumers by name; its exit kills those that still run.

    Args:
        module: the module that each of them runs. It reads a line of JSON with `place` and its
            name, and prints `ready`.
        place: where they read and write.
    """

    def __init__(self, module: str, place: DataclassInstance) -> None:
        self._module = module
        self._place = place
        self._folder: GuardedFolder | None = None
        self._started: dict[str, _Consumer] = {}

    async def __aenter__(self) -> Self:
        self._folder = GuardedFolder("sluicegate-demo-")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._folder is not None:
            kill_all_in(self._folder.path, KILL_SECONDS)
            try:
                await reap(*[each.process for each in self._started.values()])
            finally:
                self._folder.remove()

    @property
    def states(self) -> str:
        """The state of each consumer, for display."""
        return ", ".join(f"{name} {each.state}" for name, each in self._started.items()) or "none"

    @property
    def counts(self) -> str:
        """The number of consumers in each state, for display."""
        counts = Counter(each.state for each in self._started.values())
        return ", ".join(f"{count} {state}" for state, count in counts.items()) or "none"

    async def start(self, name: str) -> None:
        """Start a consumer; return when it is ready. Raises `ConsumerFailed`."""
        assert self._folder is not None
        log = self._folder.path / f"{name}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                self._module,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                cwd=self._folder.path,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), *sys.path])},
            )
        started = self._started[name] = _Consumer(process, log)
        settings = {"place": asdict(self._place), "name": name}
        if not await started.configure(settings):  # command-line arguments would show a password
            raise self._failed(name)

    def check(self) -> None:
        """Raise `ConsumerFailed` if a consumer has ended unexpectedly."""
        for name, each in self._started.items():
            if each.has_failed:
                raise self._failed(name)

    async def kill(self, name: str) -> None:
        """Kill a consumer with SIGKILL."""
        await self._started[name].kill()

    async def stop(self, *names: str) -> list[int]:
        """Drain the running consumers, or the named ones, by SIGTERM; return their exit codes."""
        up = [
            each
            for name, each in self._started.items()
            if each.state == "up" and (not names or name in names)
        ]
        return await asyncio.gather(*[each.drain() for each in up])

    def _failed(self, name: str) -> ConsumerFailed:
        return ConsumerFailed(
            f"consumer {name!r} ended unexpectedly:\n{self._started[name].last_words}"
        )
