"""Processes that stop or are killed: settled rows are not repeated, and none is lost.

White box: the file with the positions.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest
from tests.children import child
from tests.files.source.files_help import GZIP, ZSTD, Handled, handled, lines, path_of, reading
from tests.files.source.test_rows import parquet

from sluicegate import ClosedError, ConfigError, Consumer
from sluicegate.batcher import LoopClock
from sluicegate.consumer import Commits, Position
from sluicegate.files import FileSource
from sluicegate.files.source import state

if TYPE_CHECKING:
    from sluicegate import Message

COUNT = 500
COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    ".ndjson": bytes,
    ".ndjson.gz": GZIP,
    ".ndjson.zst": ZSTD,
}


def fill(folder: Path, ending: str, name: str = "a", count: int = COUNT) -> None:
    """Create a file of rows."""
    path = folder / f"{name}{ending}"
    if ending == ".parquet":
        parquet(path, count, 100)
    elif ending == ".csv":
        path.write_text("at,said\n" + "".join(f'{at},"x\ny"\n' for at in range(count)))
    else:
        path.write_bytes(COMPRESSED[ending](lines(count)))


ENDINGS = [".ndjson", ".ndjson.gz", ".ndjson.zst", ".csv", ".parquet"]


@pytest.mark.long
@pytest.mark.parametrize("ending", ENDINGS)
async def test_after_a_kill_exactly_the_unfinished_rows_run_again(
    tmp_path: Path, real_clock: LoopClock, ending: str
) -> None:
    """consumer/C:C5: settled rows behind the unfinished ones are known, too."""
    fill(tmp_path, ending)
    held = ["10", "11", "250"]
    command = [sys.executable, str(Path(__file__).parent / "killed.py"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": "src"}
    async with child(*command, str(COUNT), *held, stdout=PIPE, env=environment) as process:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
    done = await handled(FileSource(tmp_path))
    assert [str(message.offset) for message in done] == held
    assert await handled(FileSource(tmp_path)) == []


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_stopped_backfill_goes_on_where_it_was(
    tmp_path: Path, real_clock: LoopClock, ending: str
) -> None:
    """Within each file, with positions in the default place."""
    for name in "abc":
        fill(tmp_path, ending, name, 100)
    done = Handled()

    async def handle(message: Message) -> None:
        done.append(message)
        if len(done) % 37 == 0:
            consumer.stop()

    while len(done) < 300:
        consumer = Consumer(FileSource(tmp_path), commits=Commits(every=0.01))
        await consumer.run(handle)
    assert done.places == [(f"{name}{ending}", row) for name in "abc" for row in range(100)]
    assert (tmp_path / ".sluicegate.sqlite").exists()


async def test_new_files_keep_the_numbers_of_the_others(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """Wherever their names sort."""
    for at in range(300):
        (tmp_path / f"m{at:03}.ndjson").write_bytes(b"1\n")
    first = await handled(FileSource(tmp_path, files_at_once=400))
    assert {m.partition: path_of(m) for m in first} == {at: f"m{at:03}.ndjson" for at in range(300)}
    (tmp_path / "m000.ndjson").unlink()
    for name in ("z", "a"):
        (tmp_path / f"{name}.ndjson").write_bytes(b"2\n")
    done = await handled(FileSource(tmp_path))
    assert [(m.partition, path_of(m)) for m in done] == [(300, "a.ndjson"), (301, "z.ndjson")]


async def test_files_come_one_after_another_by_default(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """Records of a key stay in order across files: a file begins when the one before it is settled,
    and a failed row there delays the next file.
    """
    for name in ("b", "a", "c/a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.ndjson").write_bytes(lines(50))
    running: set[str] = set()
    done = Handled()

    async def handle(message: Message) -> None:
        running.add(path_of(message))
        assert len(running) == 1
        await real_clock.sleep(0.0005)
        done.append(message)
        if sum(path_of(each) == path_of(message) for each in done) == 50:
            running.clear()

    source = FileSource(tmp_path, key="user")
    await Consumer(source, concurrency=10, commits=Commits(every=0.01)).run(handle)
    assert list(dict.fromkeys(path for path, _ in done.places)) == [
        "a.ndjson",
        "b.ndjson",
        "c/a.ndjson",
    ]


async def test_another_subscription_reads_everything_again(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    (tmp_path / "a.ndjson").write_bytes(lines(5))
    for name in ("one", "two"):
        source = FileSource(tmp_path, subscription=name)
        assert len(await handled(source)) == 5
        assert len(await handled(source)) == 0


async def test_one_process_reads_the_files_at_a_time(
    tmp_path: Path, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one is refused, and so is a state that is no database."""
    monkeypatch.setattr(state, "BUSY", 0.0)
    (tmp_path / "a.ndjson").write_bytes(lines(5))
    async with reading(FileSource(tmp_path)):
        with pytest.raises(ConfigError, match="is used by another process"):
            await handled(FileSource(tmp_path))
        assert len(await handled(FileSource(tmp_path, state=tmp_path / ".other"))) == 5
    assert len(await handled(FileSource(tmp_path))) == 5
    (tmp_path / ".no").write_bytes(b"no database")
    with pytest.raises(ConfigError, match="must be a file that SQLite can write"):
        await handled(FileSource(tmp_path, state=tmp_path / ".no"))


async def test_a_cancelled_opening_unlocks_the_state(
    tmp_path: Path, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cancelled while it waits for the lock of another source, and gets it afterwards."""
    (tmp_path / "a.ndjson").write_bytes(lines(5))
    begun, opened = threading.Event(), state.FileState.open

    def opening(self: state.FileState) -> None:
        begun.set()
        opened(self)

    async with reading(FileSource(tmp_path)):
        monkeypatch.setattr(state.FileState, "open", opening)
        waiting = asyncio.create_task(handled(FileSource(tmp_path)))
        await asyncio.to_thread(begun.wait)
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError) as kept:
        await waiting
    assert len(await handled(FileSource(tmp_path))) == 5
    assert kept.tb is not None  # its frames have the connection: nothing else has closed it


async def test_a_position_that_cannot_be_stored_ends_the_run(
    tmp_path: Path, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows after the stored position run again."""
    (tmp_path / "a.ndjson").write_bytes(lines(5))
    done = Handled()
    with monkeypatch.context() as broken:
        broken.setattr(state, "_STORE", "UPDATE nothing SET position = ?")
        async with reading(FileSource(tmp_path)) as reader:
            (claim,) = reader.host.open
            await reader.read([claim], 5)
            with pytest.raises(sqlite3.Error):
                await reader.source.commit({claim: Position(5)})
    assert len(await handled(FileSource(tmp_path), done)) == 5


async def test_a_file_whose_last_commit_is_cancelled_ends_and_is_told(
    tmp_path: Path,
    real_clock: LoopClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """consumer/C:C5: its position is stored, since a thread cannot be stopped."""
    for name in "ab":
        (tmp_path / f"{name}.ndjson").write_bytes(lines(5))
    storing, may_store, store = asyncio.Event(), threading.Event(), state.FileState.store
    loop = asyncio.get_running_loop()

    def late(*arguments: Any) -> None:
        loop.call_soon_threadsafe(storing.set)
        assert may_store.wait(60)
        store(*arguments)

    monkeypatch.setattr(state.FileState, "store", late)
    async with asyncio.timeout(60), reading(FileSource(tmp_path)) as reader:
        (claim,) = reader.host.open
        await reader.read([claim], 5)
        with caplog.at_level(logging.INFO, "sluicegate.files"):
            commit = asyncio.create_task(reader.source.commit({claim: Position(5)}))
            await storing.wait()
            commit.cancel()
            may_store.set()
            await asyncio.wait([commit])
        assert commit.cancelled()
        assert "a.ndjson is finished, with 5 rows (1 of 2 files)" in caplog.text
        await reader.host.news.wait_for(lambda: len(reader.host.claims) == 2)
        assert claim.is_closed


async def test_progress_is_told(
    tmp_path: Path, real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    """By the number of rows left in Parquet files, and a log line for each finished file."""
    for name in "ab":
        fill(tmp_path, ".parquet", name, 2_500)
    lags: list[int] = []

    async def handle(message: Message) -> None:
        if message.offset % 1_000 == 500:
            ((_, lag),) = (await consumer.lag()).items()
            lags.append(lag.messages)

    consumer = Consumer(FileSource(tmp_path), commits=Commits(every=0.01))
    with caplog.at_level(logging.INFO, "sluicegate.files"):
        await consumer.run(handle)
    assert lags == [2_000, 1_000] * 2
    told = [each.getMessage() for each in caplog.records if "is finished" in each.getMessage()]
    assert told == [
        "backfill: a.parquet is finished, with 2500 rows (1 of 2 files)",
        "backfill: b.parquet is finished, with 2500 rows (2 of 2 files)",
    ]


async def test_a_source_is_open_for_one_consumer(tmp_path: Path, real_clock: LoopClock) -> None:
    (tmp_path / "a.ndjson").write_bytes(b"1\n")
    source = FileSource(tmp_path)
    with pytest.raises(ClosedError, match="is not open"):
        await source.fetch((), 1)
    async with reading(source):
        with pytest.raises(ConfigError, match="is already open"):
            await handled(source)
    assert (await handled(source)).values == [b"1"]
