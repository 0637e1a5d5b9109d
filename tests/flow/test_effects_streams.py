"""Effects of handlers for messages of a log of streams, with killed and frozen processes and
servers, and with silent connections.

Checked by separate queries on the log and the table of effects. `SLUICEGATE_KILLS=500 pytest -m
soak tests/flow/test_effects_streams.py` kills that many times.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from kept_table import KeptTable, kept_table
from tests.kafka.source.child_help import child_process
from tests.postgres.sink.postgres_help import Database
from tests.postgres.streams.log_help import Log, fresh_name, install_log
from tests.postgres.streams.silent_proxy import SilentProxy, freeze, silent_proxy

from sluicegate.testing import embedded_postgres as start_postgres
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Iterable, Iterator

    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

PROGRAM = Path(__file__).with_name("stream_effects_child.py")
STREAMS, EACH = 40, 50
FAULTS = ("kill", "freeze", "silence", "freeze the server")
KILLS = int(os.environ.get("SLUICEGATE_KILLS", "500"))
COLUMNS = "n bigserial, process int, slot int, at bigint, stream text, version bigint"
BOTH = pytest.mark.parametrize("leases", [False, True], ids=["transactions", "leases"])
WATCH = """
CREATE TABLE {table}_moves (back boolean);
CREATE FUNCTION {table}_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO {table}_moves VALUES (NEW.position < OLD.position); RETURN NULL; END $$;
CREATE TRIGGER note AFTER UPDATE OF position ON {schema}.subscription_slot
  FOR EACH ROW EXECUTE FUNCTION {table}_note();
"""
"""Records each move of a position."""
MISSING = """
SELECT count(*) FROM {schema}.message m WHERE NOT EXISTS (
  SELECT 1 FROM {table} e
  WHERE (e.stream, e.version, e.slot, e.at) = (m.stream, m.version, m.slot, m.position))
"""
REPEATED = "SELECT count(*) - count(DISTINCT at) FROM {table}"
CROSSED = """
SELECT count(*) FROM (
  SELECT first.at < lag(first.at) OVER (PARTITION BY {by} ORDER BY first.n) AS is_crossed
  FROM (SELECT {by}, at, min(n) AS n FROM {table} GROUP BY {by}, at) AS first) AS pairs
WHERE is_crossed
"""
"""The number of messages whose first effect comes after that of a later message."""


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A server that tests may kill."""
    with there_or_skip("postgres", start_postgres()) as server:
        yield server


class Scene:
    """A log whose messages have their effects in a table."""

    def __init__(self, kept: KeptTable, log: Log, stack: AsyncExitStack, folder: Path) -> None:
        self.kept = kept
        self.log = log
        self.folder = folder
        self.written = 0
        self.within = 60.0
        """Seconds in which messages have their effects."""
        self._stack = stack

    async def child(self, **options: Any) -> Process:
        """Start a process that handles messages."""
        given = {
            "dsn": self.log.dsn,
            "schema": self.log.schema,
            "table": self.kept.db.table,
            "positions": self.kept.positions,
            "log": str(self.folder / "log"),
            **options,
        }
        return await self._stack.enter_async_context(child_process(PROGRAM, **given))

    async def fill(self, each: int = EACH) -> None:
        """Append this many messages to each stream."""
        await self.kept.db.con.execute(
            f"SELECT {self.log.sql}.append('s-' || n, $1::text::jsonb) FROM generate_series(1, $2) n",
            json.dumps([{"type": "happened", "data": {}}] * each),
            STREAMS,
        )
        self.written += STREAMS * each

    async def ask(self, query: str, **names: str) -> int:
        """Query a number."""
        text = query.format(table=self.kept.db.table, schema=self.log.sql, **names)
        return int(await self.kept.db.con.fetchval(text))

    async def until(self, count: int) -> None:
        """Wait until this many messages have committed effects."""
        try:
            async with asyncio.timeout(self.within):
                while await self.ask("SELECT count(DISTINCT at) FROM {table}") < count:
                    pass
        except TimeoutError:
            pytest.fail("\n".join((self.folder / "log").read_text().splitlines()[-60:]))

    async def reconnect(self) -> None:
        """Connect again after a restart of the server."""
        con = await asyncpg.connect(self.kept.db.dsn)
        self._stack.push_async_callback(con.close)
        self.kept = KeptTable(Database(self.kept.db.dsn, self.kept.db.table, con))

    async def assert_exact(self, *, leases: bool) -> None:
        """Check that each message has its effect, in order; with transactions, exactly once."""
        assert await self.ask("SELECT count(*) FROM {schema}.message") == self.written
        assert await self.ask(MISSING) == 0
        assert await self.ask(CROSSED, by="slot") == 0
        assert await self.ask(CROSSED, by="stream") == 0
        assert leases or await self.ask(REPEATED) == 0
        assert await self.ask("SELECT count(*) FROM {table}_moves WHERE back") == 0, "S-T11"


@asynccontextmanager
async def scene(postgres: EmbeddedPostgres, folder: Path) -> AsyncIterator[Scene]:
    """A new log and a new table."""
    async with AsyncExitStack() as stack:
        kept = await stack.enter_async_context(kept_table(postgres.dsn, COLUMNS))
        log = Log(postgres.dsn, fresh_name())
        await install_log(log)
        await kept.db.con.execute(WATCH.format(table=kept.db.table, schema=log.sql))
        yield Scene(kept, log, stack, folder)


async def stop(*children: Process) -> None:
    """Stop processes by SIGTERM and wait for their orderly end."""
    for child in children:
        child.send_signal(signal.SIGTERM)
    for child in children:
        await child.communicate()
        assert child.returncode in (0, -signal.SIGTERM), "the second: it had not begun yet"


async def kill_at_random(made: Scene, kills: int, chance: random.Random, *, leases: bool) -> None:
    """Kill one of two processes at random moments, or freeze it until another has its slots."""
    faults = ["freeze" if number % 4 == 3 else "kill" for number in range(kills)]
    await disturb(made, faults, chance, leases=leases)


async def disturb(
    made: Scene,
    faults: Iterable[str],
    chance: random.Random,
    proxy: SilentProxy | None = None,
    server: EmbeddedPostgres | None = None,
    *,
    leases: bool,
) -> None:
    """Cause these faults at random moments, while messages are appended and handled."""
    options = {} if proxy is None else {"dsn": proxy.dsn, "effects": made.log.dsn}
    children = [await made.child(leases=leases, **options) for _ in range(2)]
    for fault in faults:
        await made.fill(5)
        await made.until(made.written - chance.randrange(1, STREAMS * 5))
        place = chance.randrange(2)
        if fault == "kill":
            children[place].kill()
            children[place] = await made.child(leases=leases, **options)
        elif fault == "freeze":
            children[place].send_signal(signal.SIGSTOP)
            await made.fill(1)  # some of them in the slots of the frozen process
            await made.until(made.written)
            children[place].send_signal(signal.SIGCONT)
        elif fault == "silence":
            assert proxy is not None
            assert proxy.silence() > 0
        else:
            assert server is not None
            await freeze(server, chance.uniform(0.5, 2.0))
    await made.until(made.written)
    await stop(*children)
    await made.assert_exact(leases=leases)


async def test_messages_of_streams_have_their_effects_once_and_in_order(
    own_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """S-T7: the position is in the transaction of the effects. A source ends at the horizon, which
    transactions of other tests on a shared server hold back, and does not continue messages whose
    lease ran out at its end.
    """
    async with scene(own_postgres, tmp_path) as made:
        await made.fill()
        child = await made.child(ends=True, lease=30.0)
        await child.communicate()
        assert child.returncode == 0
        await made.assert_exact(leases=False)


@BOTH
@pytest.mark.long
async def test_kills_and_frozen_processes_lose_no_effect_and_transactions_repeat_none(
    embedded_postgres: EmbeddedPostgres, tmp_path: Path, leases: bool
) -> None:
    """P1, S5, S-T2, S-T7, S-T11."""
    async with scene(embedded_postgres, tmp_path) as made:
        await kill_at_random(made, 6, random.Random(0), leases=leases)


@BOTH
@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_many_kills_and_frozen_processes(
    embedded_postgres: EmbeddedPostgres, tmp_path: Path, leases: bool
) -> None:
    """S-T2, S-T7, S-T11: `SLUICEGATE_KILLS` times; each fourth time a SIGSTOP that outlasts the
    lease.
    """
    async with scene(embedded_postgres, tmp_path) as made:
        await kill_at_random(made, KILLS, random.Random(1), leases=leases)


@BOTH
@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(3))
async def test_silent_connections_and_frozen_servers_lose_no_effect(
    own_postgres: EmbeddedPostgres, tmp_path: Path, leases: bool, seed: int
) -> None:
    """S-T2, S-T7, S-T11: `SLUICEGATE_KILLS` faults of all kinds. The server is frozen for up to
    four leases.
    """
    chance = random.Random(seed)
    faults = [chance.choice(FAULTS) for _ in range(KILLS)]
    async with scene(own_postgres, tmp_path) as made, silent_proxy(own_postgres.dsn) as proxy:
        made.within = 300.0
        await disturb(made, faults, chance, proxy, own_postgres, leases=leases)


@BOTH
@pytest.mark.long
async def test_a_server_that_is_killed_costs_no_effect_and_transactions_repeat_none(
    own_postgres: EmbeddedPostgres, tmp_path: Path, leases: bool
) -> None:
    """S-T2, S-T7: the server is killed twice under load."""
    async with scene(own_postgres, tmp_path) as made:
        children = [await made.child(leases=leases) for _ in range(2)]
        for _ in range(2):
            await made.fill()
            await made.until(made.written - STREAMS * EACH // 2)
            await asyncio.to_thread(own_postgres.kill)
            await asyncio.to_thread(own_postgres.start)
            await made.reconnect()
        await made.until(made.written)
        await stop(*children)
        await made.assert_exact(leases=leases)
