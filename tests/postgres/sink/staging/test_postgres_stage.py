"""Stages of a real PostgreSQL: which rows become visible, when, and what remains of other
stages.

White box: the steps of an epoch.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.postgres.sink.postgres_help import Database, role

from sluicegate import (
    Batch,
    ConfigError,
    DeadLetter,
    FanOut,
    Observer,
    RowBatch,
    Timeout,
    send,
    stack,
)
from sluicegate._core.opening import opened
from sluicegate._core.staging import Begun, Epoch, Stage, check_staging, staged, stages_of
from sluicegate.postgres import PostgresSink
from sluicegate.sinks import Counts, MemorySink, Unit
from sluicegate.telemetry import Observed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

STAGES = (
    "SELECT count(*) FROM pg_class WHERE relname LIKE 'sluicegate\\_%' AND relkind = 'r' "
    "AND relname <> 'sluicegate_ledger'"
)


@asynccontextmanager
async def events(embedded_postgres: EmbeddedPostgres) -> AsyncGenerator[Any]:
    """An empty table, and a connection besides the sink's."""
    connection = await asyncpg.connect(embedded_postgres.dsn)
    left = await connection.fetch(
        "SELECT relname FROM pg_class WHERE relname LIKE 'sluicegate\\_%' AND relkind = 'r'"
    )
    for row in left:
        await connection.execute(f'DROP TABLE "{row[0]}"')
    await connection.execute("DROP TABLE IF EXISTS events, parents CASCADE")
    await connection.execute(
        "CREATE TABLE events (id bigint PRIMARY KEY, name text CHECK (name <> 'bad'), serial "
        "bigserial)"
    )
    try:
        yield connection
    finally:
        await connection.close()


def sink_on(embedded_postgres: EmbeddedPostgres, **options: Any) -> PostgresSink:
    return PostgresSink(embedded_postgres.dsn, table="events", columns=("id", "name"), **options)


def epoch(version: int = 1, **changes: Any) -> Epoch:
    return Epoch(unit=Unit(application="job", version=version, rule="atomic"), **changes)


async def write(sink: Any, of: Epoch, rows: Sequence[tuple[Any, ...]]) -> Stage:
    """The stage of one write attempt."""
    async with staged(sink, of) as stage:
        assert await send(stage.sink, RowBatch(rows)) == {}
        return await stage.inventory()


NO_MARK = ""


async def test_nothing_is_seen_before_everything_is(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """P-T8, P-T12: two attempts are published, a third is not; publishing again has no effect."""
    async with events(embedded_postgres) as con:
        async with sink_on(embedded_postgres) as sink:
            begun = await stages_of(sink).begin(epoch())
            assert begun.before is None
            stages = [
                await write(sink, epoch(), [(1, "a"), (2, "b")]),
                await write(sink, epoch(), [(3, "c")]),
            ]
            await write(sink, epoch(), [(1, "a"), (2, "b")])  # a speculative attempt
            assert await con.fetchval("SELECT count(*) FROM events") == 0
            assert (
                await stages_of(sink).publish(
                    epoch(), stages, Counts(rows=3, delivered=3), begun.mark
                )
                is None
            )
            assert await con.fetch("SELECT id, name FROM events ORDER BY id") == [
                (1, "a"),
                (2, "b"),
                (3, "c"),
            ]
            assert await con.fetchval(STAGES) == 0
            again = await stages_of(sink).publish(
                epoch(),
                [await write(sink, epoch(), [(4, "d")])],
                Counts(rows=1, delivered=1),
                begun.mark,
            )
            assert again is not None
            assert again.counts.rows == 3
            assert (await stages_of(sink).begin(epoch())) == Begun(again)
            assert await con.fetchval("SELECT count(*) FROM events") == 3
            assert await con.fetchval(STAGES) == 0


async def test_orphans_are_collected_by_application_and_version(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """P-T8: stages of a dead driver's attempt are removed; a stage of another application stays,
    and so does one in progress.
    """
    async with events(embedded_postgres) as con:
        other = Epoch(unit=Unit(application="other", version=1))
        async with sink_on(embedded_postgres) as sink:
            await write(sink, epoch(1), [(1, "a")])
            await write(sink, epoch(2), [(1, "a")])
            await write(sink, other, [(1, "a")])
            await stages_of(sink).begin(epoch(2))
            assert await con.fetchval(STAGES) == 2
            zombie = await write(sink, epoch(2), [(9, "late")])
            async with con.transaction():
                await con.execute(f'LOCK TABLE "{zombie.name}" IN ROW EXCLUSIVE MODE')
                await stages_of(sink).publish(epoch(2), [], Counts(), NO_MARK)
                assert await con.fetchval(STAGES) == 2
            await stages_of(sink).publish(epoch(3), [], Counts(), NO_MARK)
            assert await con.fetchval(STAGES) == 1
            assert await con.fetchval("SELECT count(*) FROM events") == 0


async def test_an_attempt_that_fails_leaves_no_stage(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with events(embedded_postgres) as con:
        async with sink_on(embedded_postgres) as sink:
            with pytest.raises(OSError, match="gone"):
                async with staged(sink, epoch()) as stage:
                    await send(stage.sink, RowBatch([(1, "a")]))
                    raise OSError("gone")
            assert await con.fetchval(STAGES) == 0


async def test_a_bad_row_is_refused_in_its_attempt(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """P-T10: check, unique and NOT NULL constraints apply in the stage; a conflict with the target
    fails the epoch.
    """
    async with events(embedded_postgres) as con:
        async with sink_on(embedded_postgres) as sink:
            async with staged(sink, epoch()) as stage:
                errors = await send(
                    stage.sink,
                    RowBatch([(1, "a"), (1, "again"), (2, "bad"), (None, "n"), (3, "c")]),
                )
                whole = await stage.inventory()
            assert sorted(errors) == [1, 2, 3]
            await stages_of(sink).publish(
                epoch(), [whole], Counts(rows=5, delivered=2, failed=3), NO_MARK
            )
            clash = await write(sink, epoch(2), [(3, "twice"), (4, "d")])
            with pytest.raises(asyncpg.UniqueViolationError):
                await stages_of(sink).publish(epoch(2), [clash], Counts(rows=2), NO_MARK)
            assert await con.fetch("SELECT id FROM events ORDER BY id") == [(1,), (3,)]
            assert (await stages_of(sink).begin(epoch(2))).before is None


async def test_conflicts_are_handled_as_the_sink_says(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """P-T9: one key in two stages and in the target; the version column decides."""
    async with events(embedded_postgres) as con:
        await con.execute("INSERT INTO events (id, name) VALUES (1, 'old'), (2, 'newest')")
        options = {"on_conflict": "update", "conflict_columns": ("id",), "version_column": "name"}
        async with sink_on(embedded_postgres, **options) as sink:
            stages = [
                await write(sink, epoch(), [(1, "z"), (1, "y"), (2, "a")]),
                await write(sink, epoch(), [(1, "p"), (3, "n")]),
            ]
            await stages_of(sink).publish(epoch(), stages, Counts(rows=5), NO_MARK)
        assert await con.fetch("SELECT id, name FROM events ORDER BY id") == [
            (1, "z"),
            (2, "newest"),
            (3, "n"),
        ]


async def test_the_order_of_a_stage_is_kept(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """P-T9: rows of very different lengths, which the server stores where they fit."""
    async with events(embedded_postgres) as con:
        rows = [(number, "x" * (7000 if number % 3 else 1)) for number in range(300)]
        async with sink_on(embedded_postgres) as sink:
            async with staged(sink, epoch(ordered=True)) as stage:
                for start in range(0, 300, 30):
                    await send(stage.sink, RowBatch(rows[start : start + 30]))
                whole = await stage.inventory()
            await stages_of(sink).publish(epoch(ordered=True), [whole], Counts(rows=300), NO_MARK)
        assert (
            await con.fetchval(
                "SELECT count(*) FROM (SELECT id < lag(id) OVER (ORDER BY serial) AS bad FROM "
                "events) AS t WHERE bad"
            )
            == 0
        )


SHAPE = """
    SELECT 'column ' || attname || ' ' || coalesce(pg_get_expr(adbin, adrelid), '') || attidentity::text AS fact FROM pg_attribute
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum WHERE attrelid = 'events'::regclass AND attnum > 0
    UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'events'::regclass
    UNION ALL SELECT conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'events'::regclass
    UNION ALL SELECT relacl::text || coalesce(array_to_string(reloptions, ','), '') || relowner::regrole::text FROM pg_class WHERE relname = 'events'
    UNION ALL SELECT 'column right ' || attacl::text FROM pg_attribute WHERE attrelid = 'events'::regclass AND attacl IS NOT NULL
    UNION ALL SELECT 'serial ' || pg_get_serial_sequence('events', 'serial') || ' ' || pg_get_serial_sequence('events', 'number')
    UNION ALL SELECT 'comment ' || obj_description('events'::regclass)
    ORDER BY 1
"""


async def test_an_overwritten_table_keeps_its_shape_and_rights(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """P-T14: indexes and their names, constraints, defaults, sequences and their position,
    privileges, owner.
    """
    async with events(embedded_postgres) as con:
        await con.execute(
            """
            DROP ROLE IF EXISTS sluicegate_reader; DROP ROLE IF EXISTS sluicegate_owner; CREATE ROLE sluicegate_reader; CREATE ROLE sluicegate_owner;
            CREATE TABLE parents (name text PRIMARY KEY); INSERT INTO parents VALUES ('a'), ('b');
            ALTER TABLE events ADD COLUMN number int GENERATED ALWAYS AS IDENTITY, ADD COLUMN at timestamptz DEFAULT now();
            ALTER TABLE events ADD CONSTRAINT parent FOREIGN KEY (name) REFERENCES parents (name) ON DELETE CASCADE;
            CREATE INDEX by_name ON events (lower(name)) WHERE id > 0; CREATE UNIQUE INDEX id_and_name ON events (id, name);
            COMMENT ON TABLE events IS 'what happened'; ALTER TABLE events SET (fillfactor = 70);
            GRANT SELECT ON events TO sluicegate_reader WITH GRANT OPTION; GRANT UPDATE (name) ON events TO sluicegate_reader;
            INSERT INTO events (id, name) VALUES (1, 'a'), (2, 'b');
            ALTER TABLE events OWNER TO sluicegate_owner
            """
        )
        before = await con.fetch(SHAPE)
        of = epoch(overwrite=True)
        async with sink_on(embedded_postgres) as sink:
            begun = await stages_of(sink).begin(of)
            assert begun.before is None
            whole = await write(sink, of, [(7, "b"), (8, "a"), (9, "a")])
            await stages_of(sink).publish(of, [whole], Counts(rows=3), begun.mark)
            assert await con.fetch(SHAPE) == before
            assert await con.fetch("SELECT id, name, number FROM events ORDER BY id") == [
                (7, "b", 3),
                (8, "a", 4),
                (9, "a", 5),
            ]
            assert await con.fetchval("SELECT min(serial) FROM events") > 2
            again = await stages_of(sink).publish(
                of, [await write(sink, of, [(1, "a")])], Counts(rows=1), begun.mark
            )
            assert again is not None
            assert await con.fetchval("SELECT count(*) FROM events") == 3
            assert await con.fetchval(STAGES) == 0
        await con.execute(
            "DROP TABLE events, parents; DROP ROLE sluicegate_reader; DROP ROLE sluicegate_owner"
        )


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("CREATE VIEW seen AS SELECT id FROM events", "has the view seen"),
        (
            "CREATE TABLE parents (id bigint REFERENCES events)",
            "is referenced by the foreign key parents_id_fkey of parents",
        ),
        ("CREATE RULE quiet AS ON DELETE TO events DO INSTEAD NOTHING", "has the rule quiet"),
        (
            "CREATE TRIGGER t BEFORE UPDATE ON events FOR EACH ROW EXECUTE FUNCTION "
            "suppress_redundant_updates_trigger()",
            "has the trigger t",
        ),
        ("ALTER TABLE events ENABLE ROW LEVEL SECURITY", "has row security"),
        ("CREATE TABLE parents () INHERITS (events)", "has tables that inherit from it"),
    ],
)
async def test_what_would_break_is_refused(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, made: str, told: str
) -> None:
    """P-T14: on the driver, before any task runs."""
    async with events(embedded_postgres) as con:
        await con.execute(made)
        async with sink_on(embedded_postgres) as sink:
            with pytest.raises(ConfigError, match=told):
                await stages_of(sink).begin(epoch(overwrite=True))


async def test_a_role_that_may_make_no_stage_is_told_what_it_lacks(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        events(embedded_postgres) as con,
        role(Database(embedded_postgres.dsn, "events", con)) as writer,
    ):
        await con.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {writer.name}")
        async with PostgresSink(writer.dsn, table="events", columns=("id", "name")) as sink:
            with pytest.raises(
                ConfigError, match=f"grant CREATE on schema public to {writer.name}$"
            ):
                await stages_of(sink).begin(epoch())


@pytest.mark.parametrize("identity", ["FULL", "NOTHING", "USING INDEX by_id"])
async def test_a_new_table_has_the_replica_identity_and_no_rights_by_default(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, identity: str
) -> None:
    """The old table predates the default privileges, so it has none of them."""
    shape = (
        "SELECT relreplident, array(SELECT grantee FROM aclexplode(coalesce(relacl, "
        "acldefault('r', relowner))) ORDER BY privilege_type) AS may"
    )
    async with events(embedded_postgres) as con, sink_on(embedded_postgres) as sink:
        await con.execute(
            "CREATE UNIQUE INDEX by_id ON events (id); ALTER TABLE events REPLICA IDENTITY "
            f"{identity}"
        )
        before = await con.fetch(f"{shape} FROM pg_class WHERE oid = 'events'::regclass")
        await con.execute("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC")
        try:
            of = epoch(overwrite=True)
            await stages_of(sink).publish(
                of, [await write(sink, of, [(1, "a")])], Counts(rows=1), NO_MARK
            )
        finally:
            await con.execute("ALTER DEFAULT PRIVILEGES REVOKE SELECT ON TABLES FROM PUBLIC")
        assert await con.fetch(f"{shape} FROM pg_class WHERE oid = 'events'::regclass") == before


@pytest.mark.parametrize("tables", ["TABLE events", "ALL TABLES", "TABLES IN SCHEMA public"])
async def test_a_published_table_is_not_replaced(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, tables: str
) -> None:
    """Subscribers would keep the old rows, however the publication names its tables."""
    async with events(embedded_postgres) as con, sink_on(embedded_postgres) as sink:
        await con.execute(f"CREATE PUBLICATION sluicegate_test FOR {tables}")
        try:
            with pytest.raises(ConfigError, match="is in the publication sluicegate_test"):
                await stages_of(sink).begin(epoch(overwrite=True))
        finally:
            await con.execute("DROP PUBLICATION sluicegate_test")


async def test_what_cannot_be_tidied_does_not_fail_what_is_published(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A stage of an older version belongs to another role: the rows are committed, and the epoch is
    complete.
    """
    async with (
        events(embedded_postgres) as con,
        role(Database(embedded_postgres.dsn, "events", con)) as writer,
    ):
        await con.execute(
            f"GRANT CREATE ON SCHEMA public TO {writer.name}; ALTER TABLE events OWNER TO "
            f"{writer.name}"
        )
        async with sink_on(embedded_postgres) as other:
            left = await write(other, epoch(1), [(9, "left")])
        async with PostgresSink(
            writer.dsn, table="events", columns=("id", "name"), ledger="sluicegate_writers_ledger"
        ) as sink:
            begun = await stages_of(sink).begin(epoch(2))
            stages = [await write(sink, epoch(2), [(1, "a")])]
            assert (
                await stages_of(sink).publish(
                    epoch(2), stages, Counts(rows=1, delivered=1), begun.mark
                )
                is None
            )
        assert await con.fetch("SELECT id, name FROM events") == [(1, "a")]
        assert left.name in caplog.text
        await con.execute(f'DROP TABLE "{left.name}", events')


async def test_a_reader_sees_the_old_rows_or_the_new_ones(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """P-T14: at no moment is the table empty."""
    async with events(embedded_postgres) as con:
        await con.execute(
            "INSERT INTO events (id, name) SELECT n, 'old' FROM generate_series(1, 100) AS n"
        )
        seen: set[tuple[int, str]] = set()
        begun, is_over = asyncio.Event(), False

        async def read() -> None:
            is_last = False
            while not is_last:
                is_last = is_over
                seen.add(tuple(await con.fetchrow("SELECT count(*), min(name) FROM events")))
                begun.set()

        async with sink_on(embedded_postgres) as sink:
            reading = asyncio.create_task(read())
            await begun.wait()
            for version in range(1, 6):
                of = epoch(version, overwrite=True)
                rows = [(number, f"v{version}") for number in range(100)]
                await stages_of(sink).publish(
                    of, [await write(sink, of, rows)], Counts(rows=100), NO_MARK
                )
            is_over = True
            await reading
        assert {count for count, _ in seen} == {100}
        assert len(seen) > 1


class Counting(Observer):
    def __init__(self) -> None:
        self.batches = 0

    def on_flush_start(self, batch: Batch[Any]) -> None:
        self.batches += 1


async def test_decorators_stand_around_the_stage(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """P-T21."""
    async with events(embedded_postgres) as con:
        observer = Counting()
        destination = sink_on(embedded_postgres)
        sink = stack(destination, Timeout(20.0), Observed(observer))
        async with opened(sink):
            whole = await write(sink, epoch(), [(1, "a")])
            await stages_of(destination).publish(epoch(), [whole], Counts(rows=1), NO_MARK)
        assert observer.batches == 1
        assert await con.fetchval("SELECT count(*) FROM events") == 1


def test_a_stack_that_cannot_is_refused() -> None:
    """P-T21: a second destination would be written before the commit."""
    sink = PostgresSink("postgresql://localhost/x", table="events", columns=("id",))
    assert check_staging(stack(sink, Timeout(1.0))) is sink
    for bad, told in [
        (MemorySink[Any](), "has no stages"),
        (stack(sink, DeadLetter(MemorySink())), "would write to another destination"),
        (FanOut(sink, MemorySink()), "would write to another destination"),
    ]:
        with pytest.raises(ConfigError, match=told):
            check_staging(bad)


async def test_what_was_published_before_an_overwrite_stays_published(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """The new table has another oid; the ledger's rows of the old one are transferred to it."""
    async with events(embedded_postgres) as con, sink_on(embedded_postgres) as sink:
        for version in (1, 2, 3):
            of = epoch(version, overwrite=version == 2)
            begun = await stages_of(sink).begin(of)
            stages = [await write(sink, of, [(version, "a")])]
            assert (
                await stages_of(sink).publish(of, stages, Counts(rows=1, delivered=1), begun.mark)
                is None
            )
        assert [row[0] for row in await con.fetch("SELECT id FROM events ORDER BY 1")] == [2, 3]
        for version in (1, 2, 3):
            assert (
                await stages_of(sink).begin(epoch(version, overwrite=version == 2))
            ).before is not None
        found = await con.fetch(
            "SELECT DISTINCT target, target_oid = 'events'::regclass FROM sluicegate_ledger"
        )
        assert [tuple(row) for row in found] == [('"public"."events"', True)]
