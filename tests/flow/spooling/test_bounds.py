"""The bounds of a spool: what happens to producers there, and the space on disk."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from spooling.spools import spooled, stored
from tests.properties import how_many

from sluicegate import ItemFailed, Outcome
from sluicegate.errors import DeliverTimeout, LedgerFull
from sluicegate.flow import Spool
from sluicegate.testing import BlockingSink, FakeSink

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate import Batcher
    from sluicegate.testing import FakeClock


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (131072, 131072),
        ("131072", 131072),
        ("512KB", 512_000),
        ("512 KiB", 512 << 10),
        ("3MB", 3_000_000),
        (" 3MiB ", 3 << 20),
        ("2GB", 2_000_000_000),
        ("2GiB", 2 << 30),
        ("1.5GiB", 3 << 29),
        (None, None),
    ],
)
def test_sizes_are_numbers_of_bytes_or_have_a_unit(
    tmp_path: Path, given: int | str | None, size: int | None
) -> None:
    assert Spool(tmp_path, max_bytes=given)._folder.settings.max_bytes == size
    if size is not None:
        assert Spool(tmp_path, segment_bytes=given)._folder.settings.segment_bytes == size


async def fill(batcher: Batcher[str]) -> int:
    """Add items until one is not stored within a second; return their number, without that one."""
    for count in range(100):
        try:
            await batcher.deliver("x" * 2000, timeout=1)
        except (DeliverTimeout, LedgerFull, ItemFailed):
            return count
    return 100


@pytest.mark.parametrize("bound", ["max_items", "max_bytes"])
@pytest.mark.parametrize("overflow", ["block", "reject", "drop_newest"])
async def test_a_full_spool_makes_producers_wait_or_refuses_items(
    tmp_path: Path, fake_clock: FakeClock, overflow: str, bound: str
) -> None:
    sink = BlockingSink[str]()
    spool: dict[str, Any] = {"max_items": 40} if bound == "max_items" else {"max_bytes": "128KiB"}
    async with spooled(tmp_path / "spool", sink, fake_clock, spool, overflow=overflow) as batcher:
        count = await fill(batcher)
        assert count == 40 if bound == "max_items" else 10 < count < 66
        assert len(stored(tmp_path / "spool")) == count
        began = fake_clock.now()
        if overflow == "block":
            waiting = asyncio.create_task(batcher.deliver("y"))
            await fake_clock.advance(1)
            assert not waiting.done()
            sink.release()
            assert await waiting is Outcome.SPOOLED
        else:
            expected = LedgerFull if overflow == "reject" else ItemFailed
            with pytest.raises(expected):
                await batcher.deliver("y", timeout=1)
            with pytest.raises(expected):
                await batcher.add_many(["y", "y"], timeout=1)
            assert not batcher.try_add("y")
            assert fake_clock.now() == began
            sink.release()
            await fake_clock.advance(1)
            assert await batcher.deliver("y") is Outcome.SPOOLED
    assert sink.applied.count("y") == 1
    tally = batcher.stats().tally
    assert (tally.dropped > 0) == (overflow == "drop_newest")


async def test_a_large_group_does_not_pass_max_items(tmp_path: Path, fake_clock: FakeClock) -> None:
    folder, sink = tmp_path / "spool", BlockingSink[int]()
    async with spooled(folder, sink, fake_clock, {"max_items": 10}) as batcher:
        adding = asyncio.create_task(batcher.add_many(range(100)))
        await fake_clock.advance(1)
        assert stored(folder) == [*range(10)]
        sink.release()
        await adding
    assert sink.applied == [*range(100)]


async def test_an_item_larger_than_the_spool_is_stored_alone(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    sink = FakeSink[str]()
    async with spooled(tmp_path / "spool", sink, fake_clock, {"max_bytes": "128KiB"}) as batcher:
        for item in ("a", "b" * 300_000, "c"):
            assert await batcher.deliver(item, timeout=60) is Outcome.SPOOLED
    assert [item[0] for item in sink.applied] == ["a", "b", "c"]


def size_of(folder: Path) -> int:
    """The size of all files there; the spool may delete some meanwhile."""
    total = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


@pytest.mark.hypothesis
async def test_space_returns_while_many_times_as_much_flows_through(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    folder, most, segment = tmp_path / "spool", 256 << 10, 128 << 10
    sink = FakeSink[bytes]()
    spool = {"max_bytes": most, "segment_bytes": segment, "durability": "os"}
    used, times = [], how_many(20, long=100)
    async with spooled(folder, sink, fake_clock, spool) as batcher:
        for _ in range(2 * times):
            await batcher.add_many([b"x" * (segment // 2)] * 2)
            used.append(size_of(folder))
    assert sum(map(len, sink.applied)) == times * most
    assert max(used) <= most + segment  # a file that is being closed and its log exist twice
    assert size_of(folder) <= segment
