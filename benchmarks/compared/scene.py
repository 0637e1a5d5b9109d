"""A topic, a group and the processes of one consumer in one situation."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from .peers import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Self

    from sluicegate.testing import EmbeddedKafka

    from .peers import Peer

JOIN = 30.0
"""Seconds for a process to handle its first message."""
LINE = re.compile(r"^(\d+\.\d+) (start|end|fail|cut|batch|letter) (\d+) (.*)\n", re.MULTILINE)


class Event(NamedTuple):
    """A line that a process has written."""

    time: float
    what: str
    n: int
    key: str
    process: int


class Process:
    """A running consumer and its output."""

    def __init__(self, peer: Peer, env: Mapping[str, str], number: int, folder: Path) -> None:
        self._number = number
        self._written = folder / f"{number}.out"
        with self._written.open("w") as out, (folder / f"{number}.err").open("w") as errors:
            self._process = subprocess.Popen(
                peer.command,
                env={**os.environ, **peer.env, **env},
                stdout=out,
                stderr=errors,
                cwd=ROOT,
            )

    def events(self, *kinds: str) -> list[Event]:
        """Return its events so far, of these kinds or all."""
        return [
            Event(float(at), what, int(n), key, self._number)
            for at, what, n, key in LINE.findall(self._written.read_text())
            if not kinds or what in kinds
        ]

    @property
    def is_up(self) -> bool:
        return self._process.poll() is None

    def megabytes(self) -> int:
        """Return its resident memory."""
        size: int = psutil.Process(self._process.pid).memory_info().rss
        return size >> 20

    def kill(self) -> None:
        """Send SIGKILL; return when it has ended."""
        self._process.kill()
        self._process.wait()

    def stop(self, within: float = 30.0) -> float:
        """Send SIGTERM; return the seconds until the end."""
        begin = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()
        return time.monotonic() - begin


class Scene:
    """A topic and a group for one consumer. Use it in a `with` block, which kills the processes."""

    def __init__(self, broker: EmbeddedKafka, peer: Peer, topic: str) -> None:
        self.peer = peer
        self._broker = broker
        self._topic = topic
        self._group = f"g-{topic}"
        self._processes: list[Process] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        self._stack.close()

    def produce(self, messages: Iterable[tuple[str, Mapping[str, Any]]], padding: int = 0) -> None:
        """Append messages with these keys."""
        asyncio.run(_produce(self._broker.bootstrap, self._topic, messages, padding))

    def start(self, **env: str) -> Process:
        """Start another process of the consumer."""
        ours = {"KAFKA": self._broker.bootstrap, "TOPIC": self._topic, "GROUP": self._group}
        process = Process(self.peer, {**ours, **env}, len(self._processes), self._folder)
        self._processes.append(process)
        return process

    def wait(self, condition: Callable[[], object], within: float = JOIN) -> bool:
        """Wait for the condition; return whether it became true."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(0.05)
        return False

    def committed(self) -> int | None:
        """Return the sum of the stored positions."""
        return asyncio.run(_committed(self._broker.bootstrap, self._group))


def times_ended(*processes: Process) -> Counter[int]:
    """Count how often each message was completely handled."""
    return Counter(each.n for process in processes for each in process.events("end"))


async def _produce(
    bootstrap: str, topic: str, messages: Iterable[tuple[str, Mapping[str, Any]]], padding: int
) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=5) as producer:
        for key, message in messages:
            value = json.dumps(message).encode() + b" " * padding
            await producer.send(topic, value, key=key.encode())


async def _committed(bootstrap: str, group: str) -> int | None:
    admin: Any = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        found = await admin.list_consumer_group_offsets(group)
    finally:
        await admin.close()
    return sum(at.offset for at in found.values()) if found else None
