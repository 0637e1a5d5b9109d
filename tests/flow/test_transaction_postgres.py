"""Rows in PostgreSQL and the source's position commit together.

White box: transactions without a consumer, and the map beside a position.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from kept_table import KeptTable, kept_table, row_of
from piping import P0, P1, records
from tests.kafka.source.storm_help import log_lines
from tests.postgres.sink.postgres_help import Database, proxied, role

from sluicegate import ConfigError, RetryPolicy, RowBatch, Timeout, flow, send, stack, transaction
from sluicegate._core.positions import PositionUnit
from sluicegate.consumer import Commits, MemoryLog, MemorySource, Poison, Position
from sluicegate.consumer.progress.offset_map import encode
from sluicegate.errors import PositionLost
from sluicegate.sinks import Counts, MemorySink, Unit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sluicegate.postgres import PostgresSink
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

QUICK = RetryPolicy()


def row(at: int) -> tuple[int, int, str]:
    """A row of partition 0."""
    return 0, at, "k"


def piped(
    log: MemoryLog, sink: Any, *, ends: bool = True, **options: Any
) -> flow.TransactionalPipe:
    """A flow from a log into a sink, in small transactions without waiting times."""
    options = {"commits": Commits(every=0.01, after=8), "retry": QUICK, **options}
    return flow.transaction(MemorySource(log, ends=ends), sink, row_of, **options)


async def commit(sink: PostgresSink, rows: Sequence[int], position: int, group: str = "g") -> None:
    """Commit rows of partition 0 together with a position."""
    async with transaction(sink, PositionUnit(group, P0, Position(position))) as tx:
        assert not await send(tx, RowBatch([row(at) for at in rows]))


async def test_every_record_is_committed_once_and_in_order(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with kept_table(embedded_postgres.dsn) as kept:
        log = MemoryLog([*records(range(30)), *records(range(7), partition=1)])
        report = await piped(log, stack(kept.sink(), Timeout(10.0))).run()
        assert report.complete
        rows = await kept.rows()
        for partition, count in ((0, 30), (1, 7)):
            assert [at for part, at in rows if part == partition] == list(range(count))
        assert await kept.stored() == {("memory", 0): 30, ("memory", 1): 7}


async def test_a_restart_continues_behind_the_stored_position(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with kept_table(embedded_postgres.dsn) as kept:
        log = MemoryLog(records(range(6)))
        for count in (6, 9):
            await piped(log, kept.sink()).run()
            assert [at for _, at in await kept.rows()] == list(range(count))
            for record in records(range(3), first=6) if count == 6 else ():
                log.append(record)


async def test_the_map_of_an_earlier_consumer_is_stored_with_the_position(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with kept_table(embedded_postgres.dsn) as kept:
        log = MemoryLog(records(range(4)))
        log.store({P0: Position(0, encode(0, [(2, 4)]).text)})
        pipe = piped(log, kept.sink(), commits=Commits(every=0.01, after=1), ends=False)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pipe.run())
            await pipe.wait_ready()
            await until_position(kept, 4)
            pipe.stop()
        assert [at for _, at in await kept.rows()] == [0, 1]
        async with kept.sink() as sink:
            await sink.claim_positions("g", [P0])
            await sink.store_positions("g", {P0: Position(1, "a map")})
            assert await sink.claim_positions("g", [P0]) == {P0: Position(1, "a map")}


@asynccontextmanager
async def connected(kept: KeptTable) -> AsyncIterator[Any]:
    """Another connection to the database."""
    con = await asyncpg.connect(kept.db.dsn)
    try:
        yield con
    finally:
        await con.close()


async def until_position(
    kept: KeptTable, at: int, group: str = "memory", partition: int = 0
) -> None:
    """Wait until this position of a partition is stored."""
    async with asyncio.timeout(20.0):
        while (await kept.stored()).get((group, partition)) != at:
            pass


async def test_bad_rows_go_to_the_dead_letters_and_the_others_are_committed(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    columns = "n bigserial, part int, at bigint CHECK (at % 5 <> 3), key text"
    async with kept_table(embedded_postgres.dsn, columns) as kept:
        letters = MemorySink[Any]()
        log = MemoryLog(records(range(30)))
        pipe = piped(log, kept.sink(), poison=Poison("skip", dead_letters=letters))
        report = await pipe.run()
        assert report.complete
        assert [at for _, at in await kept.rows()] == [at for at in range(30) if at % 5 != 3]
        assert [each.item["offset"] for each in letters.items] == list(range(3, 30, 5))
        assert await kept.stored() == {("memory", 0): 30}


# -- owners ----------------------------------------------------------------------------------------


async def test_a_position_that_is_locked_rolls_back_the_transactions_of_its_partition_only(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """By another session, such as an operator's: no row is committed without its position."""
    async with kept_table(embedded_postgres.dsn) as kept, connected(kept) as operator:
        log = MemoryLog([record for part in (0, 1) for record in records([0], part)])
        pipe = piped(log, kept.sink(answer_timeout=0.2), ends=False)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pipe.run())
            await pipe.wait_ready()
            for part in (0, 1):
                await until_position(kept, 1, partition=part)
            async with asyncio.timeout(20.0), operator.transaction():
                await operator.fetch(f"SELECT FROM {kept.positions} WHERE partition = 0 FOR UPDATE")
                for part in (0, 1):
                    for record in records(range(5), part, first=1):
                        log.append(record)
                await until_position(kept, 6, partition=1)
                waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
                while await kept.db.con.fetchval(waits) < 2:  # a second attempt
                    pass
                assert [at for part, at in await kept.rows() if part == 0] == [0]
            await until_position(kept, 6)
            pipe.stop()
        for partition in (0, 1):
            assert [at for part, at in await kept.rows() if part == partition] == [*range(6)]


async def test_a_claim_ends_the_transaction_of_the_owner_before(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with (
        kept_table(embedded_postgres.dsn) as kept,
        kept.sink() as first,
        kept.sink() as second,
    ):
        assert await first.claim_positions("g", [P0]) == {}
        await second.claim_positions("g", [P1])
        with pytest.raises(PositionLost, match="another process took it over"):
            async with transaction(first, PositionUnit("g", P0, Position(5))) as tx:
                assert not await send(tx, RowBatch([row(0)]))
                await second.claim_positions("g", [P0])
        await commit(second, [7], 1)
        assert await first.store_positions("g", {P0: Position(9)}) == []
        with pytest.raises(PositionLost, match="epoch"):
            await first.read_positions("g", [P0])
        assert await kept.rows() == [(0, 7)]
        assert (await kept.stored())["g", 0] == 1


async def test_a_claim_waits_for_a_commit_under_way(embedded_postgres: EmbeddedPostgres) -> None:
    """It reads the position that this commit stores."""
    async with (
        kept_table(embedded_postgres.dsn) as kept,
        kept.sink() as first,
        kept.sink() as second,
    ):
        await first.claim_positions("g", [P0])
        con = kept.db.con
        await con.execute(f"BEGIN; UPDATE {kept.positions} SET position = 12")
        claim = asyncio.create_task(second.claim_positions("g", [P0]))
        waiting = (
            "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1"
        )
        async with asyncio.timeout(4.0), connected(kept) as other:
            while not await other.fetch(waiting, f"%{kept.positions}%"):
                pass
        assert not claim.done()
        await con.execute("COMMIT")
        assert await claim == {P0: Position(12)}


async def test_the_server_ends_an_owner_that_hangs_in_its_transaction(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with kept_table(embedded_postgres.dsn) as kept, kept.sink() as sink:
        await sink.claim_positions("g", [P0])
        async with sink.transaction(PositionUnit("g", P0, Position(1))) as tx:
            con = tx.connection  # type: ignore[attr-defined]  # of PostgreSQL's
            shown = await con.fetchval("SHOW idle_in_transaction_session_timeout")
            assert shown == "10s"
            assert await con.fetchval("SHOW synchronous_commit") == "on"
        async with sink.transaction(None) as tx:
            con = tx.connection  # type: ignore[attr-defined]
            assert await con.fetchval("SHOW idle_in_transaction_session_timeout") == "0"


NOTE_LIMIT = """
CREATE TABLE {table}_limits (told text);
CREATE FUNCTION {table}_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO {table}_limits VALUES (current_setting('idle_in_transaction_session_timeout'));
  RETURN NULL; END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE ON {positions}
  FOR EACH STATEMENT EXECUTE FUNCTION {table}_note();
"""
"""Records the time limit of each transaction that changes a position."""


async def test_claims_and_stores_hold_no_rows_for_a_frozen_process(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with kept_table(embedded_postgres.dsn) as kept, kept.sink() as sink:
        await sink.claim_positions("g", [P0])
        await kept.db.con.execute(NOTE_LIMIT.format(table=kept.db.table, positions=kept.positions))
        await sink.claim_positions("g", [P0])
        assert await sink.store_positions("g", {P0: Position(1)}) == [P0]
        told = await kept.db.con.fetch(f"SELECT told FROM {kept.db.table}_limits")
        assert len(told) >= 2
        assert {row["told"] for row in told} == {"10s"}


async def test_an_unclaimed_or_released_position_is_lost(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with kept_table(embedded_postgres.dsn) as kept, kept.sink() as sink:
        with pytest.raises(PositionLost, match="not claimed"):
            await commit(sink, [0], 1)
        await sink.claim_positions("g", [P0])
        sink.release_positions("g", [P0])
        with pytest.raises(PositionLost, match="released"):
            await commit(sink, [0], 1)
        assert await kept.rows() == []


async def test_two_groups_write_into_one_table(embedded_postgres: EmbeddedPostgres) -> None:
    async with kept_table(embedded_postgres.dsn) as kept:
        for group in ("one", "two"):
            log = MemoryLog(records(range(5)), group=group)
            await piped(log, kept.sink()).run()
        assert [at for _, at in await kept.rows()] == [*range(5), *range(5)]
        assert await kept.stored() == {("one", 0): 5, ("two", 0): 5}


async def test_one_open_sink_serves_one_flow(embedded_postgres: EmbeddedPostgres) -> None:
    async with kept_table(embedded_postgres.dsn) as kept, kept.sink() as sink:
        with pytest.raises(ConfigError, match="is already open"):
            await piped(MemoryLog(), sink).run()


async def test_a_unit_and_a_position_commit_through_the_same_sink(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with kept_table(embedded_postgres.dsn) as kept:
        async with kept.sink(ledger=f"{kept.db.table}_ledger") as sink:
            await sink.claim_positions("g", [P0])
            await commit(sink, [0], 1)
            unit = Unit(application="a", version=1)
            async with transaction(sink, unit) as tx:
                assert not await send(tx, RowBatch([row(1)]))
                tx.record(Counts(rows=1, delivered=1))
            async with transaction(sink, unit) as tx:
                assert tx.committed is not None
        assert [at for _, at in await kept.rows()] == [0, 1]
        await kept.db.con.execute(f"DROP TABLE {kept.db.table}_ledger")


# -- answers that are lost -------------------------------------------------------------------------


@pytest.mark.parametrize("is_applied", [True, False])
async def test_a_lost_answer_to_the_commit_neither_repeats_nor_loses_a_row(
    embedded_postgres: EmbeddedPostgres, is_applied: bool
) -> None:
    async with (
        kept_table(embedded_postgres.dsn) as kept,
        proxied(kept.db.dsn) as (proxy, through),
        kept.sink(dsn=through) as sink,
    ):
        await sink.claim_positions("g", [P0])
        for at in range(3):
            if is_applied:
                proxy.cut_answer = "COMMIT"
                await commit(sink, [at], at + 1)  # determined on another connection
                continue
            proxy.cut_request = lambda kind, body: kind == b"Q" and body.startswith(b"COMMIT")
            with pytest.raises(Exception, match="nothing of it was applied"):
                await commit(sink, [at], at + 1)
            await commit(sink, [at], at + 1)
        assert proxy.cuts == 3
        assert [at for _, at in await kept.rows()] == [0, 1, 2]
        assert (await kept.stored())["g", 0] == 3


async def test_cut_connections_at_every_statement_cost_no_record_and_repeat_none(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """Each client request in turn is the last one of its connection."""
    async with (
        kept_table(embedded_postgres.dsn) as kept,
        proxied(kept.db.dsn) as (proxy, through),
    ):
        log = MemoryLog(records(range(60)))
        seen = 0

        def cut(kind: bytes, body: bytes) -> bool:
            nonlocal seen
            seen += 1
            return seen % 23 == 0

        def again(kind: bytes, body: bytes) -> bool:
            if is_cut := cut(kind, body):
                asyncio.get_running_loop().call_soon(arm)
            return is_cut

        def arm() -> None:
            proxy.cut_request = again

        pipe = piped(log, kept.sink(dsn=through), commits=Commits(every=0.01, after=4), ends=False)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pipe.run())
            await pipe.wait_ready()
            arm()
            await until_position(kept, 60)
            proxy.cut_request = None
            pipe.stop()
        assert proxy.cuts > 3
        assert [at for _, at in await kept.rows()] == list(range(60))


# -- careless operators ----------------------------------------------------------------------------


async def test_a_table_made_anew_is_refused_with_the_statements_to_choose_from(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with kept_table(embedded_postgres.dsn) as kept:
        async with kept.sink() as sink:
            await sink.claim_positions("g", [P0])
            await commit(sink, [0, 1], 2)
            name, con = kept.db.table, kept.db.con
            await con.execute(
                f"ALTER TABLE {name} RENAME TO {name}_old; CREATE TABLE {name} (LIKE {name}_old "
                f"INCLUDING DEFAULTS); ALTER SEQUENCE {name}_n_seq OWNED BY {name}.n; "
                f"DROP TABLE {name}_old"
            )
            with pytest.raises(PositionLost, match="dropped and recreated"):
                await commit(sink, [2], 3)
        async with kept.sink() as sink:
            with pytest.raises(ConfigError, match="dropped and recreated") as refused:
                await sink.claim_positions("g", [P0, P1])
            text = str(refused.value)
            epochs = f"SELECT epoch FROM {kept.positions} WHERE partition = 0"
            assert await con.fetchval(epochs) == 1, "a refused claim changes nothing"
            _, _, statements = text.partition("To continue from the position: ")
            first, _, second = statements.partition("; or to write the records again")
            await con.execute(first)
            assert await sink.claim_positions("g", [P0]) == {P0: Position(2)}
            await con.execute(f"UPDATE {kept.positions} SET target_oid = 1")
            with pytest.raises(ConfigError) as refused:
                await sink.claim_positions("g", [P0])
            await con.execute(str(refused.value).partition("from offset 0: ")[2])
            assert await sink.claim_positions("g", [P0]) == {P0: Position(0)}
            assert second


async def test_a_group_that_writes_to_another_table_is_refused(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with (
        kept_table(embedded_postgres.dsn) as kept,
        kept_table(embedded_postgres.dsn) as other,
    ):
        async with kept.sink() as sink:
            await sink.claim_positions("g", [P0])
            await commit(sink, [0, 1], 2)
        async with other.sink(positions=kept.positions) as sink:
            with pytest.raises(ConfigError, match="its own consumer group"):
                await sink.claim_positions("g", [P0])
            assert await sink.claim_positions("another", [P0]) == {}


async def test_a_renamed_table_keeps_its_positions(embedded_postgres: EmbeddedPostgres) -> None:
    async with kept_table(embedded_postgres.dsn) as kept:
        async with kept.sink() as sink:
            await sink.claim_positions("g", [P0])
            await commit(sink, [0, 1], 2)
        name = f"{kept.db.table}_renamed"
        await kept.db.con.execute(f"ALTER TABLE {kept.db.table} RENAME TO {name}")
        renamed = KeptTable(Database(kept.db.dsn, name, kept.db.con))
        async with renamed.sink(positions=kept.positions) as sink:
            assert await sink.claim_positions("g", [P0]) == {P0: Position(2)}
            await commit(sink, [2], 3)
        assert [at for _, at in await renamed.rows()] == [0, 1, 2]
        await kept.db.con.execute(f"ALTER TABLE {name} RENAME TO {kept.db.table}")


async def test_a_truncated_table_keeps_its_positions(embedded_postgres: EmbeddedPostgres) -> None:
    """Only reading the rows could show it, so the rows before the position are not restored."""
    async with kept_table(embedded_postgres.dsn) as kept, kept.sink() as sink:
        await sink.claim_positions("g", [P0])
        await commit(sink, [0, 1], 2)
        await kept.db.con.execute(f"TRUNCATE {kept.db.table}")
        await commit(sink, [2], 3)
        assert await kept.rows() == [(0, 2)]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM {}", "its row was deleted"),
        ("UPDATE {} SET position = 0", "changed from 2 to 0"),
        ("UPDATE {} SET epoch = epoch + 1", "another process took it over"),
    ],
)
async def test_an_operator_who_changes_a_position_stops_its_owner(
    embedded_postgres: EmbeddedPostgres, statement: str, said: str
) -> None:
    """The operator's value takes effect at the next assignment."""
    async with kept_table(embedded_postgres.dsn) as kept, kept.sink() as sink:
        await sink.claim_positions("g", [P0])
        await commit(sink, [0, 1], 2)
        await kept.db.con.execute(statement.format(kept.positions))
        with pytest.raises(PositionLost, match=said):
            await commit(sink, [2], 3)
        assert [at for _, at in await kept.rows()] == [0, 1]
        found = await sink.claim_positions("g", [P0])
        expected: dict[str, Any] = {"DELETE": None, "position = 0": 0, "epoch": 2}
        at = next(value for name, value in expected.items() if name in statement)
        assert found.get(P0) == (None if at is None else Position(at))
        await commit(sink, [2], 3)


async def test_a_flow_that_is_stopped_by_an_operator_says_so_once_and_drains(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with kept_table(embedded_postgres.dsn) as kept, log_lines() as log:
        records_of = MemoryLog(records(range(6)))
        pipe = piped(records_of, kept.sink(), ends=False)
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(pipe.run())
            await pipe.wait_ready()
            await until_position(kept, 6)
            await kept.db.con.execute(f"DELETE FROM {kept.positions}")
            for record in records(range(3), first=6):
                records_of.append(record)
            await log.wait("its row was deleted")
            pipe.stop()
        assert run.result().complete
        assert [at for _, at in await kept.rows()] == list(range(6))


async def test_without_the_right_to_make_the_table_the_error_has_the_statement(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with kept_table(embedded_postgres.dsn) as kept, role(kept.db) as writer:
        await writer.grant("INSERT, SELECT")
        con = kept.db.con
        await con.execute(f"GRANT USAGE ON SEQUENCE {kept.db.table}_n_seq TO {writer.name}")
        async with kept.sink(dsn=writer.dsn) as sink:
            with pytest.raises(ConfigError, match="have it created with: CREATE TABLE") as refused:
                await sink.claim_positions("g", [P0])
            await con.execute(str(refused.value).partition("have it created with: ")[2])
            with pytest.raises(Exception, match="permission denied"):
                await sink.claim_positions("g", [P0])
            await con.execute(f"GRANT SELECT, INSERT, UPDATE ON {kept.positions} TO {writer.name}")
            await sink.claim_positions("g", [P0])
            await commit(sink, [0], 1)
        assert await kept.rows() == [(0, 0)]


async def test_a_table_of_another_shape_is_refused(embedded_postgres: EmbeddedPostgres) -> None:
    async with kept_table(embedded_postgres.dsn) as kept:
        await kept.db.con.execute(f"CREATE TABLE {kept.positions} (id int)")
        async with kept.sink() as sink:
            with pytest.raises(ConfigError, match="is a table of another shape"):
                await sink.claim_positions("g", [P0])
