"""Handlers whose effects in PostgreSQL commit together with the source's position."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from kept_table import KeptTable, kept_table
from piping import P0, records
from tests.kafka.source.storm_help import log_lines
from tests.postgres.sink.postgres_help import proxied

from sluicegate import (
    Backoff,
    ClosedError,
    ConfigError,
    Message,
    Nak,
    RetryPolicy,
    RowBatch,
    Terminate,
    ToDeadLetter,
    flow,
    transaction,
)
from sluicegate.consumer import Commits, MemoryLog, MemorySource, Poison, Position, Skip
from sluicegate.postgres import PostgresEffects
from sluicegate.sinks import MemorySink, Unit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from sluicegate.testing import EmbeddedPostgres

    Handler = Callable[[Message], Awaitable[object]]

pytestmark = pytest.mark.usefixtures("real_clock")

QUICK = RetryPolicy(backoff=Backoff(base=0.001, jitter="none"))
COLUMNS = "n bigserial, part int, at bigint UNIQUE, key text"


class Scene(KeptTable):
    """A table that handlers write to."""

    def effects(self, dsn: str | None = None, **options: Any) -> PostgresEffects:
        """A new destination for effects."""
        options = {"positions": self.positions, "pool_size": 4, **options}
        return PostgresEffects(dsn or self.db.dsn, **options)

    async def insert(self, message: Message, at: int | None = None) -> None:
        """The default effect of a message."""
        await message.connection.execute(
            f"INSERT INTO {self.db.table} (part, at, key) VALUES ($1, $2, $3)",
            message.partition,
            message.offset if at is None else at,
            str(message.key),
        )

    def flow(
        self, handler: Handler, log: MemoryLog, *, ends: bool = True, **options: Any
    ) -> flow.TransactionalPipe:
        """A flow in small transactions without waiting times."""
        sink = options.pop("sink", None) or self.effects()
        options = {"commits": Commits(every=0.01, after=8), "retry": QUICK, **options}
        return flow.transaction(MemorySource(log, ends=ends), sink, handler, **options)

    async def offsets(self) -> list[int]:
        """The offsets of the effects, in order."""
        return [at for _, at in await self.rows()]


@asynccontextmanager
async def scene(postgres: EmbeddedPostgres, columns: str = COLUMNS) -> AsyncIterator[Scene]:
    """A new table."""
    async with kept_table(postgres.dsn, columns) as made:
        yield Scene(made.db)


async def test_the_effects_of_each_message_are_there_once_and_in_order(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """S10, P1, S-T7: effect and position are in one transaction."""
    async with scene(embedded_postgres) as made:
        log = MemoryLog(records(range(20)))
        report = await made.flow(made.insert, log).run()
        assert report.complete
        for record in records(range(5), first=20):
            log.append(record)
        await made.flow(made.insert, log).run()
        assert await made.offsets() == list(range(25))
        assert await made.stored() == {("memory", 0): 25}
        async with made.effects() as sink:
            assert await sink.claim_positions("memory", [P0]) == {P0: Position(25)}


async def test_effects_and_position_are_of_the_same_transaction(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with scene(embedded_postgres) as made:
        seen: list[tuple[int, int]] = []

        async def handle(message: Message) -> None:
            await made.insert(message)
            seen.append((len(await made.rows()), (await made.stored()).get(("memory", 0)) or 0))

        await made.flow(
            handle, MemoryLog(records(range(6))), commits=Commits(every=0.01, after=2)
        ).run()
        assert seen == [(0, 0), (0, 0), (2, 2), (2, 2), (4, 4), (4, 4)]


async def test_a_handler_that_raises_leaves_nothing_and_its_message_comes_back(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """S-T7: the effects before it are committed, those of the failed attempt rolled back."""
    async with scene(embedded_postgres) as made:
        tries: list[int] = []

        async def handle(message: Message) -> None:
            tries.append(message.offset)
            await made.insert(message)
            if message.offset == 3 and tries.count(3) < 3:
                raise ValueError("not yet")

        await made.flow(handle, MemoryLog(records(range(6)))).run()
        assert await made.offsets() == list(range(6))
        assert tries == [0, 1, 2, 3, 0, 1, 2, 3, 3, 4, 5]


async def test_a_rollback_leaves_the_state_unchanged(embedded_postgres: EmbeddedPostgres) -> None:
    """S10, S-T7: after a rollback the state is unchanged and the message is redelivered."""
    async with scene(embedded_postgres) as made, log_lines() as lines:

        async def handle(message: Message) -> None:
            await made.insert(message)
            raise ValueError("never")

        pipe = made.flow(handle, MemoryLog(records(range(3))), ends=False)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pipe.run())
            await lines.wait("blocks its key")
            assert await made.rows() == []
            assert (await made.stored())["memory", 0] is None
            assert [each.offset for each in pipe.blocked] == [0]
            pipe.stop()


@pytest.mark.parametrize("bad", [{0}, {3}, {1, 2}, {0, 4, 9}, set(range(10))], ids=str)
async def test_poison_goes_its_way_alone(
    embedded_postgres: EmbeddedPostgres, bad: set[int]
) -> None:
    async with scene(embedded_postgres) as made:
        letters = MemorySink[Any]()

        async def handle(message: Message) -> None:
            await made.insert(message)
            if message.offset in bad:
                raise ValueError("spoiled")

        options: dict[str, Any] = {"poison": Poison("skip", dead_letters=letters)}
        report = await made.flow(handle, MemoryLog(records(range(10))), **options).run()
        assert report.complete
        assert await made.offsets() == [at for at in range(10) if at not in bad]
        assert [letter.item["offset"] for letter in letters.items] == sorted(bad)
        assert await made.stored() == {("memory", 0): 10}


async def test_what_a_handler_answers_counts_as_in_a_consumer(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with scene(embedded_postgres) as made:
        letters, naks = MemorySink[Any](), 0

        async def handle(message: Message) -> object:
            nonlocal naks
            await made.insert(message)
            if message.offset == 1:
                return Skip()
            if message.offset == 2 and (naks := naks + 1) < 2:
                return Nak(0.001)
            if message.offset == 3:
                return ToDeadLetter("unwanted")
            if message.offset == 4:
                return Terminate("spoiled")
            return 17 if message.offset == 5 else None

        options: dict[str, Any] = {"poison": Poison("skip", dead_letters=letters)}
        pipe = made.flow(handle, MemoryLog(records(range(7))), **options)
        await pipe.run()
        assert await made.offsets() == [0, 1, 2, 6]
        assert [letter.item["offset"] for letter in letters.items] == [3, 4, 5]
        assert pipe.stats().counts.skipped == 1


# -- uses of the connection by a handler -----------------------------------------------------------


async def test_savepoints_cursors_and_prepared_statements_are_the_handlers_own(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with scene(embedded_postgres) as made:

        async def handle(message: Message) -> None:
            con = message.connection
            assert isinstance(con, asyncpg.pool.PoolConnectionProxy)
            try:
                async with con.transaction():
                    await made.insert(message)
                    await made.insert(message)
            except asyncpg.UniqueViolationError:
                await made.insert(message)
            statement = await con.prepare("SELECT $1::int")
            assert await statement.fetchval(3) == 3
            assert [row[0] async for row in con.cursor("SELECT generate_series(1, 3)")] == [1, 2, 3]
            await con.execute("SAVEPOINT mine")
            await con.execute("ROLLBACK TO SAVEPOINT mine")
            await con.execute("rollback work to mine")

        await made.flow(handle, MemoryLog(records(range(4)))).run()
        assert await made.offsets() == list(range(4))


@pytest.mark.parametrize(
    "statement",
    ["COMMIT", " commit;", "END", "ROLLBACK", "abort", "BEGIN", "start  transaction", "close()"],
)
async def test_a_handler_cannot_end_the_transaction(
    embedded_postgres: EmbeddedPostgres, statement: str
) -> None:
    async with scene(embedded_postgres) as made:
        letters = MemorySink[Any]()

        async def handle(message: Message) -> None:
            await made.insert(message)
            if message.offset == 1:
                if statement == "close()":
                    await message.connection.close()
                await message.connection.execute(statement)

        options: dict[str, Any] = {"poison": Poison("skip", dead_letters=letters)}
        await made.flow(handle, MemoryLog(records(range(3))), **options).run()
        assert await made.offsets() == [0, 2]
        assert "message.connection refuses" in letters.items[0].message


@pytest.mark.parametrize(
    "script", ["SELECT 1; COMMIT", "SELECT 1; ROLLBACK", "SELECT 1; COMMIT; BEGIN"]
)
async def test_a_transaction_that_a_handler_has_ended_all_the_same_is_named(
    embedded_postgres: EmbeddedPostgres, script: str
) -> None:
    """Its effects cannot be undone; the message is not redelivered automatically."""
    async with scene(embedded_postgres, "n bigserial, part int, at bigint, key text") as made:
        letters = MemorySink[Any]()

        async def handle(message: Message) -> None:
            await made.insert(message)
            if message.offset == 1:
                await message.connection.execute(script)

        options: dict[str, Any] = {"poison": Poison("skip", dead_letters=letters)}
        await made.flow(handle, MemoryLog(records(range(4))), **options).run()
        assert [letter.item["offset"] for letter in letters.items] == [1]
        assert "has ended the transaction" in letters.items[0].message
        assert (await made.offsets())[-2:] == [2, 3]
        assert await made.stored() == {("memory", 0): 4}


@pytest.mark.parametrize("passes_over", [False, True])
async def test_a_session_that_the_server_ends_under_a_handler_costs_no_effect(
    embedded_postgres: EmbeddedPostgres, passes_over: bool
) -> None:
    """S-T7, S-T8: even if the handler suppresses the error."""
    async with scene(embedded_postgres) as made, log_lines():
        tries = 0

        async def handle(message: Message) -> None:
            nonlocal tries
            await made.insert(message)
            if message.offset == 2 and (tries := tries + 1) == 1:
                try:
                    await message.connection.execute(
                        "SELECT pg_terminate_backend(pg_backend_pid())"
                    )
                except asyncpg.PostgresError:
                    if not passes_over:
                        raise

        report = await made.flow(handle, MemoryLog(records(range(5)))).run()
        assert report.complete
        assert tries > 1
        assert await made.offsets() == list(range(5))
        assert await made.stored() == {("memory", 0): 5}


async def test_the_connection_is_taken_back_when_the_handler_has_ended(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with scene(embedded_postgres) as made:
        kept: list[tuple[Message, Any]] = []

        async def handle(message: Message) -> None:
            await made.insert(message)
            for earlier, con in kept:
                with pytest.raises(ClosedError, match="its handler runs"):
                    earlier.connection  # noqa: B018
                with pytest.raises(ClosedError, match="the handler has ended"):
                    await con.fetch("SELECT 1")
            kept.append((message, message.connection))

        await made.flow(handle, MemoryLog(records(range(4)))).run()
        assert await made.offsets() == list(range(4))


@pytest.mark.parametrize("culprit", [0, 2, 7])
async def test_a_handler_that_passes_over_an_error_of_the_database_is_found(
    embedded_postgres: EmbeddedPostgres, culprit: int
) -> None:
    """The transaction is aborted, but only a later statement shows it."""
    async with scene(embedded_postgres) as made:
        letters = MemorySink[Any]()

        async def handle(message: Message) -> None:
            if message.offset == culprit:
                with pytest.raises(asyncpg.PostgresError):
                    await message.connection.execute("SELECT 1 / 0")
                return
            if message.offset != culprit + 1:  # has no effect
                await made.insert(message)

        options: dict[str, Any] = {"poison": Poison("skip", dead_letters=letters)}
        await made.flow(handle, MemoryLog(records(range(9))), **options).run()
        assert [letter.item["offset"] for letter in letters.items] == [culprit]
        assert "one of its statements failed" in letters.items[0].message
        assert await made.offsets() == [at for at in range(9) if at - culprit not in (0, 1)]


async def test_a_deferred_constraint_costs_its_own_message_only(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    columns = (
        "n bigserial, part int, at bigint, key text, UNIQUE (at) DEFERRABLE INITIALLY DEFERRED"
    )
    async with scene(embedded_postgres, columns) as made:
        letters = MemorySink[Any]()

        async def handle(message: Message) -> None:
            await made.insert(message, 0 if message.offset == 5 else None)

        options: dict[str, Any] = {"poison": Poison("skip", dead_letters=letters)}
        await made.flow(handle, MemoryLog(records(range(8))), **options).run()
        assert [letter.item["offset"] for letter in letters.items] == [5]
        assert await made.offsets() == [0, 1, 2, 3, 4, 6, 7]


# -- outages and owners ----------------------------------------------------------------------------


@pytest.mark.long
async def test_cut_connections_at_every_statement_cost_no_effect_and_repeat_none(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """S-T7: each client request in turn is the last one of its connection."""
    async with (
        scene(embedded_postgres) as made,
        proxied(made.db.dsn) as (proxy, through),
        log_lines(),
    ):
        seen = 0

        def cut(kind: bytes, body: bytes) -> bool:
            nonlocal seen
            seen += 1
            if is_cut := seen % 61 == 0:
                asyncio.get_running_loop().call_soon(arm)
            return is_cut

        def arm() -> None:
            proxy.cut_request = cut

        log = MemoryLog(records(range(60)))
        pipe = made.flow(
            made.insert,
            log,
            sink=made.effects(through),
            commits=Commits(every=0.01, after=4),
            ends=False,
        )
        async with asyncio.timeout(30.0), asyncio.TaskGroup() as tasks:
            tasks.create_task(pipe.run())
            await pipe.wait_ready()
            arm()
            while (await made.stored()).get(("memory", 0)) != 60:
                pass
            proxy.cut_request = None
            pipe.stop()
        assert proxy.cuts > 3
        assert await made.offsets() == list(range(60))


@pytest.mark.parametrize("is_applied", [True, False])
async def test_a_lost_answer_to_the_commit_is_found_out(
    embedded_postgres: EmbeddedPostgres, is_applied: bool
) -> None:
    async with scene(embedded_postgres) as made, proxied(made.db.dsn) as (proxy, through):
        handled: list[int] = []

        async def handle(message: Message) -> None:
            handled.append(message.offset)
            await made.insert(message)
            if message.offset != 3 or handled.count(3) > 1:
                return
            if is_applied:
                proxy.cut_answer = "COMMIT"
            else:
                proxy.cut_request = lambda kind, body: body.startswith(b"COMMIT")

        log = MemoryLog(records(range(8)))
        await made.flow(
            handle, log, sink=made.effects(through), commits=Commits(every=0.01, after=4)
        ).run()
        assert proxy.cuts == 1
        assert await made.offsets() == list(range(8))
        assert handled.count(3) == (1 if is_applied else 2)


async def test_nothing_of_a_frozen_owner_is_left_and_it_holds_locks_for_the_idle_timeout_only(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """S-T11: its row locks block the next owner until the server ends its session."""
    async with scene(embedded_postgres) as made, log_lines():
        await made.db.con.execute(f"INSERT INTO {made.db.table} (part, at) VALUES (9, -1)")
        frozen, has_locked = asyncio.Event(), asyncio.Event()

        async def freeze(message: Message) -> None:
            await message.connection.execute(f"UPDATE {made.db.table} SET key = 'x' WHERE at = -1")
            await made.insert(message)
            has_locked.set()
            await frozen.wait()

        async def handle(message: Message) -> None:
            await message.connection.execute(f"UPDATE {made.db.table} SET key = 'y' WHERE at = -1")
            await made.insert(message)

        first = made.flow(
            freeze, MemoryLog(records(range(4))), sink=made.effects(idle_timeout=0.5), ends=False
        )
        async with asyncio.timeout(20.0), asyncio.TaskGroup() as tasks:
            tasks.create_task(first.run())
            await has_locked.wait()
            await made.flow(handle, MemoryLog(records(range(4)))).run()
            frozen.set()
            first.stop()
        assert await made.offsets() == [-1, 0, 1, 2, 3]
        key = await made.db.con.fetchval(f"SELECT key FROM {made.db.table} WHERE at = -1")
        assert key == "y"


NOTE_LIMIT = """
CREATE TABLE {table}_limits (told text);
CREATE FUNCTION {table}_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO {table}_limits
    VALUES (TG_OP || ' ' || current_setting('idle_in_transaction_session_timeout'));
  RETURN NULL; END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE ON {positions}
  FOR EACH STATEMENT EXECUTE FUNCTION {table}_note();
"""
"""Records the time limit of each transaction that changes a position."""


async def test_each_transaction_of_positions_ends_if_its_process_is_frozen_within(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """S-T8: a claim, a store and a commit, so that no position stays locked."""
    async with scene(embedded_postgres) as made:
        log = MemoryLog(records(range(2)))
        await made.flow(made.insert, log).run()
        await made.db.con.execute(NOTE_LIMIT.format(table=made.db.table, positions=made.positions))
        async with made.effects() as effects:
            await effects.claim_positions("frozen", [P0])
            assert await effects.store_positions("frozen", {P0: Position(1)}) == [P0]
        found = await made.db.con.fetch(f"SELECT told FROM {made.db.table}_limits")
        told = {row["told"].partition(" ")[2] for row in found}
        assert told == {"10s"}


async def test_a_handler_that_is_slower_than_the_idle_timeout_fails_by_name(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with scene(embedded_postgres) as made, log_lines():
        letters = MemorySink[Any]()

        async def handle(message: Message) -> None:
            await made.insert(message)
            if message.offset == 1:
                ended = asyncio.Event()
                message.connection.add_termination_listener(lambda con: ended.set())
                await ended.wait()

        options: dict[str, Any] = {"poison": Poison("skip", dead_letters=letters)}
        sink = made.effects(idle_timeout=0.05)
        await made.flow(handle, MemoryLog(records(range(3))), sink=sink, **options).run()
        assert await made.offsets() == [0, 2]
        assert "idle_timeout=0.05 s" in letters.items[0].message


async def test_a_cut_in_the_middle_of_a_handler_rolls_back(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with scene(embedded_postgres) as made:
        inside = asyncio.Event()

        async def handle(message: Message) -> None:
            await made.insert(message)
            inside.set()
            await message.connection.fetch("SELECT pg_sleep(20)")

        log = MemoryLog(records(range(3)))
        pipe = made.flow(handle, log, ends=False, drain=0.05)
        async with asyncio.timeout(10.0), asyncio.TaskGroup() as tasks:
            run = tasks.create_task(pipe.run())
            await inside.wait()
            pipe.stop()
        assert not run.result().complete
        await made.flow(made.insert, log).run()
        assert await made.offsets() == [0, 1, 2]


# -- arguments -------------------------------------------------------------------------------------


def plain(message: Message) -> None:
    """A synchronous handler."""


@pytest.mark.parametrize(
    ("handler", "said"), [(None, "must be given"), (plain, "async function"), (3, "function of")]
)
def test_a_bad_handler_is_refused(handler: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        flow.transaction(
            MemorySource(MemoryLog()), PostgresEffects("postgresql://u:p@h/d"), handler
        )


def test_bad_arguments_are_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"idle_timeout": 0},
        {"positions": ""},
        {"pool_size": 0},
        {"tabel": "t"},
    ]
    for options in wrong:
        with pytest.raises(ConfigError, match=next(iter(options))):
            PostgresEffects("postgresql://h/d", **options)
    assert "p" not in repr(PostgresEffects("postgresql://u:p@h/d")).partition("(")[2]


async def test_it_is_no_sink_of_rows(embedded_postgres: EmbeddedPostgres) -> None:
    sink = PostgresEffects(embedded_postgres.dsn)
    with pytest.raises(ConfigError, match=r"flow\.transaction"):
        await sink.write(RowBatch([]))
    with pytest.raises(ConfigError, match="position of their source"):
        async with transaction(sink, Unit(application="a", version=1)):
            pass
