"""The rows of each format, as records.

White box: the reader of Parquet, since a source does not show its chunks.
"""

from __future__ import annotations

import datetime as dt
import gzip
import resource
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.files.source.files_help import GZIP, ZSTD, handled, path_of, reading, rows

from sluicegate import ConfigError, Consumer
from sluicegate.consumer import Poison, Position
from sluicegate.files import FileSource, UnreadFiles
from sluicegate.files.source.finding import record
from sluicegate.files.source.parquet_rows import ParquetReader
from sluicegate.files.source.readers import FileBytes
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sluicegate import Message
    from sluicegate.batcher import LoopClock


def plain(content: bytes) -> bytes:
    return content


def many(compress: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Several members or frames, one after another, which end within lines."""
    return lambda content: b"".join(
        compress(content[at : at + 1_000]) for at in range(0, len(content), 1_000)
    )


COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "": plain,
    ".gz": GZIP,
    ".zst": ZSTD,
    ".ZST": many(ZSTD),
    ".GZ": many(GZIP),
}


@pytest.mark.parametrize("ending", COMPRESSED)
async def test_lines_are_delivered_as_they_are(
    tmp_path: Path, real_clock: LoopClock, ending: str
) -> None:
    """Whatever they contain, compressed or not, in one member or several."""
    written = [b'{"n": 1}', b"no json", b" \xff\xfe ", b"x" * 70_000, '"\u2028ü"'.encode()] * 40
    content = COMPRESSED[ending](b"\n".join(written) + b"\n")
    assert await rows(tmp_path, content, f"a.jsonl{ending}") == written


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"1\n2\n3", [(0, b"1"), (1, b"2"), (2, b"3")]),
        (b"1\r\n2\r\n", [(0, b"1"), (1, b"2")]),
        (b"\xef\xbb\xbf1\n\xef\xbb\xbf2\n", [(0, b"1"), (1, b"\xef\xbb\xbf2")]),
        (b"\n1\n\n\r\n2\n\n", [(1, b"1"), (4, b"2")]),
        (b"1\r2\n", [(0, b"1\r2")]),
        (b"\xef\xbb\xbf", []),
        (b"\n\n", []),
        (b"", []),
    ],
)
async def test_rows_have_the_numbers_of_their_lines(
    tmp_path: Path, real_clock: LoopClock, content: bytes, found: list[tuple[int, bytes]]
) -> None:
    """Also behind empty lines; line ends and a byte order mark are not part of a row."""
    (tmp_path / "a.ndjson").write_bytes(content)
    done = await handled(FileSource(tmp_path))
    assert [(message.offset, message.value) for message in done] == found
    assert await handled(FileSource(tmp_path)) == [], "it is finished"


async def test_rows_of_csv_are_those_of_its_reader(tmp_path: Path, real_clock: LoopClock) -> None:
    """Newlines and quotes within fields, both kinds of line ends, and rows of other lengths."""
    content = 'name,said\r\nann,"one\r\ntwo, ""three"""\r\n\nbob\nüwe,x,y\ncid,"last"'
    expected = [
        {"name": "ann", "said": 'one\r\ntwo, "three"'},
        {"name": "bob", "said": None},
        {"name": "üwe", "said": "x", None: ["y"]},
        {"name": "cid", "said": "last"},
    ]
    assert await rows(tmp_path, content, "a.csv") == expected
    assert await rows(tmp_path, "\ufeff" + content, "b.csv") == expected
    assert await rows(tmp_path, GZIP(content.encode()), "c.csv.gz") == expected
    assert await rows(tmp_path, "", "e.csv") == []
    assert await rows(tmp_path, "name,said\n", "f.csv") == []


async def test_options_of_csv_are_those_of_the_reader(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    options = {"delimiter": ";", "fieldnames": ["a", "b"], "strict": False}
    assert await rows(tmp_path, '1;2\n3;"4', "a.csv", csv_options=options) == [
        {"a": "1", "b": "2"},
        {"a": "3", "b": "4"},
    ]


def parquet(path: Path, count: int, group: int) -> None:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    table = pa.table(
        {
            "user": [f"u{n % 10}" for n in range(count)],
            "at": list(range(count)),
            "tags": [[n, None] for n in range(count)],
            "when": [at] * count,
        }
    )
    pq.write_table(table, path, row_group_size=group, write_page_checksum=True)


@pytest.mark.parametrize("group", [1_000, 2_400, 5_000])
@pytest.mark.parametrize("start", [0, 1, 999, 1_000, 1_001, 2_500, 3_499, 3_500])
async def test_rows_of_parquet_are_found_again_by_their_number(
    tmp_path: Path, real_clock: LoopClock, start: int, group: int
) -> None:
    """Across row groups and at their ends; the number of rows is known from the beginning."""
    parquet(tmp_path / "a.parquet", 3_500, group)
    source = FileSource(tmp_path, key="user", subscription="s")
    async with reading(source) as reader:
        (claim,) = reader.host.open
        await reader.read([claim], max(1, start), most=100)
        assert await source.ends([claim]) == {claim: 3_500}
        assert [*await source.commit({claim: Position(start)})] == [claim]
    done = await handled(source)
    assert [message.offset for message in done] == [*range(start, 3_500)]
    if start == 3_500:
        return
    assert done[-1].value == {
        "user": "u9",
        "at": 3_499,
        "tags": [3_499, None],
        "when": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    }
    assert done[-1].key == "u9"


def test_large_rows_of_parquet_are_decoded_few_at_a_time(tmp_path: Path) -> None:
    """So memory does not grow with the size of the rows."""
    table = pa.table({"blob": [bytes([at]) * (1 << 20) for at in range(20)]})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    recorded = record(tmp_path, "a.parquet")
    file = FileBytes(tmp_path / "a.parquet", recorded, None)
    reader = ParquetReader(file, 0, column=None)
    read: list[int] = []
    while not (chunk := reader.read(1_000)).is_end:
        read.append(len(chunk.rows))
    reader.close()
    assert sum(read) == 20
    assert max(read) <= 4


async def test_a_record_has_its_file_and_its_time(tmp_path: Path, real_clock: LoopClock) -> None:
    (tmp_path / "2026" / "ä b").mkdir(parents=True)
    path = tmp_path / "2026" / "ä b" / "x.ndjson"
    path.write_bytes(b"1\n")
    (message,) = await handled(FileSource(tmp_path, subscription="orders"))
    assert (message.topic, message.partition, message.offset) == ("orders", 0, 0)
    assert [*message.headers] == [("file", "2026/ä b/x.ndjson".encode())]
    assert message.timestamp == path.stat().st_mtime_ns // 1_000_000


def user(value: Any) -> object:
    return value["user"] if isinstance(value, dict) else value[9:12]


@pytest.mark.parametrize("key", ["user", user])
async def test_keys_are_of_a_column_or_a_function(
    tmp_path: Path, real_clock: LoopClock, key: Any
) -> None:
    """A line of NDJSON without that field has no key; the decoder handles it."""
    (tmp_path / "a.csv").write_text("at,user\n1,ann\n2,bob\n")
    done = await handled(FileSource(tmp_path, key=key))
    assert [message.key for message in done] == ["ann", "bob"]
    (tmp_path / "b.ndjson").write_bytes(b'{"user":"cid"}\n{"user":"dan"}\n')
    keys = [message.key for message in await handled(FileSource(tmp_path, key=key))]
    assert keys == (["cid", "dan"] if key == "user" else [b"cid", b"dan"])
    if key == "user":
        done = await handled(FileSource(tmp_path, key="nothing", subscription="t", format="ndjson"))
        assert {message.key for message in done} == {None}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.ndjson", b"x" * 20),
        ("a.ndjson", b"x" * 20 + b"\n"),
        ("a.ndjson", b"x" * 20 + b"\r\n"),
        ("a.csv", b'n\n"' + b"x\n" * 10 + b'"'),
        ("a.csv", b"n\n" + b"x" * 20 + b"\n"),
    ],
)
async def test_a_row_over_the_limit_is_told(
    tmp_path: Path, real_clock: LoopClock, name: str, content: bytes
) -> None:
    with pytest.raises(UnreadFiles, match=rf"{name} \(row 0 is longer than max_row_bytes=19\)"):
        await rows(tmp_path, content, name, max_row_bytes=19)
    assert len(await rows(tmp_path, content, name, max_row_bytes=40, subscription="t")) == 1


@pytest.mark.parametrize("ending", [".ndjson", ".csv", ".ndjson.gz"])
async def test_a_large_file_without_a_line_takes_little_memory(
    tmp_path: Path, real_clock: LoopClock, ending: str
) -> None:
    """Only as much of a gigabyte is read as a row may have."""
    path = tmp_path / f"a{ending}"
    if ending.endswith(".gz"):
        path.write_bytes(gzip.compress(bytes(1 << 22), 1) * 256)
    else:
        with path.open("wb") as file:
            file.truncate(1 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnreadFiles, match="longer than max_row_bytes"):
        await handled(FileSource(path, max_row_bytes=1 << 20))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 << 10, f"{grown} KiB"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"path": ""}, "path"),
        ({"format": "xml"}, "format"),
        ({"key": 3}, "key"),
        ({"subscription": ""}, "subscription"),
        ({"state": ""}, "state"),
        ({"files_at_once": 0}, "files_at_once"),
        ({"max_row_bytes": 0}, "max_row_bytes"),
    ],
)
def test_a_bad_argument_is_named(given: dict[str, Any], said: str) -> None:
    options = {**given}
    with pytest.raises(ConfigError, match=f"^{said}="):
        FileSource(options.pop("path", "x"), **options)


async def test_a_row_that_cannot_be_decoded_is_poison_alone(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """O-T18: the rows around it are handled, and the file is not damaged."""
    (tmp_path / "a.csv").write_bytes(
        b"user,note\n" + b"u1,a\n" + b'u2,"b\n\xff"\n' + b"u1,c\n" + b"\xfe,d\n" + b"u3,e\n"
    )
    days = pa.array([1, -10_000_000, 2, 3], pa.int32()).cast(pa.date32())
    pq.write_table(
        pa.table({"user": ["u1", "u2", "u1", "u3"], "day": days}), tmp_path / "c.parquet"
    )
    letters = MemorySink[Any]()
    source = FileSource(tmp_path, subscription="s", key="user")
    found: dict[str, list[int]] = {}

    async def handle(message: Message) -> None:
        found.setdefault(path_of(message), []).append(message.offset)

    consumer = Consumer(source, poison=Poison("skip", dead_letters=letters), clock=real_clock)
    await consumer.run(handle)
    assert {path: sorted(rows) for path, rows in found.items()} == {
        "a.csv": [0, 2, 4],
        "c.parquet": [0, 2, 3],
    }
    items = [letter.item for letter in letters.items]
    assert {(dict(item["headers"])["file"], item["offset"], item["value"]) for item in items} == {
        (b"a.csv", 1, b'u2,"b\n\xff"\n'),
        (b"a.csv", 3, b"\xfe,d\n"),
        (b"c.parquet", 1, None),
    }
