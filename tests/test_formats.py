"""What outlives a process has a format. Data of a newer one is refused with the remedy, and stays.

A newer release is simulated by what it would leave: a table whose rows have the next format. White
box: the progress of incremental runs is read without Spark.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import asyncpg
import pytest
from kept_table import kept_table
from tests.cli.dlq_help import Cli, keep_in_file, module, record
from tests.letters.test_every_item import cli
from tests.letters.test_last_resort import SINK
from tests.postgres.sink.postgres_help import batch_of
from tests.postgres.sink.transactions.postgres_transaction_help import UNIT, place, words

from sluicegate import ConfigError, Consumer, send, transaction
from sluicegate._core.staging import Progress
from sluicegate.consumer import TopicPartition
from sluicegate.consumer.progress import offset_map
from sluicegate.files import FileSource
from sluicegate.flow.state.changes import StateMark
from sluicegate.postgres.sink.progress import ProgressTable

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

__all__ = ["cli"]

P0 = TopicPartition("t", 0)
REFUSED = "has format 2, and this release .* use the release that wrote it, or a later one"
NEWER = "ALTER TABLE {0} ALTER format SET DEFAULT 2"
"""A newer release has changed the table; a new row is of its format."""
ROW = "UPDATE {0} SET format = 2"


async def attempt(sink: Any) -> None:
    async with transaction(sink, UNIT) as tx:
        assert await send(tx, batch_of(words(2))) == {}


@pytest.mark.parametrize("change", [f"DELETE FROM {{0}}; {NEWER}", ROW])
async def test_the_ledger(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, change: str
) -> None:
    async with place(embedded_postgres.dsn) as db, db.sink() as sink:
        await attempt(sink)
        await db.con.execute(change.format(db.ledger))
        before = await db.entries("*")
        with pytest.raises(ConfigError, match=REFUSED):
            await attempt(sink)
        assert (await db.rows(), await db.entries("*")) == (words(2), before)


@pytest.mark.parametrize("change", [f"DELETE FROM {{0}}; {NEWER}", ROW])
async def test_positions_in_postgresql(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, change: str
) -> None:
    async with kept_table(embedded_postgres.dsn) as kept, kept.sink() as sink:
        await sink.claim_positions("g", [P0])
        await kept.db.con.execute(change.format(kept.positions))
        before = await kept.stored()
        async with kept.sink() as later:
            with pytest.raises(ConfigError, match=REFUSED):
                await later.claim_positions("g", [P0])
        assert await kept.stored() == before


async def test_the_progress_of_incremental_runs(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    con = await asyncpg.connect(embedded_postgres.dsn)
    await con.execute("CREATE SCHEMA newer; CREATE TABLE newer.target ()")
    try:
        table, lent = ProgressTable("newer", "newer.target"), cast("Any", con)
        await table.make(lent)
        await table.store(lent, Progress(application="a", version=1, positions={"s": ("5",)}))
        assert (await table.read(lent, "a")).positions == {"s": ("5",)}
        await con.execute(ROW.format("newer.sluicegate_progress"))
        with pytest.raises(ConfigError, match=REFUSED):
            await table.read(lent, "a")
    finally:
        await con.execute("DROP SCHEMA newer CASCADE")
        await con.close()


async def test_positions_in_files(tmp_path: Path, real_clock: LoopClock) -> None:
    (tmp_path / "a.ndjson").write_text("{}\n")
    consumer = Consumer(FileSource(tmp_path, key=None))
    await consumer.run(lambda _: None)
    with closing(sqlite3.connect(tmp_path / ".sluicegate.sqlite")) as con, con:
        assert con.execute("PRAGMA user_version").fetchone() == (1,)
        before = con.execute("SELECT * FROM sluicegate_file").fetchall()
        con.execute("PRAGMA user_version = 2")
    with pytest.raises(ConfigError, match=REFUSED):
        await Consumer(FileSource(tmp_path, key=None)).run(lambda _: None)
    with closing(sqlite3.connect(tmp_path / ".sluicegate.sqlite")) as con:
        assert con.execute("SELECT * FROM sluicegate_file").fetchall() == before


def test_letters(cli: Cli, tmp_path: Path) -> None:
    """A letter of a newer form is told by its line; it is neither sent nor purged."""
    path = tmp_path / "dead"
    lines = [record(1).as_json(), {**record(2).as_json(), "item_form": "new"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    module(tmp_path, "newer_letters", SINK)
    cli("replay", str(path), "--to", "newer_letters:sink", code=1)
    assert "dead:2: unreadable: its item has a form that this release does not know" in cli.err
    assert "use the release that wrote it, or a later one" in cli.err
    cli("purge", str(path), "--state", "all", "--yes", code=1)
    assert path.read_text() == json.dumps(lines[1]) + "\n"


def test_notes_of_replays(cli: Cli, tmp_path: Path) -> None:
    """Any letter may have been sent, so nothing is sent again."""
    path = tmp_path / "dead"
    keep_in_file(path, [record(1)])
    path.with_name("dead.replayed").write_text('{"replay": "r", "sending": [], "format": 2}\n')
    module(tmp_path, "newer_notes", SINK)
    cli("replay", str(path), "--to", "newer_notes:sink", code=2)
    assert "so nothing is sent or removed; use the release that wrote it" in cli.err


def test_offset_maps() -> None:
    """A map of another form is left out with a warning: its records are handled again, none is
    lost. Consumers do so with maps of other programs, too.
    """
    with pytest.raises(offset_map.ForeignMap, match="unknown form"):
        offset_map.decode(5, "$" + offset_map.encode(5, [(7, 9)]).text[1:])


def test_states() -> None:
    mark = StateMark("g", "t", 5, 1).encoded()
    assert json.loads(mark)["format"] == 1
    with pytest.raises(ConfigError, match=f"topic='changes': {REFUSED}"):
        StateMark.decoded(mark.replace('"format": 1', '"format": 2'), "topic", "changes")
