"""The processes of `sluicegate serve`: started, restarted after a crash, drained together.

1. A process that ends with 0 has finished, and is not started again. Any other end is a crash, also
   a drain that the parent has not begun, such as after SIGTERM to that process alone.
2. The restart after a crash waits: 0.5 s, then twice as long after each crash, at most 60 s. A
   process that has run for 60 s was healthy: its next crash counts as the first.
3. A process that ends with the code of bad use before that ends all: a restart cannot repair a
   wrong argument. The others drain; the code and its message are the command's.
4. Each process is the leader of its own process group, so that Ctrl-C in a terminal reaches it once:
   by the parent.
5. The first signal to the parent is one SIGTERM to each process, the second one another, which ends
   the drains, and the third one is SIGKILL.
6. A process starts with the signals blocked, until it can leave without loss: a drain that begins
   during a start does not kill it.
7. The standard input of a process is a pipe from the parent. Its end says that the parent was
   killed, and begins the drain.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from subprocess import PIPE
from typing import TYPE_CHECKING

from ..console import BAD_USE, FAILED, OK, say

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from pathlib import Path

SIGNALS = (signal.SIGTERM, signal.SIGINT)
NUMBER = "SLUICEGATE_PROCESS"
"""The variable with the number of the process."""
FIRST, LONGEST = 0.5, 60.0
"""Seconds before a restart."""
TERMINATED = 128 + signal.SIGTERM
"""The exit code of a process that has drained."""
HEALTHY = 60.0
"""Seconds of work after which a crash counts as the first one."""
_KILL_AT = 3


@dataclass(slots=True)
class Restarts:
    """When a process is started again, and how often that was."""

    crashes: int = 0
    """Crashes in a row."""
    total: int = 0

    def delay_after(self, code: int, ran: float) -> float | None:
        """Return the seconds to wait after a crash; `None` if a restart cannot help."""
        if code == BAD_USE and ran < HEALTHY:
            return None
        self.crashes = 1 if ran >= HEALTHY else self.crashes + 1
        self.total += 1
        return min(FIRST * 2.0 ** min(self.crashes - 1, 16), LONGEST)


class Member:
    """One process."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.folder = folder
        self.socket = folder / f"{number}.sock"
        """The address of its probes."""
        self.error = folder / f"{number}.error"
        """The file of its configuration error."""
        self.restarts = Restarts()
        self.code: int | None = None
        """The exit code of its last end, as a shell reports it."""
        self._process: Process | None = None
        self._signals = 0

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None

    @property
    def has_finished(self) -> bool:
        """Whether it has ended with 0."""
        return self._process is None and self.code == OK

    def end(self) -> None:
        """Make it drain; the second time end the drain; the third time kill it."""
        self._signals += 1
        self._send()

    def _send(self) -> None:
        if self._signals and self._process is not None and self._process.returncode is None:
            sign = signal.SIGTERM if self._signals < _KILL_AT else signal.SIGKILL
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, sign)  # `send_signal` polls, and takes the exit code

    async def run(self, name: str, starting: asyncio.Lock, *, is_probed: bool) -> int:
        """Run the process until it ends; return the exit code."""
        self.socket.unlink(missing_ok=True)
        place = (str(self.folder), str(self.number), "probed" if is_probed else "")
        variables = {**os.environ, NUMBER: str(self.number)}
        if is_probed:  # each process would show the metrics of all
            variables.pop("PROMETHEUS_MULTIPROC_DIR", None)
        async with starting:  # the mask is that of the whole thread
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", f"{__package__}.member", name, *place),
                    stdin=PIPE,
                    env=variables,
                    process_group=0,
                )
            except OSError as error:  # no memory, too many processes
                say(f"sluicegate serve: process {self.number} cannot be started: {error}")
                self.code = FAILED
                return FAILED
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        self._send()  # a signal that came during the start
        code = await self._process.wait()
        self._process = None
        has_drained = self._signals and code == TERMINATED
        self.code = OK if has_drained else code if code >= 0 else 128 - code
        return self.code


class Supervisor:
    """All processes of one command."""

    def __init__(self, name: str, processes: int, folder: Path, *, is_probed: bool) -> None:
        self.members = [Member(number, folder) for number in range(processes)]
        self._name = name
        self._is_probed = is_probed
        self._is_draining = asyncio.Event()
        self._signals = 0
        self._is_refused = False
        self._starting = asyncio.Lock()

    async def run(self) -> int:
        """Run until every process has ended; return the exit code."""
        loop = asyncio.get_running_loop()
        for sign in SIGNALS:
            loop.add_signal_handler(sign, self._on_signal, sign)
        async with asyncio.TaskGroup() as group:
            for member in self.members:
                group.create_task(self._keep(member), name=f"process {member.number}")
        return BAD_USE if self._is_refused else max(member.code or OK for member in self.members)

    def _on_signal(self, sign: signal.Signals) -> None:
        step = ("draining", "ending the drains", "killing")[min(self._signals, _KILL_AT - 1)]
        say(f"sluicegate serve: {sign.name}: {step}")
        self._drain()

    def _drain(self) -> None:
        self._signals += 1
        self._is_draining.set()
        for member in self.members:
            member.end()

    async def _keep(self, member: Member) -> None:
        """Run a process, again after each crash."""
        clock = asyncio.get_running_loop().time
        while not self._is_draining.is_set():
            began = clock()
            code = await member.run(self._name, self._starting, is_probed=self._is_probed)
            if self._is_draining.is_set() or code == OK:
                return
            delay = member.restarts.delay_after(code, clock() - began)
            if delay is None:
                self._refuse(member)
                return
            end = f"process {member.number} ended with {code}"
            crash = f"crash {member.restarts.crashes} in a row"
            say(f"sluicegate serve: {end} ({crash}); it is started again in {delay:g} s")
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._is_draining.wait()

    def _refuse(self, member: Member) -> None:
        self._is_refused = True
        with suppress(FileNotFoundError):  # the program's own exit code
            say(f"sluicegate serve: {member.error.read_text(encoding='utf-8')}")
        self._drain()
