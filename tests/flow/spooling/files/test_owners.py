"""One process writes to a spool, and one sends: locks, and files that change hands.

White box: the names of files.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spooling.files.store_help import files
from tests.children import child

from sluicegate import Batcher, ConfigError, RowBatch, flow, send
from sluicegate.consumer import Commits
from sluicegate.flow import Spool
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncGenerator

    from sluicegate._core.clock import LoopClock
    from sluicegate.testing import FakeClock

CHILD = Path(__file__).with_name("spool_child.py")
NEVER = 1000.0


@asynccontextmanager
async def end(folder: Path, name: str, count: int, seal_every: float) -> AsyncGenerator[Process]:
    command = (sys.executable, str(CHILD), str(folder), name, str(count), str(seal_every))
    async with child(*command, stdin=PIPE, stdout=PIPE) as process:
        yield process


async def lines(process: Process, count: int = -1) -> list[str]:
    assert process.stdout is not None
    if count < 0:
        return (await process.stdout.read()).decode().split()
    return [(await process.stdout.readline()).decode().strip() for _ in range(count)]


async def sent(folder: Path) -> list[Any]:
    """Send what is stored."""
    sink = MemorySink[Any]()
    async with Batcher(sink, spool=Spool(folder)):
        pass
    return [*sink.items]


@pytest.mark.parametrize("role", ["writes to", "sends"])
async def test_a_second_owner_in_the_process_is_refused(
    fake_clock: FakeClock, tmp_path: Path, role: str
) -> None:
    """Another object for the same folder; the other role is free."""

    def made(role: str) -> Spool:
        spool = flow.spool(tmp_path)
        spool.sink() if role == "writes to" else spool.source()
        return spool

    async with made(role)._folder.opened():
        with pytest.raises(ConfigError, match=rf"this process \(\d+\) {role} it"):
            async with made(role)._folder.opened():
                pytest.fail("it is open")
        async with made("sends" if role == "writes to" else "writes to")._folder.opened():
            pass
    async with made(role)._folder.opened():
        pass


async def test_an_end_cannot_be_added_while_the_other_is_open(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    """Its lock and its files are taken at opening."""
    spool = flow.spool(tmp_path)
    async with spool.sink():
        spool.sink()
        with pytest.raises(ConfigError, match="call sink"):
            spool.source()


async def test_a_second_process_is_refused_until_the_first_is_killed(
    real_clock: LoopClock, tmp_path: Path
) -> None:
    """SIGKILL ends its lock, and what it has stored is there."""
    async with end(tmp_path, "write", 3, NEVER) as writer:
        assert await lines(writer, 4) == ["open", "0", "1", "2"]
        with pytest.raises(ConfigError, match=f"process {writer.pid} writes to it"):
            await sent(tmp_path)
        writer.kill()
        await writer.wait()
        assert await sent(tmp_path) == [0, 1, 2]


async def test_a_forked_child_leaves_the_files_to_its_parent(
    real_clock: LoopClock, tmp_path: Path
) -> None:
    """It can use neither the object nor the folder, and its exit does not end the parent's log."""
    async with end(tmp_path, "fork", 0, NEVER) as process:
        assert await lines(process) == ["forked", "True"]
    assert await sent(tmp_path) == ["of the parent", "after the child"]


@pytest.mark.parametrize("is_killed", [False, True])
async def test_one_process_writes_and_another_sends(
    real_clock: LoopClock, tmp_path: Path, *, is_killed: bool
) -> None:
    """A living writer seals its file after a while; the file of a killed one is taken over."""
    async with (
        end(tmp_path, "send", 50, NEVER) as sender,
        end(tmp_path, "write", 50, NEVER if is_killed else 0.01) as writer,
    ):
        await lines(writer, 51)
        if is_killed:
            writer.kill()
        assert await lines(sender) == [str(number) for number in range(50)]
        assert await sender.wait() == 0
        if not is_killed:
            assert writer.returncode is None
            assert writer.stdin is not None
            writer.stdin.close()
            assert await writer.wait() == 0
    assert await sent(tmp_path) == []


@asynccontextmanager
async def sending(folder: Path, sink: Any) -> AsyncGenerator[None]:
    """Send by a pipe with a `Spool` of its own, as another process does."""
    pipe = flow.pipe(
        flow.spool(folder).source(),
        Batcher(sink),
        lambda message: message.value,
        commits=Commits(every=0.1),
    )
    running = asyncio.ensure_future(pipe.run())
    try:
        yield
    finally:
        pipe.stop()
        await running


async def test_items_are_handed_over_after_a_second(fake_clock: FakeClock, tmp_path: Path) -> None:
    """Counted from the first item of a file; an idle writer makes no files."""
    sink = MemorySink[Any]()
    async with flow.spool(tmp_path).sink() as end, sending(tmp_path, sink):

        async def hand_over(number: int) -> float:
            await fake_clock.advance(10)
            before = fake_clock.now()
            assert await send(end, RowBatch([number])) == {}
            await fake_clock.wait_for(lambda: number in sink.items)
            return fake_clock.now() - before

        for number in range(3):
            assert 1.0 <= await hand_over(number) <= 2.5
        await fake_clock.advance(10)
        assert len(files(tmp_path)) == 1, "a settled file is left"
    assert sink.items == [0, 1, 2]


@pytest.mark.parametrize("bound", [{"max_items": 4}, {"max_bytes": 1 << 18}])
async def test_a_writer_waits_until_the_other_process_has_sent(
    fake_clock: FakeClock, tmp_path: Path, bound: dict[str, int]
) -> None:
    """The bounds count files that the sender has open, and no offset is used twice."""
    sink = MemorySink[Any]()
    many = [b"%d" % at + bytes(1 << 14) for at in range(40)]

    async def write() -> None:
        for at in range(0, 40, 10):
            async with flow.spool(tmp_path, **bound).sink() as end:
                for item in many[at : at + 10]:
                    assert await send(end, RowBatch([item])) == {}

    writing = asyncio.ensure_future(write())
    await fake_clock.advance(100)
    assert not writing.done()
    stored = len(files(tmp_path))
    async with sending(tmp_path, sink):
        await writing
        await fake_clock.wait_for(lambda: len(sink.items) == 40)
    assert sink.items == many
    assert stored > 1
