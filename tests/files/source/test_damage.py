"""Truncated, damaged, changed and missing files: reported by name, and never misread."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING

import pytest
from tests.files.source.files_help import GZIP, ZSTD, Handled, handled, lines, path_of, reading
from tests.files.source.test_rows import parquet

from sluicegate import Consumer
from sluicegate.consumer import Position
from sluicegate.files import FileSource, UnreadFiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sluicegate import Message
    from sluicegate.batcher import LoopClock

COUNT = 3_000


def written(path: Path) -> bytes:
    """The content of a file of `COUNT` rows, in the format that its name tells."""
    if path.suffix == ".parquet":
        parquet(path, COUNT, 1_000)
        return path.read_bytes()
    if path.suffix == ".csv":
        return b"at,said\n" + b"".join(b'%d,"x\ny"\n' % at for at in range(COUNT))
    compress: Callable[[bytes], bytes] = GZIP if path.suffix == ".gz" else ZSTD
    return compress(lines(COUNT))


@pytest.mark.parametrize("name", ["b.ndjson.gz", "b.ndjson.zst", "b.csv", "b.parquet"])
async def test_a_file_that_is_cut_off_is_told_and_its_good_rows_are_delivered(
    tmp_path: Path, real_clock: LoopClock, name: str
) -> None:
    """The other files are delivered, too. The next run reports it again and repeats nothing."""
    for other in ("a.ndjson", "c.ndjson"):
        (tmp_path / other).write_bytes(b"1\n")
    path = tmp_path / name
    content = written(path)
    cut = content[: content.rindex(b"x\ny") + 1] if name.endswith(".csv") else content[:-200]
    path.write_bytes(cut)
    done = Handled()
    with pytest.raises(UnreadFiles, match=rf"not read to the end: {name} \(") as caught:
        await handled(FileSource(tmp_path), done)
    assert [*caught.value.files] == [name]
    good = [row for file, row in done.places if file == name]
    assert good == [*range(len(good))]
    assert len(good) < COUNT
    if name.endswith((".gz", ".csv")):
        assert len(good) > COUNT / 2
    assert [place for place in done.places if place[0] != name] == [
        ("a.ndjson", 0),
        ("c.ndjson", 0),
    ]
    with pytest.raises(UnreadFiles, match=name):
        await handled(FileSource(tmp_path), done)
    assert len(done) == len(good) + 2


async def test_a_copy_that_was_cut_off_and_completed_is_another_file(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """It is refused under its old name, and read from its first row under a new one."""
    path = tmp_path / "b.ndjson.gz"
    content = written(path)
    path.write_bytes(content[:-200])
    done = Handled()
    with pytest.raises(UnreadFiles, match="cut off"):
        await handled(FileSource(path), done)
    path.write_bytes(content)
    with pytest.raises(UnreadFiles, match="when it was found"):
        await handled(FileSource(path), done)
    path.rename(tmp_path / "c.ndjson.gz")
    done.clear()
    with pytest.raises(UnreadFiles, match=r"b\.ndjson\.gz \(it no longer exists"):
        await handled(FileSource(tmp_path), done)
    assert done.places == [("c.ndjson.gz", row) for row in range(COUNT)]


async def test_a_file_that_can_be_read_again_is_read_by_the_next_run(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(lines(10))
    async with reading(FileSource(path)):
        pass  # it is found
    content, status = path.read_bytes(), path.stat()
    path.write_bytes(b"other")
    with pytest.raises(UnreadFiles, match=r"a\.ndjson \(it has 5 bytes now"):
        await handled(FileSource(path))
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert len(await handled(FileSource(path))) == 10


@pytest.mark.parametrize("name", ["b.ndjson.gz", "b.ndjson.zst", "b.parquet"])
@pytest.mark.parametrize("at", [0.0, 0.3, 0.9])
async def test_damage_within_a_file_is_told(
    tmp_path: Path, real_clock: LoopClock, name: str, at: float
) -> None:
    """No later than at a checksum: of a Parquet page, or at the end of compressed data."""
    path = tmp_path / name
    content = bytearray(written(path))
    start = int(len(content) * at)
    content[start : start + 40] = bytes(each ^ 0xFF for each in content[start : start + 40])
    path.write_bytes(content)
    done = Handled()
    with pytest.raises(UnreadFiles, match=name):
        await handled(FileSource(path), done)
    assert [row for _, row in done.places] == [*range(len(done))]


def changed_size(path: Path) -> None:
    path.write_bytes(lines(101))


def changed_within(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"u5"', b'"u6"', 1))


def removed(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("settled", [0, 50, 100])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (changed_size, "it has 2"),
        (changed_within, "it was written to since it was found"),
        (removed, "it no longer exists"),
    ],
)
async def test_a_file_that_has_changed_since_it_was_found_is_told(
    tmp_path: Path,
    real_clock: LoopClock,
    change: Callable[[Path], None],
    told: str,
    settled: int,
) -> None:
    """No other content is delivered from an old position, whatever its row."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.ndjson").write_bytes(lines(100))
    async with reading(FileSource(tmp_path)) as reader:
        (claim,) = reader.host.open
        await reader.read([claim], 100)
        await reader.source.commit({claim: Position(settled)})
    change(tmp_path / "a.ndjson")
    done = Handled()
    if settled == 100:  # it is finished
        told = "" if change is removed else "it was written to after it had been read to its end"
    if not told:
        await handled(FileSource(tmp_path), done)
    else:
        with pytest.raises(UnreadFiles, match=rf"a\.ndjson \({told}") as caught:
            await handled(FileSource(tmp_path), done)
        assert [*caught.value.files] == ["a.ndjson"]
    assert {path_of(message) for message in done} == {"b.ndjson"}
    assert len(done) == 100


async def test_a_file_that_grows_while_it_is_read_is_told(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """The rows read so far are right, but wrong ones may follow."""
    path = tmp_path / "a.ndjson"
    path.write_bytes(lines(5_000))
    done = Handled()

    async def handle(message: Message) -> None:
        done.append(message)
        if len(done) == 10:
            with path.open("ab") as file:
                file.write(b"more\n")

    with pytest.raises(UnreadFiles, match="it was written to while it was read"):
        await Consumer(FileSource(path), in_flight=100).run(handle)
    assert done.values[:5_000] == lines(5_000).splitlines()


def test_the_error_of_unread_files_travels() -> None:
    error = UnreadFiles({f"{n}.ndjson": "why" for n in range(7)})
    assert str(error).endswith("4.ndjson (why); and 2 more")
    assert pickle.loads(pickle.dumps(error)).files == error.files


async def test_a_row_whose_key_function_raises_is_poison_alone(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    (tmp_path / "a.ndjson").write_bytes(b"1\n2\n3\n")
    source = FileSource(tmp_path, key=lambda value: {b"1": 1, b"3": 3}[value])
    found: list[object] = []

    async def handle(message: Message) -> None:
        found.append(message.value)

    report = await Consumer(source, poison="skip").run(handle)
    assert sorted(found, key=repr) == [b"1", b"3"]
    assert report.counts.terminated == 1


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
async def test_a_file_without_the_column_of_the_keys_is_told(
    tmp_path: Path, real_clock: LoopClock, name: str
) -> None:
    """Otherwise it would be read without keys, and so without order."""
    path = tmp_path / name
    path.write_bytes(written(path))
    with pytest.raises(UnreadFiles, match=f"{name} .it has no column 'nothing', which key= names"):
        await handled(FileSource(tmp_path, key="nothing"))
