"""Subscriptions in a SQLite file.

White box: the transaction of the file, which another one delays.
"""

from __future__ import annotations

import sqlite3
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING

import pytest
from tests.conformance.sqlite_subscriptions import SQLiteSubscriptions, _File
from tests.postgres.subscriptions.frozen import LOCK, NAME, START, MovedClock, frozen_holder, moves

from sluicegate import ClosedError, ConfigError
from sluicegate.consumer import Position

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.batcher import LoopClock


async def test_the_store_of_a_frozen_process_changes_nothing(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """S-T11: it was frozen while it held the lock, and resumes when another process holds it."""
    path = tmp_path / "subscriptions"
    clock = MovedClock()
    async with SQLiteSubscriptions(path, clock=clock) as mine:
        await mine.initialize(NAME, START)
        async with frozen_holder("sqlite", str(path)) as holder:
            assert [*await mine.lock([LOCK])] == []
            assert [*await mine.store(NAME, moves(0, 5))] == []
            clock.ahead = 31.0
            assert [*await mine.lock([LOCK])] == [LOCK]
            holder.resume()
            assert await holder.answer() == {"stored": [], "kept": []}
            assert [*await mine.store(NAME, moves(0, 5))] == [7]
            found = await mine.read(NAME)
            assert found is not None
            assert found.positions[7] == Position(5)


async def test_a_clock_that_is_set_back_does_not_hold_a_lock_for_ever(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """S-T8: its holder is gone, and took it at a time in the future."""
    ahead, clock = MovedClock(), MovedClock()
    ahead.ahead = 3_600.0
    path = tmp_path / "subscriptions"
    async with SQLiteSubscriptions(path, clock=clock) as mine:
        async with SQLiteSubscriptions(path, clock=ahead) as gone:
            assert [*await gone.lock([LOCK])] == [LOCK]
            assert [*await mine.lock([LOCK])] == [LOCK]
        assert [*await mine.keep([LOCK])] == [LOCK]


async def test_members_that_open_a_new_file_at_once_wait_for_each_other(
    tmp_path: Path, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite itself does not wait when the first ones turn on the write-ahead log."""
    path = tmp_path / "subscriptions"
    transaction = _File._transaction
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")

        def waits(file: _File) -> AbstractContextManager[None]:
            if other.in_transaction:
                other.execute("COMMIT")
            return transaction(file)

        monkeypatch.setattr(_File, "_transaction", waits)
        async with SQLiteSubscriptions(path) as mine:
            assert [*await mine.lock([LOCK])] == [LOCK]


async def test_a_file_that_cannot_be_used_is_refused_at_opening(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    text = tmp_path / "text"
    text.write_text("no database, " * 100, encoding="utf-8")
    for path in (text, tmp_path, tmp_path / "missing" / "file"):
        with pytest.raises(ConfigError, match="must be a file that SQLite can write"):
            async with SQLiteSubscriptions(path):
                pass
    with pytest.raises(ConfigError, match="MemorySubscriptions"):
        SQLiteSubscriptions(":memory:")


async def test_a_call_waits_for_other_processes_no_longer_than_it_may(
    tmp_path: Path, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.conformance.sqlite_subscriptions.BUSY", 0.01)
    path = tmp_path / "subscriptions"
    other = sqlite3.connect(path, isolation_level=None)
    async with SQLiteSubscriptions(path) as mine:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await mine.initialize(NAME, START)
        assert await mine.read(NAME) is None
        other.execute("ROLLBACK")
        assert await mine.initialize(NAME, START)
    other.close()


async def test_its_tables_may_be_beside_others(tmp_path: Path, real_clock: LoopClock) -> None:
    path = tmp_path / "application"
    with sqlite3.connect(path) as con:
        con.execute("CREATE TABLE subscription (mine TEXT)")
    async with SQLiteSubscriptions(path) as mine:
        assert await mine.initialize(NAME, START)
    con.close()


async def test_methods_need_an_open_object(tmp_path: Path, real_clock: LoopClock) -> None:
    closed = SQLiteSubscriptions(tmp_path / "subscriptions")
    with pytest.raises(ClosedError, match="async with"):
        await closed.read(NAME)
    assert not (tmp_path / "subscriptions").exists()
