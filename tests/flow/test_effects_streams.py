"""Effects of handlers for the messages of a log of streams, over kills and frozen processes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kept_table import KeptTable, kept_table
from tests.sources.kafka.child_help import child_process
from tests.streams.log_help import Log, append, fresh_name, install_log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

PROGRAM = Path(__file__).with_name("stream_effects_child.py")
STREAMS, EACH = 40, 50
KILLS = int(os.environ.get("PENSTOCK_KILLS", "500"))


class Scene:
    """A log whose messages have their effects in a table."""

    def __init__(self, kept: KeptTable, log: Log) -> None:
        self.kept = kept
        self.log = log
        self.written = 0

    @property
    def options(self) -> dict[str, Any]:
        """The options of a program."""
        table, positions = self.kept.db.table, self.kept.positions
        return {
            "dsn": self.log.dsn,
            "schema": self.log.schema,
            "table": table,
            "positions": positions,
        }

    async def fill(self, each: int = EACH) -> None:
        """Append messages to each stream."""
        for number in range(STREAMS):
            messages = [{"type": "happened", "data": {}}] * each
            await append(self.kept.db.con, self.log.sql, f"s-{number}", messages)
        self.written += STREAMS * each

    async def count(self) -> int:
        """The number of committed effects."""
        return int(await self.kept.db.con.fetchval(f"SELECT count(*) FROM {self.kept.db.table}"))

    async def until(self, count: int) -> None:
        """Wait until so many effects are committed."""
        async with asyncio.timeout(60.0):
            while await self.count() < count:
                pass

    async def assert_exact(self) -> None:
        """Each message has its effect once, in the order of its stream."""
        found = await self.kept.db.con.fetch(
            f"SELECT stream, array_agg(version ORDER BY n) AS v FROM {self.kept.db.table} GROUP BY 1"
        )
        versions = list(range(self.written // STREAMS))
        assert {row["stream"]: row["v"] for row in found} == {
            f"s-{number}": versions for number in range(STREAMS)
        }


@asynccontextmanager
async def scene(postgres: EmbeddedPostgres) -> AsyncIterator[Scene]:
    """A new log and a new table."""
    async with kept_table(postgres.dsn, "n bigserial, stream text, version bigint") as kept:
        log = Log(postgres.dsn, fresh_name())
        await install_log(log)
        yield Scene(kept, log)


async def kill_at_random(postgres: EmbeddedPostgres, kills: int, chance: random.Random) -> None:
    """Kill one of two processes at random moments, or freeze it beyond its lease."""
    async with scene(postgres) as made, AsyncExitStack() as stack:
        children = [
            await stack.enter_async_context(child_process(PROGRAM, **made.options))
            for _ in range(2)
        ]
        for number in range(kills):
            await made.fill(5)
            await made.until(made.written - chance.randrange(1, STREAMS * 5))
            place = chance.randrange(2)
            if number % 4 == 3:
                children[place].send_signal(signal.SIGSTOP)
                await made.until(made.written)
                children[place].send_signal(signal.SIGCONT)
                continue
            children[place].kill()
            children[place] = await stack.enter_async_context(
                child_process(PROGRAM, **made.options)
            )
        await made.until(made.written)
        for child in children:
            child.send_signal(signal.SIGTERM)
        for child in children:
            await child.communicate()
        await made.assert_exact()


async def test_messages_of_streams_have_their_effects_once_and_in_order(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """S-T7: the position in the transaction of the effects."""
    async with scene(embedded_postgres) as made:
        await made.fill()
        async with child_process(PROGRAM, **made.options, ends=True) as child:
            _, errors = await child.communicate()
            assert child.returncode == 0, errors.decode()
        await made.assert_exact()


async def test_kills_and_frozen_processes_neither_lose_nor_repeat_an_effect(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """S-T2, S-T7, S-T11."""
    await kill_at_random(embedded_postgres, 8, random.Random(0))


@pytest.mark.soak
async def test_many_kills_and_frozen_processes(embedded_postgres: EmbeddedPostgres) -> None:
    """S-T7: `PENSTOCK_KILLS` of them, one of four a SIGSTOP beyond the lease."""
    await kill_at_random(embedded_postgres, KILLS, random.Random(1))
