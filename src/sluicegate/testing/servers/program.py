"""A server's program in its own folder: started, paused, killed, restarted and removed.

1. A server is recognised by the current folder of its process, which is its home. So a reused
   process id is never mistaken for it.
2. It shuts down cleanly on SIGTERM.
3. Its folder, like the server inside it, does not outlive the process that made it: see `guard`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

from ..._core.checks import bad
from . import guard
from .require import EmbeddedUnavailable

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Sequence


START_SECONDS = 120
STOP_SECONDS = 30
PACKAGES = Path(__file__).parents[3]
"""The folder of this package."""
PORTS = range(15_000, 32_000)
"""Below the ephemeral range, so no outgoing connection takes the port of a stopped server."""


class ServerProgram:
    """A server's process, its folder and its output.

    All methods block, for seconds. Not thread-safe.

    Args:
        name: the server's name in messages and, in lower case, in its folder's.
        is_ready: a function that blocks until the process passed to it accepts requests, and
            returns whether it does so within `START_SECONDS`.
    """

    def __init__(self, name: str, is_ready: Callable[[subprocess.Popen[bytes]], bool]) -> None:
        self._name = name
        self._is_ready = is_ready
        self.folder = GuardedFolder(f"sluicegate-{name.lower()}-")
        self.home = self.folder.path / "home"
        self.home.mkdir()
        self._command: Sequence[str] = ()
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, command: Sequence[str]) -> None:
        """Set the program and its arguments for the next start."""
        self._command = command

    @property
    def pid(self) -> int | None:
        """The server's process; `None` while it is down."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def is_running(self) -> bool:
        """Whether it is up and not paused."""
        import psutil

        pid = self.pid
        return pid is not None and psutil.Process(pid).status() != psutil.STATUS_STOPPED

    def start(self) -> None:
        """Start the server and return when it accepts requests; does nothing if it is up.

        Raises `EmbeddedUnavailable` with the end of its log if it does not start within two
        minutes.
        """
        if self.pid is not None:
            return
        self._end()
        log = self.folder.path / "server.log"
        with log.open("wb") as output:
            process = self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=self.home,
                start_new_session=True,
            )
        if not self._is_ready(process):
            self._end()
            raise EmbeddedUnavailable(
                f"{self._name} did not start within {START_SECONDS} "
                f"s:\n{log.read_text(errors='replace')[-2000:]}"
            )

    def stop(self) -> None:
        """Shut it down cleanly, or kill it after 30 s; does nothing if it is down."""
        if self.pid is not None and self._process is not None:
            self.resume()
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill it with SIGKILL and return when it has ended; does nothing if it is down."""
        self._end()

    def pause(self) -> None:
        """Freeze the server (SIGSTOP); return when it has stopped, since a signal takes time."""
        guard.send(guard.find_in(self.home), signal.SIGSTOP)
        if (pid := self.pid) is not None:
            with suppress(ChildProcessError):  # in a fork, the parent waits for it
                os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Continue it (SIGCONT)."""
        guard.send(guard.find_in(self.home), signal.SIGCONT)

    def close(self) -> None:
        """Kill it and remove its folder. Idempotent; does nothing in a forked child."""
        if self.folder.is_ours:
            if self.home.exists():
                self.kill()
            self.folder.remove()

    def _end(self) -> None:
        """Kill the processes that work in the home, and close their output."""
        if not guard.kill_all_in(self.home, STOP_SECONDS):
            raise EmbeddedUnavailable(f"the server still runs {STOP_SECONDS} s after SIGKILL")
        process, self._process = self._process, None
        if process is not None:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


class EmbeddedServer(ABC):
    """Base of the servers that tests start, kill and restart. All methods block.

    The nodes of a cluster are numbered from 1; a method without a number acts on all of
    them, concurrently. `ConfigError` is raised for a number that no node has.
    """

    @abstractmethod
    def _programs(self) -> Sequence[ServerProgram]:
        """Return the nodes' programs. Raises `EmbeddedUnavailable` if they are not ours."""

    @property
    def pid(self) -> int | None:
        """The first node's process id; `None` while it is down."""
        return self._programs()[0].pid

    @property
    def running(self) -> list[int]:
        """The numbers of the nodes that are up and not paused."""
        return [number for number, each in enumerate(self._programs(), 1) if each.is_running]

    def start(self, node: int | None = None) -> None:
        """Start the server and return when it accepts requests; does nothing if it is up.

        Raises `EmbeddedUnavailable` with the end of the server's log if it does not start within two
        minutes.
        """
        self._each(ServerProgram.start, node)

    def stop(self, node: int | None = None) -> None:
        """Shut the server down cleanly, or kill it after 30 s; does nothing if it is down."""
        self._each(ServerProgram.stop, node)

    def kill(self, node: int | None = None) -> None:
        """Kill the server with SIGKILL and return when it has ended; does nothing if it is down."""
        self._each(ServerProgram.kill, node)

    def restart(self, node: int | None = None) -> None:
        """Start again on the same data and port; shuts a running server down cleanly first."""
        self.stop(node)
        self.start(node)

    def pause(self, node: int | None = None) -> None:
        """Freeze the server (SIGSTOP): requests hang. `kill`, `stop` and `close` still work."""
        self._each(ServerProgram.pause, node)

    def resume(self, node: int | None = None) -> None:
        """Continue a paused server; does nothing otherwise."""
        self._each(ServerProgram.resume, node)

    def close(self) -> None:
        """Kill the server and remove its data. Idempotent."""
        self._each(ServerProgram.close, None)

    def _each(self, act: Callable[[ServerProgram], None], node: int | None) -> None:
        programs = self._programs()
        if node is not None:
            if node not in range(1, len(programs) + 1):
                raise bad("node", node, f"must be a number from 1 to {len(programs)}")
            programs = [programs[node - 1]]
        if len(programs) == 1:
            act(programs[0])
            return
        with ThreadPoolExecutor(len(programs)) as side_by_side:
            for ended in [side_by_side.submit(act, each) for each in programs]:
                ended.result()


class GuardedFolder:
    """A new folder and its guard.

    If this process ends without `remove`, even by a signal, the guard kills every process that
    works in the folder, and removes the folder.

    Args:
        prefix: prefix of the folder's name.
    """

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix)).resolve()
        owner = self._owner = os.getpid()
        self.guard = subprocess.Popen(
            [sys.executable, "-SP", guard.__file__, str(owner), str(self.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # an inherited pipe would stay open until it ends
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGES), *sys.path])},
        )

    @property
    def is_ours(self) -> bool:
        """Whether this process created it; a forked child must not touch it or its server."""
        return os.getpid() == self._owner

    def remove(self) -> None:
        """Remove the folder, then end the guard. No process may work there. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.guard.kill()
        self.guard.wait()


def free_port() -> int:
    """Reserve a loopback port for a server; until this process ends, no other call returns it.

    The reservation is a bound socket that does not listen and allows reuse once it has the port
    (Linux): a server can listen there as often as it likes, and every other reservation fails.
    """
    for port in SystemRandom().sample(PORTS, 100):
        reserved = socket.socket()
        try:
            reserved.bind(("127.0.0.1", port))
        except OSError:
            reserved.close()
        else:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.detach()
            return port
    raise EmbeddedUnavailable(f"no free port among {PORTS}")


async def reap(*processes: Process) -> None:
    """Kill the children that still run; suspend until all are reaped and their pipes are closed.

    A cancellation is raised only then. No other task may read their output meanwhile. A descendant
    that holds a pipe open delays the return.
    """
    cancelled: asyncio.CancelledError | None = None
    for each in processes:
        if each.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)  # each.kill() polls, and consumes the exit code
    for each in processes:
        is_reaped = False
        while not is_reaped:
            try:
                await each.communicate()  # wait() alone never returns if a pipe is full
                is_reaped = True
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled
