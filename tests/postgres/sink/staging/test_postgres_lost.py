"""Rows that a real PostgreSQL loses between a task and the publication: nothing is published then,
whatever was lost and why.

White box: the stages of a sink, which only Spark uses.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from sluicegate import ConfigError, RowBatch, send
from sluicegate._core.staging import Begun, Epoch, Stage, staged, stages_of
from sluicegate.errors import StagesLost
from sluicegate.postgres import PostgresAccess, PostgresSink
from sluicegate.sinks import Counts, Unit
from sluicegate.testing import embedded_postgres as server_of_its_own
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

NO_TIMELINE = (
    "REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC",
    "GRANT EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) TO PUBLIC",
)
STAGES = (
    "SELECT count(*) FROM pg_class WHERE relname ~ '^sluicegate_[0-9a-f]{12}_' AND relkind = 'r'"
)
MODES: dict[str, dict[str, Any]] = {
    "error": {},
    "update": {"on_conflict": "update", "conflict_columns": ("id",)},
}


@pytest.fixture(scope="module")
def crashing() -> Iterator[EmbeddedPostgres]:
    """A server for these tests only, because they crash it."""
    with there_or_skip("postgres", server_of_its_own({"fsync": "off"})) as server:
        yield server


@pytest.fixture
def shared(embedded_postgres: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """The server of all tests; no stage may remain in it."""
    yield embedded_postgres
    for row in asyncio.run(
        on(embedded_postgres, "SELECT relname " + STAGES.partition("count(*) ")[2])
    ):
        asyncio.run(on(embedded_postgres, f'DROP TABLE "{row[0]}"'))


async def crash(server: EmbeddedPostgres) -> None:
    """Crash the server by killing one of its processes: all of them end, and recovery begins."""
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


async def on(server: EmbeddedPostgres, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements one by one; return the rows of the last one."""
    connection = await asyncpg.connect(server.dsn)
    try:
        answers = [await connection.fetch(statement) for statement in statements]
        return [tuple(row) for row in answers[-1]]
    finally:
        await connection.close()


async def table(
    server: EmbeddedPostgres, columns: str = "id bigint PRIMARY KEY, name text"
) -> None:
    await on(
        server, "DROP TABLE IF EXISTS events, sluicegate_ledger", f"CREATE TABLE events ({columns})"
    )


def epoch(version: int = 1, **changes: Any) -> Epoch:
    return Epoch(unit=Unit(application="job", version=version, rule="atomic"), **changes)


def sink_on(
    server: EmbeddedPostgres,
    columns: Sequence[str] = ("id", "name"),
    connect_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> PostgresSink:
    access = PostgresAccess(server.dsn, connect_options=connect_options or {})
    return PostgresSink(access, table="events", columns=columns, **options)


class Write:
    """One epoch in progress, as in the driver and its tasks: each opens its own sink."""

    def __init__(self, sink: PostgresSink, of: Epoch) -> None:
        self.sink = sink
        self.epoch = of
        self.begun = Begun(None)
        self.stages: list[Stage] = []

    async def begin(self) -> None:
        async with self.sink as sink:
            self.begun = await stages_of(sink).begin(self.epoch)

    async def task(self, rows: Sequence[tuple[Any, ...]]) -> None:
        async with self.sink, staged(self.sink, self.epoch) as stage:
            assert await send(stage.sink, RowBatch(rows)) == {}
            self.stages.append(await stage.inventory())

    async def publish(self) -> None:
        async with self.sink as sink:
            counts = Counts(rows=sum(stage.rows for stage in self.stages))
            await stages_of(sink).publish(self.epoch, self.stages, counts, self.begun.mark)

    async def discard(self) -> None:
        async with self.sink as sink:
            await stages_of(sink).discard(self.epoch)


async def written(
    sink: PostgresSink, of: Epoch, rows: Sequence[tuple[Any, ...]], *, tasks: int = 2
) -> Write:
    """A write that has begun and was staged by this many tasks."""
    write = Write(sink, of)
    await write.begin()
    for number in range(tasks):
        await write.task(rows[number::tasks])
    return write


ROWS = [(number, f"new {number}") for number in range(400)]
OLD = [(-1, "old"), (5, "old")]


@pytest.mark.parametrize(
    ("mode", "overwrite"),
    [
        ("error", False),
        ("update", True),
        pytest.param("error", True, marks=pytest.mark.long),
        pytest.param("update", False, marks=pytest.mark.long),
    ],
)
async def test_a_crash_behind_the_tasks_publishes_nothing(
    crashing: EmbeddedPostgres, real_clock: LoopClock, mode: str, overwrite: bool
) -> None:
    """Unlogged stages are empty afterwards. The old rows stay, and the same epoch can be written
    again.
    """
    await table(crashing)
    await on(
        crashing,
        "INSERT INTO events VALUES (-1, 'old')"
        + (", (5, 'old')" if overwrite or mode == "update" else ""),
    )
    old = await on(crashing, "SELECT * FROM events ORDER BY id")
    sink = sink_on(crashing, stages="unlogged", **MODES[mode])
    write = await written(sink, epoch(overwrite=overwrite), ROWS)
    await crash(crashing)
    await write.task([(1_000, "after the crash")])
    with pytest.raises(StagesLost, match="crashed since the write began"):
        await write.publish()
    assert await on(crashing, "SELECT * FROM events ORDER BY id") == old
    assert await on(crashing, "SELECT * FROM sluicegate_ledger") == []
    await write.discard()
    assert await on(crashing, STAGES) == [(0,)]
    await (await written(sink, epoch(overwrite=overwrite), ROWS)).publish()
    assert (
        await on(crashing, "SELECT * FROM events ORDER BY id")
        == ([] if overwrite else [(-1, "old")]) + ROWS
    )
    assert await on(crashing, STAGES) == [(0,)]


@pytest.mark.parametrize("mode", MODES)
async def test_inventories_find_a_crash_without_any_mark(
    crashing: EmbeddedPostgres, real_clock: LoopClock, mode: str
) -> None:
    await table(crashing)
    write = await written(sink_on(crashing, stages="unlogged", **MODES[mode]), epoch(), ROWS)
    await crash(crashing)
    write.begun = Begun(None)
    with pytest.raises(
        StagesLost,
        match=rf"the stage {write.stages[0].name} has 0 of 200 rows; the stage "
        rf"{write.stages[1].name} has 0 of",
    ):
        await write.publish()
    assert await on(crashing, "SELECT * FROM events") == []


@pytest.mark.parametrize("overwrite", [False, True], ids=["append", "overwrite"])
async def test_logged_stages_outlive_a_crash(
    crashing: EmbeddedPostgres, real_clock: LoopClock, overwrite: bool
) -> None:
    await table(crashing)
    await on(crashing, "INSERT INTO events VALUES (-1, 'old')")
    write = await written(
        sink_on(crashing, stages="logged", on_conflict="ignore"), epoch(overwrite=overwrite), ROWS
    )
    await crash(crashing)
    await write.publish()
    assert (
        await on(crashing, "SELECT * FROM events ORDER BY id")
        == ([] if overwrite else [(-1, "old")]) + ROWS
    )
    assert await on(crashing, STAGES) == [(0,)]


async def test_logged_stages_are_marked_where_commits_are_lost_in_a_crash(
    crashing: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """`synchronous_commit=off`: the last commits may be lost, so the crash counts."""
    await table(crashing)
    options = {"server_settings": {"synchronous_commit": "off"}}
    write = await written(
        sink_on(crashing, stages="logged", connect_options=options), epoch(), ROWS
    )
    await crash(crashing)
    with pytest.raises(StagesLost, match="crashed since the write began"):
        await write.publish()


@pytest.mark.parametrize("mode", ["ignore", "update"])
async def test_a_crash_in_the_middle_of_a_task_is_found_by_the_mark(
    crashing: EmbeddedPostgres, real_clock: LoopClock, mode: str
) -> None:
    """The earlier chunk is missing, but the rows of the inventory exist: if conflicts are merged,
    their number proves nothing.
    """
    await table(crashing)
    write = Write(sink_on(crashing, stages="unlogged", on_conflict=mode), epoch())
    await write.begin()
    async with write.sink, staged(write.sink, write.epoch) as stage:
        assert await send(stage.sink, RowBatch(ROWS[:300])) == {}
        await crash(crashing)
        assert await send(stage.sink, RowBatch(ROWS[300:])) == {}
        write.stages.append(await stage.inventory())
    assert write.stages[0].rows == 100
    with pytest.raises(StagesLost, match="crashed since the write began"):
        await write.publish()
    assert await on(crashing, "SELECT * FROM events") == []


async def test_a_crash_in_the_middle_of_a_task_fails_the_task(
    crashing: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """If a conflict is an error, the stage must contain every row that was written into it."""
    await table(crashing)
    write = Write(sink_on(crashing, stages="unlogged"), epoch())
    await write.begin()
    with pytest.raises(StagesLost, match="has 100 rows, but 400 were written into it"):
        async with write.sink, staged(write.sink, write.epoch) as stage:
            assert await send(stage.sink, RowBatch(ROWS[:300])) == {}
            await crash(crashing)
            assert await send(stage.sink, RowBatch(ROWS[300:])) == {}
            await stage.inventory()
    assert await on(crashing, STAGES) == [(1,)]  # the mark


async def test_rows_that_were_stored_twice_fail_the_task(
    shared: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    await table(shared, "id bigint, name text")
    with pytest.raises(StagesLost, match="has 4 rows, but 2 were written into it"):
        async with sink_on(shared) as sink, staged(sink, epoch()) as stage:
            assert await send(stage.sink, RowBatch(ROWS[:2])) == {}
            (name,) = (
                await on(
                    shared,
                    "SELECT relname FROM pg_class WHERE relname ~ '^sluicegate_[0-9a-f]{12}_'",
                )
            )[0]
            await on(shared, f'INSERT INTO "{name}" SELECT * FROM "{name}"')
            await stage.inventory()


CHANGES = {
    "a row deleted": ('DELETE FROM "{0}" WHERE id = 4', r"the stage {0} has 199 of 200 rows"),
    "a row changed": (
        "UPDATE \"{0}\" SET name = 'other' WHERE id = 4",
        "the stage {0} has 200 rows, but not those that were written",
    ),
    "rows exchanged": (
        'WITH gone AS (DELETE FROM "{0}" WHERE id = 4) INSERT INTO "{0}" (id, name) VALUES '
        "(-4, 'x')",
        "the stage {0} has 200 rows, but not those that were written",
    ),
    "all rows gone": ('TRUNCATE "{0}"', "the stage {0} has 0 of 200 rows"),
    "dropped": ('DROP TABLE "{0}"', "a stage is gone .*{0}. does not exist"),
}
TYPES = {
    "hash": "id bigint PRIMARY KEY, name text",
    "binary": "id bigint PRIMARY KEY, name text, at timestamptz DEFAULT now(), other json "
    "DEFAULT '{\"a\": 1}', place point DEFAULT '(1, 0.1)'",
}


@pytest.mark.parametrize(
    ("change", "digest"),
    [
        *((change, "hash") for change in CHANGES),
        ("a row changed", "binary"),
        *(
            pytest.param(change, "binary", marks=pytest.mark.long)
            for change in CHANGES
            if change != "a row changed"
        ),
    ],
)
async def test_a_stage_that_was_changed_is_not_published(
    shared: EmbeddedPostgres, real_clock: LoopClock, change: str, digest: str
) -> None:
    """The sink on the driver has other settings than that of the tasks, which change the text of
    values but not the values.
    """
    await table(shared, TYPES[digest])
    settings = {
        "TimeZone": "Asia/Kolkata",
        "DateStyle": "German",
        "extra_float_digits": "-3",
        "bytea_output": "escape",
    }
    other = sink_on(shared, connect_options={"server_settings": settings})
    for version, changes in ((1, True), (2, False)):
        write = await written(sink_on(shared), epoch(version), ROWS)
        assert write.stages[0].digest.partition(" ")[0] == digest
        write.sink = other
        if changes:
            statement, told = CHANGES[change]
            await on(shared, statement.replace("{0}", write.stages[0].name))
            with pytest.raises(StagesLost, match=told.replace("{0}", write.stages[0].name)):
                await write.publish()
            assert await on(shared, "SELECT id FROM events") == []
            assert await on(shared, "SELECT * FROM sluicegate_ledger") == []
            await write.discard()
        else:
            await write.publish()
            assert await on(shared, "SELECT id, name FROM events ORDER BY id") == ROWS


async def test_rows_without_hash_and_binary_form_are_counted(
    shared: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """An array of `aclitem` has neither; lost rows of a stage are still detected."""
    await table(
        shared,
        "id bigint PRIMARY KEY, name text, other json DEFAULT '{}', rights aclitem DEFAULT "
        "'postgres=r/postgres'",
    )
    write = await written(sink_on(shared), epoch(), ROWS)
    assert write.stages[0].digest == "count 0"
    await on(shared, f'DELETE FROM "{write.stages[0].name}" WHERE id = 4')
    with pytest.raises(StagesLost, match="has 199 of 200 rows"):
        await write.publish()


ALTERED = [
    (
        "ALTER TABLE events ALTER COLUMN amount TYPE int",
        "column amount is double precision there and integer in",
    ),
    (
        "ALTER TABLE events ALTER COLUMN note TYPE varchar(3)",
        r"column note is text there and character varying\(3\) in",
    ),
    ("ALTER TABLE events RENAME COLUMN note TO remark", "column note is text there and missing in"),
]


@pytest.mark.parametrize(
    ("statement", "told", "overwrite"),
    [*((*each, False) for each in ALTERED), (*ALTERED[0], True)],
)
async def test_a_target_that_was_altered_casts_nothing_on_the_way(
    shared: EmbeddedPostgres, real_clock: LoopClock, statement: str, told: str, overwrite: bool
) -> None:
    """Otherwise 0.75 would have become 1."""
    await table(shared, "id bigint, amount float8, note text")
    await on(shared, "INSERT INTO events VALUES (-1, 1, 'old')")
    columns = ("id", "amount", "note")
    async with sink_on(
        shared, columns
    ) as driver:  # opened before the change, on which the comparison does not depend
        write = await written(
            sink_on(shared, columns), epoch(overwrite=overwrite), [(1, 0.75, "abc")], tasks=1
        )
        await on(shared, statement)
        with pytest.raises(StagesLost, match=told):
            await stages_of(driver).publish(
                write.epoch, write.stages, Counts(rows=1), write.begun.mark
            )
    assert await on(shared, "SELECT id FROM events") == [(-1,)]


async def test_an_added_column_does_not_matter(
    shared: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    await table(shared)
    write = await written(sink_on(shared), epoch(), ROWS)
    await on(shared, "ALTER TABLE events ADD COLUMN at timestamptz DEFAULT now()")
    await write.publish()
    assert await on(shared, "SELECT id, name FROM events ORDER BY id") == ROWS


async def test_a_failover_is_found_by_the_timeline(
    crashing: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """With logged stages, too: the standby may lack the last commits. Here it lacks none, but this
    cannot be known.
    """
    await table(crashing)
    write = await written(sink_on(crashing, stages="logged"), epoch(), ROWS)
    crashing.stop()
    (crashing._data / "standby.signal").touch()
    crashing.start()
    assert await on(crashing, "SELECT pg_is_in_recovery(), pg_promote()") == [(True, True)]
    with pytest.raises(
        StagesLost,
        match=f"a standby was promoted since the write began .timeline {write.begun.mark}, now ",
    ):
        await write.publish()
    assert await on(crashing, "SELECT * FROM events") == []
    await (await written(sink_on(crashing, stages="logged"), epoch(), ROWS)).publish()
    assert await on(crashing, "SELECT * FROM events ORDER BY id") == ROWS


async def test_a_server_that_does_not_tell_its_timeline_is_written_to(
    shared: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """For example a managed server that does not permit the function."""
    await table(shared)
    role = shared.dsn.replace(shared.dsn.partition("//")[2].partition("@")[0], "narrow:secret")
    await on(
        shared,
        "CREATE ROLE narrow LOGIN PASSWORD 'secret'",
        "GRANT ALL ON SCHEMA public TO narrow",
        "GRANT ALL ON events TO narrow",
        NO_TIMELINE[0],
    )
    try:
        write = await written(
            PostgresSink(role, table="events", columns=("id", "name"), stages="unlogged"),
            epoch(),
            ROWS,
        )
        assert write.begun.mark.startswith(" sluicegate_")
        await write.publish()
        assert await on(shared, "SELECT * FROM events ORDER BY id") == ROWS
    finally:
        await on(shared, NO_TIMELINE[1], "DROP OWNED BY narrow", "DROP ROLE narrow")


async def test_the_mark_of_a_dead_driver_is_collected(
    shared: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    await table(shared)
    sink = sink_on(shared, stages="unlogged")
    dead = Write(sink, epoch())
    await dead.begin()
    write = await written(sink, epoch(), ROWS)
    assert await on(shared, STAGES) == [(3,)]
    await write.publish()
    assert await on(shared, STAGES) == [(0,)]


async def test_a_table_of_somebody_else_with_such_a_name_is_left(
    shared: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    await table(shared)
    write = await written(sink_on(shared), epoch(), ROWS)
    prefix = write.stages[0].name.rpartition("_")[0]
    await on(shared, f"CREATE TABLE {prefix}_mine (id int)")
    await write.publish()
    assert await on(shared, f"SELECT * FROM {prefix}_mine") == []
    await on(shared, f"DROP TABLE {prefix}_mine")


def test_the_kind_of_stages_is_checked() -> None:
    with pytest.raises(ConfigError, match="stages"):
        PostgresSink("postgresql://localhost/x", table="t", columns=("id",), stages="temporary")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
