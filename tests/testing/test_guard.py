"""A server and its data do not outlive the process that started them, however that process ends.
White box: the guard process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from sluicegate.testing import EmbeddedUnavailable, embedded_postgres
from sluicegate.testing.servers.guard import wait_gone
from sluicegate.testing.servers.require import skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Iterator

STARTER = """
import os, sys
from threading import Thread
from sluicegate.testing import (
    EmbeddedUnavailable, embedded_kafka, embedded_nats, embedded_opensearch, embedded_postgres
)

def told(server):
    names = ("_own", "_node", "_server")
    own = next((getattr(server, name) for name in names if hasattr(server, name)), None)
    folder = server._folder if own is None else own.folder
    print(server.pid, folder.guard.pid, folder.path, flush=True)

{body}
"""
SERVES = """
try:
    starting = embedded_{name}()
    server = starting.__enter__()
except EmbeddedUnavailable as error:
    print("unavailable", "{name}", error)
    sys.exit()
if {paused}:
    server.pause()
told(server)
sys.stdin.read()
"""
FORKS = """
starting = embedded_postgres()
servers = []
thread = Thread(target=lambda: servers.append(starting.__enter__()))
thread.start()
thread.join()  # and ends: the server must not end with the thread that started it
server = servers[0]

leaving = os.fork()
if not leaving:
    server.close()  # as a context does that is left by an exception
    sys.exit()
assert os.waitpid(leaving, 0)[1] == 0

staying = os.fork()
if not staying:
    sys.stdin.read()
    os._exit(0)
told(server)
sys.stdin.read()
"""


class Started:
    """A process that has started a server: with the server's main process, its guard and its
    folder.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        line = process.stdout.readline()
        if line.startswith("unavailable"):
            _, name, reason = line.split(maxsplit=2)
            skip_or_fail(name, reason)
        pid, guard, folder = line.split()
        self.process = process
        self.server = psutil.Process(int(pid))
        self.guard = psutil.Process(int(guard))
        self.folder = Path(folder)

    @property
    def serves(self) -> bool:
        """Whether the server runs; a zombie does not count."""
        return not wait_gone(self.server, 0)

    def end(self, by: signal.Signals) -> None:
        """End the starter, and wait for the end of the guard, which is the last process."""
        self.process.send_signal(by)
        assert self.process.wait(30) == -by
        assert wait_gone(self.guard, 30)


@contextmanager
def started(body: str) -> Iterator[Started]:
    """A starter in its own process group; its children are all gone at the end."""
    ours = {
        name: value for name, value in os.environ.items() if name != "SLUICEGATE_KAFKA_BOOTSTRAP"
    }
    command = [sys.executable, "-c", STARTER.format(body=body)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=ours,
    )
    with process:
        try:
            yield Started(process)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "by", "paused"),
    [
        ("postgres", signal.SIGTERM, False),
        ("postgres", signal.SIGKILL, True),
        pytest.param("opensearch", signal.SIGTERM, True, marks=pytest.mark.long),
        ("kafka", signal.SIGKILL, False),
        ("nats", signal.SIGKILL, True),
    ],
)
def test_a_server_ends_with_the_process_that_started_it(
    name: str, by: signal.Signals, paused: bool
) -> None:
    with started(SERVES.format(name=name, paused=paused)) as starter:
        assert starter.serves
        assert starter.folder.exists()
        starter.end(by)
        assert not starter.serves
        assert not starter.folder.exists()


def test_neither_forked_children_nor_signals_to_all_end_the_server_or_keep_it() -> None:
    """One child has ended and closed its inherited descriptors; another outlives its parent. A
    service manager sends signals to every process of a service.
    """
    with started(FORKS) as starter:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            starter.guard.send_signal(number)
        assert starter.serves
        assert starter.folder.exists()
        starter.end(signal.SIGKILL)
        assert not starter.serves
        assert not starter.folder.exists()


def test_a_server_that_is_closed_leaves_neither_guard_nor_shared_memory() -> None:
    """Files of /dev/shm would remain at each kill, so its memory is in its folder."""
    with embedded_postgres({"fsync": "off"}) as server:
        guard = server._folder.guard
        assert guard.poll() is None
        assert server.pid is not None
        mapped = [each.path for each in psutil.Process(server.pid).memory_maps()]
        assert [path for path in mapped if path.startswith(str(server._folder.path))]
        assert not [path for path in mapped if path.startswith("/dev/shm/")]
    assert guard.returncode is not None
    assert not server._folder.path.exists()


def test_a_setting_that_the_server_refuses_is_told_and_leaves_no_guard() -> None:
    before = set(psutil.Process().children())
    with pytest.raises(EmbeddedUnavailable, match="no_such_setting"):
        embedded_postgres({"no_such_setting": "1"}).__enter__()
    assert set(psutil.Process().children()) <= before
