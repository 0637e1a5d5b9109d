"""A new file by size and by time, never within a batch. White box: the names of rotated files."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from tests.files.file_help import lines, written

from sluicegate import Batcher, Limits
from sluicegate.files import FileSink
from sluicegate.files.append import archives

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import FakeClock


@pytest.mark.parametrize("name", ["a.b.jsonl", "a.jsonl.zst", "plain"])
async def test_a_new_file_begins_before_one_is_too_long(
    fake_clock: FakeClock, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    is_zstd = path.suffix == ".zst"
    async with FileSink(
        path, rotate_bytes=30 if is_zstd else 100, compression="zstd" if is_zstd else None
    ) as sink:
        for number in range(7):
            assert await written(sink, [f"{number} {'x' * 17}"] * 2) == {}
        assert await written(sink, ["long" * 100] * 3) == {}, (
            "a batch that is too long alone has a file of its own, whole"
        )
        assert await written(sink, ["end"]) == {}
    old = archives(path)
    stem, ending = {
        "a.b.jsonl": ("a.b", ".jsonl"),
        "a.jsonl.zst": ("a", ".jsonl.zst"),
        "plain": ("plain", ""),
    }[name]
    assert all(each.name.startswith(f"{stem}-20") and each.name.endswith(ending) for each in old)
    assert [len(lines(each)) for each in old] == ([2] * 7 + [3] if is_zstd else [4, 4, 4, 2, 3])
    everything = [line for each in (*old, path) for line in lines(each)]
    assert len(everything) == 18
    assert lines(path) == ["end"]


async def test_a_new_file_begins_with_every_full_period(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    """Also if the file is older than this process; an empty file is not rotated."""
    path, wall = tmp_path / "a.jsonl", fake_clock.wall_time()
    path.write_text('"yesterday"\n')
    os.utime(path, (wall - 86_400, wall - 86_400))
    hour = 3600 - wall % 3600
    sink = FileSink(path, rotate_every=3600)
    async with Batcher(sink, clock=fake_clock, limits=Limits(max_items=1)) as batcher:
        assert lines(path) == ["yesterday"]
        for wait, item in ((0.0, "today"), (hour - 1, "still"), (2, "next hour"), (7200, "later")):
            await fake_clock.advance(wait)
            await (await batcher.submit(item))
        names = [each.name for each in archives(tmp_path / "a.jsonl")]
        assert [lines(tmp_path / name) for name in sorted(names)] == [
            ["yesterday"],
            ["today", "still"],
            ["next hour"],
        ]
        assert lines(path) == ["later"]
        when = datetime.fromtimestamp(wall, UTC)
        assert sorted(names)[0] == f"a-{when:%Y%m%dT%H%M%SZ}.jsonl"


async def test_no_rotated_file_is_written_over(fake_clock: FakeClock, tmp_path: Path) -> None:
    async with Batcher(
        FileSink(tmp_path / "a.jsonl", rotate_bytes=1), clock=fake_clock, limits=Limits(max_items=1)
    ) as batcher:
        for number in range(12):
            await (await batcher.submit(number))
    old = archives(tmp_path / "a.jsonl")
    assert len(old) == 11
    assert [lines(each) for each in old] == [[number] for number in range(11)]


async def test_rotated_files_stay_in_order_although_the_clock_was_set_back(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    """The file with the latest time is from before the change."""
    path = tmp_path / "a.jsonl"
    for name, item in (("a-20990101T000000Z", "first"), ("a-20990101T000000Z-1", "second")):
        (tmp_path / f"{name}.jsonl").write_text(f'"{item}"\n')
    async with FileSink(path, rotate_bytes=1) as sink:
        for item in ("third", "fourth", "last"):
            assert await written(sink, [item]) == {}
    assert [lines(each) for each in archives(path)] == [
        ["first"],
        ["second"],
        ["third"],
        ["fourth"],
    ]
    assert lines(path) == ["last"]
