"""Consumers of Kafka side by side: what each does in the situations of the page
"Compared with other Kafka consumers". `python -m benchmarks.compared [SITUATION ...]` prints it.

Each peer has an environment of its own under `PEERS` (default `/tmp/peers`): `faststream`, `faust`
and `plain` with a `bin/python`, and `pc` with `lib` (the jars of `pom.xml` in `README.md`) and
`classes`. A peer whose environment is missing is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as Partition
from aiokafka.admin import AIOKafkaAdminClient

from penstock.testing import embedded_kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.testing import EmbeddedKafka

HERE = Path(__file__).parent
PEERS = Path(os.environ.get("PEERS", "/tmp/peers"))  # noqa: S108
JOIN = 30.0
"""Seconds for a process to handle its first message."""


@dataclass(frozen=True)
class Peer:
    """A consumer, and how to start it."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_there(self) -> bool:
        return Path(self.command[0]).exists() and Path(self.command[-1]).suffix != "" or (
            (PEERS / "pc" / "classes").exists()
        )


def _python(venv: str, program: str, *arguments: str) -> tuple[str, ...]:
    python = sys.executable if venv == "" else str(PEERS / venv / "bin" / "python")
    return (python, str(HERE / program), *arguments)


_PC = PEERS / "pc"
ALL = (
    Peer("Penstock", _python("", "with_penstock.py")),
    Peer("aiokafka", _python("plain", "with_aiokafka.py"), {"CONCURRENCY": "1"}),
    Peer("FastStream", _python("faststream", "with_faststream.py")),
    Peer("FastStream NACK", _python("faststream", "with_faststream.py"), {"POLICY": "NACK_ON_ERROR"}),
    Peer("Faust", _python("faust", "with_faust.py", "worker", "-l", "warn", "--without-web")),
    Peer("Faust strict", _python("faust", "with_faust.py", "worker", "-l", "warn", "--without-web"), {"CONCURRENCY": "1", "ACK_EXCEPTIONS": "0"}),
    Peer("parallel-consumer", ("/usr/bin/java", "-Xmx256m", "-cp", f"{_PC}/lib/*:{_PC}/classes", "WithParallelConsumer")),
)


class Event(NamedTuple):
    """A line of a process."""

    time: float
    what: str
    n: int
    key: str
    process: int


class Process:
    """A consumer that runs, and what it has written."""

    def __init__(self, peer: Peer, env: Mapping[str, str], number: int) -> None:
        self._file = tempfile.NamedTemporaryFile("w+", suffix=f"-{peer.name}.log", delete=False)
        self._errors = open(self._file.name + ".err", "w")
        self._number = number
        self._process = subprocess.Popen(
            peer.command,
            env={**os.environ, **peer.env, **env},
            stdout=self._file,
            stderr=self._errors,
            cwd=HERE,
        )

    def events(self) -> list[Event]:
        found = []
        for line in Path(self._file.name).read_text().splitlines():
            with contextlib.suppress(ValueError, IndexError):
                at, what, n, *key = line.split(" ")
                if what in {"start", "end", "fail", "cut", "batch", "letter"}:
                    found.append(Event(float(at), what, int(n), "".join(key), self._number))
        return found

    @property
    def is_up(self) -> bool:
        return self._process.poll() is None

    def memory(self) -> int:
        return psutil.Process(self._process.pid).memory_info().rss if self.is_up else 0

    def processor(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self, within: float = 30.0) -> float:
        """SIGTERM; returns the seconds until the end."""
        begin = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()
        return time.monotonic() - begin


@dataclass
class Scene:
    """A topic and a group for one peer in one situation."""

    broker: EmbeddedKafka
    peer: Peer
    topic: str
    processes: list[Process] = field(default_factory=list)

    def produce(self, messages: Iterable[tuple[str, Mapping[str, Any]]], padding: int = 0) -> None:
        asyncio.run(_produce(self.broker.bootstrap, self.topic, messages, padding))

    def start(self, **env: str) -> Process:
        base = {"KAFKA": self.broker.bootstrap, "TOPIC": self.topic, "GROUP": f"g-{self.topic}"}
        ours = {"PYTHONPATH": str(HERE.parents[1] / "src")} if self.peer.name == "Penstock" else {"PYTHONPATH": ""}
        process = Process(self.peer, {**base, **ours, **env}, len(self.processes))
        self.processes.append(process)
        return process

    def wait(self, condition: Callable[[], object], within: float = JOIN) -> bool:
        """Whether the condition came to hold."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(0.05)
        return False

    def committed(self) -> dict[int, int]:
        return asyncio.run(_committed(self.broker.bootstrap, f"g-{self.topic}"))


async def _produce(
    bootstrap: str, topic: str, messages: Iterable[tuple[str, Mapping[str, Any]]], padding: int
) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=5) as producer:
        for key, message in messages:
            value = json.dumps(message).encode() + b" " * padding
            await producer.send(topic, value, key=key.encode())


async def _committed(bootstrap: str, group: str) -> dict[int, int]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        found = await admin.list_consumer_group_offsets(group)
    finally:
        await admin.close()
    return {at.partition: meta.offset for at, meta in found.items() if isinstance(at, Partition)}


def message(n: int, seconds: float = 0.005, fails: str = "") -> dict[str, Any]:
    return {"n": n, "seconds": seconds, "fails": fails}


def ended(*processes: Process) -> Counter[int]:
    return Counter(each.n for process in processes for each in process.events() if each.what == "end")


def failures(process: Process) -> Counter[int]:
    return Counter(each.n for each in process.events() if each.what == "fail")


from .situations import SITUATIONS  # noqa: E402


def main(chosen: list[str]) -> None:
    only = os.environ.get("ONLY", "").split(",")
    with embedded_kafka() as broker:
        for name, (partitions, situation) in SITUATIONS.items():
            if chosen and name not in chosen:
                continue
            print(f"\n== {name}: {situation.__doc__}", flush=True)
            for number, peer in enumerate(ALL):
                if only != [""] and peer.name not in only:
                    continue
                topic = f"{name}-{number}-{int(time.time())}"
                broker.create_topic(topic, partitions=partitions)
                scene = Scene(broker, peer, topic)
                try:
                    print(f"{peer.name:18} {situation(scene)}", flush=True)
                finally:
                    for process in scene.processes:
                        process.kill()


if __name__ == "__main__":
    main(sys.argv[1:])
