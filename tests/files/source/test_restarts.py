"""Processes that stop or are killed: settled rows are not repeated, and none is lost.

White box: the stored form of positions, and the catalog behind them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING

import pytest
from tests.children import child
from tests.files.source.files_help import GZIP, ZSTD, Handled, handled, lines, path_of, reading
from tests.files.source.test_rows import parquet

from sluicegate import ClosedError, ConfigError, Consumer
from sluicegate._core.subscriptions import SubscriptionStart
from sluicegate.batcher import LoopClock
from sluicegate.consumer import Commits, MemorySubscriptions, Move, Position
from sluicegate.files import FileSource, SQLiteSubscriptions
from sluicegate.files.source.catalog import FileCatalog, consumer_position, stored_position
from sluicegate.files.source.finding import record
from sluicegate.files.source.holding import FileHolder
from sluicegate.postgres import PostgresSubscriptions
from sluicegate.testing.conformance.source.subject import RecordingHost

if TYPE_CHECKING:
    from sluicegate import Message

LEASE = 1.0
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
    async with child(
        *command, str(LEASE), str(COUNT), *held, stdout=PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
    state = SQLiteSubscriptions(tmp_path / ".positions", lease=LEASE)
    done = await handled(FileSource(tmp_path, state=state, poll=0.05))
    assert [str(message.offset) for message in done] == held
    assert await handled(FileSource(tmp_path, state=state)) == []


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
    """Wherever their names sort, and with more files than a chapter contains."""
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
    state = MemorySubscriptions()
    for name in ("one", "two"):
        source = FileSource(tmp_path, subscription=name, state=state)
        assert len(await handled(source)) == 5
        assert len(await handled(source)) == 0


async def test_members_share_the_files_and_read_each_row_once(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """A later member takes over a part; each ends when all files are read, by whichever member."""
    for at in range(30):
        (tmp_path / f"{at:02}.ndjson").write_bytes(lines(20))
    done, by = Handled(), [Handled(), Handled(), Handled()]
    all_read = asyncio.Event()

    async def consume(number: int) -> None:
        state = SQLiteSubscriptions(tmp_path / ".s", lease=30)
        source = FileSource(tmp_path, state=state, files_at_once=3, poll=0.02)

        async def handle(message: Message) -> None:
            done.append(message)
            by[number].append(message)
            if all(by):
                all_read.set()
            await all_read.wait()

        await Consumer(source, commits=Commits(every=0.01)).run(handle)

    async with asyncio.TaskGroup() as tasks:
        for number in range(3):
            tasks.create_task(consume(number))
    expected = [(f"{at:02}.ndjson", row) for at in range(30) for row in range(20)]
    assert sorted(done.places) == expected


async def test_a_second_process_waits_for_the_locks_of_the_first(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """It reports why it waits."""
    (tmp_path / "a.ndjson").write_bytes(lines(5))
    async with (
        reading(FileSource(tmp_path)) as first,
        reading(FileSource(tmp_path, poll=0.01)) as second,
    ):
        (claim,) = first.host.open
        await second.host.news.wait_for(lambda: second.host.reports)
        assert second.host.open == []
        assert "other processes hold the remaining files" in str(second.host.reports)
        await first.read([claim], 5)
        await first.source.commit({claim: Position(5)})
        await second.host.news.wait_for(lambda: second.host.open)
        assert await second.source.fetch(second.host.open, 10) is None
        assert len(second.host.claims) == 1, "of no file"


async def test_a_store_that_was_moved_by_another_process_is_refused(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """consumer/C:C3: the claim is lost, and its positions are no longer stored."""
    (tmp_path / "a.ndjson").write_bytes(lines(9))
    async with reading(FileSource(tmp_path)) as reader:
        (claim,) = reader.host.open
        await reader.read([claim], 5, most=5)
        with sqlite3.connect(tmp_path / ".sluicegate.sqlite") as base:
            base.execute("UPDATE sluicegate_subscription_slot SET position = 3, metadata = '-|'")
        base.close()
        assert [*await reader.source.commit({claim: Position(5)})] == []
        assert claim.is_closed
        await reader.host.news.wait_for(lambda: reader.host.open)
        assert reader.host.open[0].start == Position(3)


async def test_a_subscription_of_another_kind_is_refused(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    (tmp_path / "a.ndjson").write_bytes(lines(1))
    async with SQLiteSubscriptions(tmp_path / ".sluicegate.sqlite") as state:
        await state.initialize("backfill/0", SubscriptionStart({0: 0}, selection="{}"))
    with pytest.raises(ConfigError, match="is not of files"):
        await handled(FileSource(tmp_path))
    with pytest.raises(ConfigError, match="is only for the log in its schema"):
        FileSource(tmp_path, state=PostgresSubscriptions("postgresql://h/d"))


async def test_a_file_that_was_lost_just_now_is_claimed_again(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """Its lock is released first, even if this was not done in time."""
    (tmp_path / "a.ndjson").write_bytes(lines(9))
    state, host = MemorySubscriptions(), RecordingHost()
    options = FileSource(tmp_path, state=state)._options
    catalog = FileCatalog("s", state)
    holder = FileHolder(options, tmp_path, catalog, locks=state, host=host, clock=real_clock)
    await catalog.enter([record(tmp_path, "a.ndjson")])
    entries = [*catalog.entries.values()]
    for _ in range(3):
        await holder.claim(entries, 1)
        assert len(holder.all) == 1
        holder.lose(holder.all, "of a test")
        await holder.claim(entries, 0)
    await holder.tidy()
    end = stored_position(Position(9), is_end=True)
    assert await state.store("s/0", {0: Move(Position(0), end)}), "by another process"
    await holder.claim(entries, 1)
    assert holder.all == [], "it is finished"
    await holder.close()
    assert [*await state.lock([catalog.lock_of(entries[0])])]


async def test_a_look_does_not_set_back_what_this_process_has_stored(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """The look may have read before the store and return after it."""
    for name in "ab":
        (tmp_path / f"{name}.ndjson").write_bytes(lines(1))
    catalog = FileCatalog("s", MemorySubscriptions())
    await catalog.enter([record(tmp_path, f"{name}.ndjson") for name in "ab"])
    held, other = catalog.entries.values()
    held.hold(is_held=True)
    for entry in (held, other):
        entry.is_at(Position(1, "-|"))
    await catalog.refresh()
    assert (held.stored, other.stored) == (Position(1, "-|"), Position(0))


class Jumping(LoopClock):
    """A clock that can be set forward, as on a machine that sleeps."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


async def test_nothing_is_delivered_while_the_locks_may_have_run_out(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """Even before the expiry has been detected."""
    (tmp_path / "a.ndjson").write_bytes(lines(9))
    clock = Jumping()
    source = FileSource(tmp_path, state=MemorySubscriptions(), clock=clock)
    async with reading(source) as reader:
        (claim,) = reader.host.open
        await reader.read([claim], 5, most=5)
        clock.ahead = 1_000.0
        fetch = asyncio.get_running_loop().create_task(source.fetch([claim], 5))
        for _ in range(20):
            await real_clock.sleep(0)
        assert not fetch.done()
        fetch.cancel()


async def test_a_file_that_comes_during_the_run_is_read_before_it_ends(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """There is a look at the end, whatever the interval of the others."""
    for name in "ab":
        (tmp_path / f"{name}.ndjson").write_bytes(lines(1))
    done = Handled()

    async def handle(message: Message) -> None:
        done.append(message)
        if path_of(message) == "a.ndjson":
            (tmp_path / "c.ndjson").write_bytes(lines(1))

    await Consumer(FileSource(tmp_path, poll=3_600.0), commits=Commits(every=0.01)).run(handle)
    assert done.places == [(f"{name}.ndjson", 0) for name in "abc"]


class UnkeptLocks(MemorySubscriptions):
    """Locks that expire because the storage is unreachable."""

    is_reached = False

    async def keep(self, names: Collection[str]) -> Collection[str]:
        if not self.is_reached:
            raise ConnectionError
        return await super().keep(names)


async def test_locks_that_cannot_be_kept_are_lost_with_their_claims(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """consumer/C:R2: in time, because another process may have them afterwards. They are acquired
    again.
    """
    (tmp_path / "a.ndjson").write_bytes(lines(9))
    state = UnkeptLocks(lease=0.2)
    async with reading(FileSource(tmp_path, state=state, poll=0.02)) as reader:
        (lost,) = reader.host.open
        await reader.read([lost], 5, most=5)
        await reader.host.news.wait_for(lambda: lost.is_closed)
        assert reader.host.within == []
        assert [*await reader.source.commit({lost: Position(5)})] == []
        state.is_reached = True
        await reader.host.news.wait_for(lambda: reader.host.open)
        (new,) = reader.host.open
        await reader.read([lost, new], 5 + 9)
        assert reader.offsets(new) == [*range(9)]


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


@pytest.mark.parametrize("is_end", [False, True])
@pytest.mark.parametrize("position", [Position(0), Position(7, "a|map=,-")])
def test_a_position_is_stored_with_its_map(position: Position, *, is_end: bool) -> None:
    assert consumer_position(stored_position(position, is_end=is_end)) == position


@pytest.mark.parametrize("text", ["map", "x|", "-1,2|", "=1|"])
def test_the_text_of_another_source_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not from a source of files"):
        consumer_position(Position(1, text))
