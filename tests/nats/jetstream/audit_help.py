"""Consumers of a stream in their own processes, and the audit that their handlers write."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections import defaultdict
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nats.errors import Error as NatsError
from tests.children import child
from tests.nats.jetstream.streams_help import Stream, new_stream, until

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Callable

    from sluicegate.testing import EmbeddedNats

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("audit_child.py")
WITHIN = 120.0
"""Seconds for a block on a busy machine, which starts processes."""


class Line(NamedTuple):
    """A line about a message."""

    what: str
    member: str
    sequence: int
    key: str
    attempt: int
    at: float


class Member:
    """A consumer process."""

    def __init__(self, process: Process, name: str, log: Path, audit: Audited) -> None:
        self.process = process
        self.name = name
        self._log = log
        self._audit = audit

    def log(self) -> str:
        return self._log.read_text()

    async def until_log(self, part: str) -> None:
        """Wait until it has logged a line with this text."""

        async def is_met() -> bool:
            return part in self.log()

        await until(is_met)

    def open_gate(self) -> None:
        """Let it finish the message that it holds."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """Kill it, and record this in the audit."""
        self.process.kill()
        await self.process.wait()
        self._audit.note("killed", self.name)

    async def stop(self) -> None:
        """Stop it by SIGTERM: it drains."""
        self.process.terminate()
        code = await self.process.wait()
        self._audit.read()
        had_begun = self.name in self._audit.ready
        assert code == 0 or (code == -signal.SIGTERM and not had_begun), self.log()


class Audited:
    """A stream, its consumers, and the audit of their handlers."""

    def __init__(self, stream: Stream, folder: Path, stack: AsyncExitStack) -> None:
        self.stream = stream
        self.path = folder / f"audit-{stream.name}"
        self.path.touch()
        self._folder = folder
        self._stack = stack
        self._news = asyncio.Event()
        self._names = itertools.count(1)
        self._read_to = 0
        self._readers: list[asyncio.Task[None]] = []
        self.lines: list[Line] = []
        self.claims: list[tuple[str, str, int, float]] = []
        """Event, member, partition and time of each change."""
        self.killed: dict[str, float] = {}
        self.ready: set[str] = set()

    async def member(self, **options: Any) -> Member:
        """Start a process that consumes."""
        name = f"m{next(self._names)}"
        given = {
            "url": self.stream.server.url,
            "stream": self.stream.name,
            "partitions": self.stream.partitions,
            "name": name,
            "audit": str(self.path),
            **options,
        }
        log = self._folder / f"log-{name}"
        with log.open("w") as errors:
            process = await self._stack.enter_async_context(
                child(
                    sys.executable,
                    str(PROGRAM),
                    json.dumps(given),
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=errors,
                    cwd=ROOT,
                )
            )
        self._readers.append(asyncio.get_running_loop().create_task(self._heard(process)))
        return Member(process, name, log, self)

    async def _heard(self, process: Process) -> None:
        assert process.stdout is not None
        async for _ in process.stdout:
            self._news.set()
        self._news.set()

    def note(self, *about: object) -> None:
        """Write a line of the test itself."""
        with self.path.open("a") as file:
            file.write(f"{' '.join(map(str, about))} {time.monotonic()}\n")
        self._news.set()

    def close(self) -> None:
        for each in self._readers:
            each.cancel()

    # -- the content of the audit ------------------------------------------------------------------

    def read(self) -> None:
        """Process the lines written since."""
        with self.path.open() as file:
            file.seek(self._read_to)
            whole, end, _ = file.read().rpartition("\n")
        self._read_to += len(whole) + len(end)
        for line in whole.splitlines():
            what, member, *about, at = line.split()
            if what == "killed":
                self.killed[member] = float(at)
            elif what == "ready":
                self.ready.add(member)
            elif len(about) == 1:
                self.claims.append((what, member, int(about[0]), float(at)))
            else:
                sequence, key, attempt = about
                told = Line(what, member, int(sequence), key, int(attempt), float(at))
                self.lines.append(told)

    async def until(self, is_met: Callable[[], bool]) -> None:
        """Wait until this holds for the audit."""
        while True:
            self._news.clear()
            self.read()
            if is_met():
                return
            await self._news.wait()

    async def until_done(self, count: int) -> None:
        """Wait until this many messages were handled."""
        await self.until(lambda: len({*self.done()}) >= count)

    async def until_began(self, *sequences: int, member: Member | None = None) -> None:
        """Wait until the handlers of these messages have begun in this member."""
        name = None if member is None else member.name
        await self.until(lambda: {*sequences} <= {*self.sequences("began", name)})

    def sequences(self, what: str, member: str | None = None) -> list[int]:
        """The messages of these lines, in order."""
        found = (each for each in self.lines if each.what == what)
        return [each.sequence for each in found if member in (None, each.member)]

    def done(self) -> list[int]:
        """The handled messages, in order; some may be repeated."""
        return self.sequences("done")

    def held_by(self) -> dict[str, set[int]]:
        """The partitions of each member, according to the reports of its claims."""
        held: dict[str, set[int]] = defaultdict(set)
        for what, member, partition, _ in self.claims:
            if what == "assigned":
                held[member].add(partition)
            else:
                held[member].discard(partition)
        return held

    def shares(self) -> list[int]:
        """The number of partitions of each member."""
        return [len(share) for share in self.held_by().values()]

    def attempts(self, sequence: int, member: Member) -> list[int]:
        """The attempts of a message in a member."""
        return [
            each.attempt
            for each in self.lines
            if (each.what, each.sequence, each.member) == ("began", sequence, member.name)
        ]

    async def state(self) -> str:
        """The missing messages, the server's state, and the logs of the processes."""
        lost = sorted({*self.stream.stored} - {*self.done()})
        told = [f"{len(self.done())} done, {len(lost)} not: {lost[:10]}", str(self.killed)]
        told += [str(each) for each in (*self.claims[-20:], *self.lines[-3:])]
        told.append(f"now: {time.monotonic()}")
        name = self.stream.name
        for number in range(self.stream.partitions or 1):
            consumer = "d" if self.stream.partitions is None else f"d-{number}"
            subject = f"$JS.API.CONSUMER.INFO.{name}.{consumer}"
            try:
                answer = await self.stream.client.request(subject, b"", timeout=1)
                told.append(answer.data.decode())
            except NatsError as error:
                told.append(repr(error))
        told += [each.read_text()[-1500:] for each in sorted(self._folder.glob("log-*"))]
        return "\n--\n".join(told)

    # -- the laws ----------------------------------------------------------------------------------

    def repeats(self) -> int:
        """The number of repeated handlings of handled messages."""
        done = self.done()
        return len(done) - len({*done})

    def assert_exact(self) -> None:
        """Check that all stored messages were handled; each key's first ones in stream order."""
        wanted: dict[str, list[int]] = defaultdict(list)
        for sequence in sorted(self.stream.stored):
            wanted[self.stream.stored[sequence]].append(sequence)
        found: dict[str, list[int]] = defaultdict(list)
        for sequence in dict.fromkeys(self.done()):
            found[self.stream.stored[sequence]].append(sequence)
        lost = {*self.stream.stored} - {*self.done()}
        assert not lost, f"lost: {sorted(lost)[:20]}"
        for key, sequences in wanted.items():
            assert found[key] == sequences, key

    def assert_one_at_a_time(self) -> None:
        """Check that no key was in two handlers at once; handlers of a killed process ended with
        it.
        """
        running: dict[str, Line] = {}
        for line in self.lines:
            other = running.get(line.key)
            if line.what != "began":
                if other is not None and other.member == line.member:
                    del running[line.key]
                continue
            if other is not None:
                ended = self.killed.get(other.member, float("inf"))
                assert ended < line.at, f"{line} beside {other}"
            running[line.key] = line


@asynccontextmanager
async def audited(
    server: EmbeddedNats, folder: Path, partitions: int | None = None, **config: Any
) -> AsyncIterator[Audited]:
    """A new stream with audited consumers; the block has a time limit."""
    async with (
        asyncio.timeout(WITHIN),
        new_stream(server, partitions, **config) as stream,
        AsyncExitStack() as stack,
    ):
        made = Audited(stream, folder, stack)
        try:
            yield made
        except asyncio.CancelledError as error:
            error.add_note(await made.state())
            raise
        finally:
            made.close()
