"""A full or read-only disk refuses items: that is told, and it goes on when there is room."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.files.file_help import room
from tests.files.test_file_refused import NOBODY, mount, mounted, open_to_all, user

from sluicegate import Batcher, Outcome, RefusedError, RowBatch, flow, send
from sluicegate.flow import Spool
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import FakeClock

__all__ = ["open_to_all"]
LARGE = bytes(1 << 17)


async def test_a_full_disk_refuses_and_nothing_is_half_stored(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    """On a real file system: the item that does not fit is refused, smaller ones are stored."""
    with mounted(tmp_path / "small", "size=400k") as folder:
        async with flow.spool(folder / "spool").sink() as sink:
            assert await send(sink, RowBatch([b"1"])) == {}
            errors = await send(sink, RowBatch([b"2", bytes(1 << 19)]))
            assert [type(error) for error in errors.values()] == [RefusedError] * 2
            assert "the disk is full" in str(errors[0])
            assert await send(sink, RowBatch([b"3"])) == {}
        assert await sent(folder / "spool") == [b"1", b"3"]


async def sent(folder: Path) -> list[Any]:
    """Send what is stored."""
    sink = MemorySink[Any]()
    async with Batcher(sink, spool=Spool(folder)):
        pass
    return [*sink.items]


async def test_a_batcher_waits_for_room_and_tells_it(
    fake_clock: FakeClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Accepted items wait, `deliver` returns when they are stored, and each is sent once."""
    sink = MemorySink[bytes]()
    async with Batcher(sink, spool=Spool(tmp_path)) as batcher:
        assert await batcher.deliver(b"before") is Outcome.SPOOLED
        loop = asyncio.get_running_loop()
        with room(1 << 16), caplog.at_level(logging.WARNING):
            waiting = loop.create_task(batcher.deliver(LARGE))
            await fake_clock.wait_for(lambda: batcher.stats().destination.state == "refused")
            assert not waiting.done()
            assert "cannot be used" in caplog.text
        assert await waiting is Outcome.SPOOLED
        assert await batcher.deliver(b"after") is Outcome.SPOOLED
    assert sink.items == [b"before", LARGE, b"after"]


async def test_a_file_that_cannot_be_created_is_created_later(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    """The full segment is sealed, and the next one has no room: no offset is used twice."""
    spool = flow.spool(tmp_path, segment_bytes=1 << 16)
    async with spool.sink() as sink:
        assert await send(sink, RowBatch([LARGE])) == {}
        with room(1 << 10):
            for _ in range(2):
                (error,) = (await send(sink, RowBatch([b"x"]))).values()
                assert isinstance(error, RefusedError)
        for at in range(3):
            assert await send(sink, RowBatch([LARGE, b"%d" % at])) == {}
    assert await sent(tmp_path) == [LARGE, LARGE, b"0", LARGE, b"1", LARGE, b"2"]


@pytest.mark.parametrize("how", ["permission", "read-only"])
async def test_a_folder_that_cannot_be_written_is_refused(
    fake_clock: FakeClock, tmp_path: Path, open_to_all: Path, how: str
) -> None:
    """At opening; what is stored is sent when it can be written again."""
    if how == "permission":
        folder = open_to_all / "spool"
        folder.mkdir(mode=0o555)
        with user(NOBODY), pytest.raises(RefusedError, match="cannot be used"):
            async with flow.spool(folder).sink():
                pytest.fail("it is open")
        return
    with mounted(tmp_path / "disk", "size=4m") as disk:
        folder = disk / "spool"
        async with flow.spool(folder).sink() as sink:
            assert await send(sink, RowBatch([b"before"])) == {}
        mount("-o", "remount,ro", str(disk))
        with pytest.raises(RefusedError, match="Read-only"):
            async with flow.spool(folder).sink():
                pytest.fail("it is open")
        mount("-o", "remount,rw", str(disk))
        assert await sent(folder) == [b"before"]


async def test_a_disk_that_the_spool_has_filled_is_sent_from(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    """Although nothing can be stored, not even what is settled: files go, and there is room."""
    with mounted(tmp_path / "small", "size=4m") as folder:
        spool = flow.spool(folder / "spool", segment_bytes=1 << 16)
        batch, stored = RowBatch([bytes(1000)] * 10), 0
        async with spool.sink() as sink:
            while not await send(sink, batch):
                stored += len(batch)
                batch = RowBatch([bytes(1000)] * 10)
        sent_items = MemorySink[Any]()
        spooled = Spool(folder / "spool", segment_bytes=1 << 16)
        async with Batcher(sent_items, spool=spooled) as batcher:
            assert await batcher.deliver(b"one more") is Outcome.SPOOLED
        assert len(sent_items.items) == stored + 1
        assert sent_items.items[-1] == b"one more"
