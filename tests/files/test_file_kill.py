"""One process at a time, and processes that are killed in the middle of a write.

White box: the search for the end of the last whole line or frame.
"""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING

import pytest
import zstandard
from tests.files.file_help import lines, told, writer, written

from sluicegate import ConfigError, RefusedError
from sluicegate.files import FileSink
from sluicegate.files.repair import whole_frames, whole_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sluicegate.batcher import LoopClock


def delivered(path: Path) -> list[int]:
    return [line["n"] for line in lines(path) if isinstance(line, dict)]


@pytest.mark.parametrize("most", [5_000, 12_345, 40_000])
async def test_a_process_that_dies_within_a_write_leaves_nothing_that_cannot_be_read(
    real_clock: LoopClock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    most: int,
) -> None:
    """The system kills the writer once its file is `most` bytes long, so only the first bytes of a
    write are stored.
    """
    path = tmp_path / "a.jsonl"
    with writer(path, most=most) as process:
        acknowledged = told(process)
    assert process.returncode == -signal.SIGXFSZ
    assert path.stat().st_size == most
    before = path.read_bytes()
    with caplog.at_level(logging.WARNING, "sluicegate.file"):
        async with FileSink(path) as sink:
            assert await written(sink, ["after"]) == {}
    (warning,) = caplog.messages
    torn = (tmp_path / f"{path.name}.torn").read_bytes()
    assert str(len(torn)) in warning
    assert before.endswith(torn)
    found = delivered(path)
    assert found == list(range(len(found))), "no line is lost, doubled or broken"
    assert acknowledged <= len(found) <= acknowledged + 10, (
        "of the batch that was cut, whole lines may stay"
    )
    assert lines(path)[-1] == "after"


async def test_every_line_that_was_delivered_outlives_kill_9(
    real_clock: LoopClock, tmp_path: Path
) -> None:
    """Killed repeatedly, at any step, after its 1st, 2nd, ... batch was acknowledged."""
    path = tmp_path / "a.jsonl"
    whole = 0
    for round_ in range(1, 6):
        with writer(path, items=200, fsync="never") as process:
            assert process.stdout is not None
            acknowledged = [int(process.stdout.readline()) for _ in range(round_)][-1]
            process.send_signal(signal.SIGKILL)
            acknowledged = max(acknowledged, told(process))
        async with FileSink(path):
            found = delivered(path)[whole:]
        assert found == list(range(len(found)))
        assert acknowledged <= len(found) <= acknowledged + 200
        whole += len(found)


async def test_one_process_at_a_time(real_clock: LoopClock, tmp_path: Path) -> None:
    """The lock of a killed process is released."""
    path = tmp_path / "a.jsonl"
    sink = FileSink(path)
    with writer(path) as process:
        assert process.stdout is not None
        for _ in range(10):
            assert process.stdout.readline()
            with pytest.raises(ConfigError, match="another process"):
                async with sink:
                    pass
        process.send_signal(signal.SIGKILL)
    async with sink:
        with pytest.raises(ConfigError, match="another sink"):
            async with FileSink(path):
                pass
        assert await written(sink, ["mine"]) == {}
    async with FileSink(path):
        pass


async def test_a_lock_file_that_is_removed_admits_no_second_writer(
    real_clock: LoopClock, tmp_path: Path
) -> None:
    """For example by a program that removes old files. With two writers, one would undo lines of
    the other.
    """
    path, lock = tmp_path / "a.jsonl", tmp_path / "a.jsonl.lock"
    async with FileSink(path) as sink:
        lock.unlink()
        assert await written(sink, [1]) == {}
        with pytest.raises(ConfigError, match="another sink"):
            async with FileSink(path):
                pass
        lock.unlink()
        async with FileSink(path) as other:
            assert await written(other, [2]) == {}
            (error,) = (await written(sink, [3])).values()
            assert isinstance(error, RefusedError)
            assert error.repair.startswith("stop the other writer")
            assert await written(other, [4]) == {}
        assert await written(sink, [3]) == {}
    assert lines(path) == [1, 2, 4, 3]


async def test_a_folder_that_is_renamed_takes_its_lock_with_it(
    real_clock: LoopClock, tmp_path: Path
) -> None:
    """The folder that takes its place has a new lock file, which is locked."""
    folder = tmp_path / "logs"
    folder.mkdir()
    async with FileSink(folder / "a.jsonl") as sink:
        assert await written(sink, [1]) == {}
        folder.rename(tmp_path / "earlier")
        folder.mkdir()
        assert await written(sink, [2]) == {}
        with pytest.raises(ConfigError, match="another sink"):
            async with FileSink(folder / "a.jsonl"):
                pass
    assert [lines(tmp_path / name / "a.jsonl") for name in ("earlier", "logs")] == [[1], [2]]


def length_of(path: Path, content: bytes, whole: Callable[[int], int]) -> int:
    path.write_bytes(content)
    file = os.open(path, os.O_RDONLY)
    try:
        return whole(file)
    finally:
        os.close(file)


@pytest.mark.parametrize(
    ("content", "whole"),
    [(b"", 0), (b"\n", 1), (b"a", 0), (b"a\nb", 2), (b"a\nb\n", 4), (b"a\n" + b"x" * 200_000, 2)],
)
def test_text_is_whole_up_to_its_last_newline(tmp_path: Path, content: bytes, whole: int) -> None:
    assert length_of(tmp_path / "a", content, whole_lines) == whole


def frames() -> dict[str, bytes]:
    noise = os.urandom(300)
    made = {
        "small": zstandard.ZstdCompressor().compress(b"hello\n"),
        "noise": zstandard.ZstdCompressor().compress(noise),
        "summed": zstandard.ZstdCompressor(write_checksum=True).compress(noise * 3),
        "repeated": zstandard.ZstdCompressor().compress(b"\0" * 100_000),
        "sizeless": zstandard.ZstdCompressor(write_content_size=False).compress(b"word " * 300),
        "skipped": b"\x5a\x2a\x4d\x18" + (7).to_bytes(4, "little") + b"comment",
        "empty": zstandard.ZstdCompressor().compress(b""),
    }
    long = b"".join(b"%d, " % number for number in range(60_000))
    return {**made, "blocks": zstandard.ZstdCompressor(level=1).compress(long)}


FRAMES = frames()


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_is_whole_to_its_last_byte(tmp_path: Path, name: str) -> None:
    first, last = FRAMES["small"], FRAMES[name]
    path = tmp_path / "a"
    assert length_of(path, first + last + first, whole_frames) == len(first + last + first)
    cuts = (
        range(len(last))
        if len(last) < 1000
        else [*range(40), *range(len(last) // 2, len(last) // 2 + 9), len(last) - 1]
    )
    for cut in cuts:
        assert length_of(path, first + last[:cut], whole_frames) == len(first), cut
    assert length_of(path, first + last + b"\0" * 50, whole_frames) == len(first + last), (
        "what a power cut may leave"
    )
    assert length_of(
        path, first + last + b"\x28\xb5\x2f\xfd\x20\x00\x07\x00\x00", whole_frames
    ) == len(first + last), "a kind to come"
