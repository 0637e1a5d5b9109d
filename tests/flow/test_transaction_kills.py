"""Transactional flows into PostgreSQL that are killed, frozen and stopped: the destination has each
record once, in order per partition.

`SLUICEGATE_KILLS=50 pytest -m soak tests/flow/test_transaction_kills.py` kills at 50 random
moments.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from kept_table import KeptTable, kept_table
from tests.kafka.source.child_help import Child, child_process
from tests.kafka.source.kafka_help import fill, new_name, new_topic, stored

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka, EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

PROGRAM = Path(__file__).with_name("transaction_child.py")
PARTS = 3
COUNT = 4_000
SPOILED = 97
"""The table refuses one of this many records."""
KILLS = int(os.environ.get("SLUICEGATE_KILLS", "50"))
COLUMNS = f"n bigserial, part int, at bigint CHECK (at % {SPOILED} <> 13), key text"
SLOW = """
CREATE FUNCTION {table}_slow() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(0.05); RETURN NULL; END $$;
CREATE TRIGGER slow AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {table}_slow()
"""
"""Slows down every statement, so that most moments are within a transaction."""


class Scene(NamedTuple):
    """A topic that flows into a table."""

    kept: KeptTable
    broker: EmbeddedKafka
    topic: str
    group: str
    letters: Path

    def options(self, **more: Any) -> dict[str, Any]:
        """The options of a program."""
        return {
            "bootstrap": self.broker.bootstrap,
            "topic": self.topic,
            "group": self.group,
            "dsn": self.kept.db.dsn,
            "table": self.kept.db.table,
            "positions": self.kept.positions,
            "letters": str(self.letters),
            **more,
        }

    async def until(self, count: int) -> None:
        """Wait until this many rows are committed."""
        async with asyncio.timeout(60.0):
            while await self.written() < count:
                pass

    async def written(self) -> int:
        """The number of committed rows."""
        found = await self.kept.db.con.fetchval(f"SELECT count(*) FROM {self.kept.db.table}")
        return int(found)

    async def assert_exact(self, counts: dict[int, int]) -> None:
        """Check that each record of each partition is present once and in order, or among the dead
        letters.
        """
        rows = await self.kept.rows()
        spoiled: set[tuple[int, int]] = set()
        for part, count in counts.items():
            good = [at for at in range(count) if at % SPOILED != 13]
            assert [at for each, at in rows if each == part] == good, f"partition {part}"
            spoiled |= {(part, at) for at in range(count)} - {(part, at) for at in good}
        lines = self.letters.read_text().split("\n")[:-1]
        assert {tuple(map(int, line.split())) for line in lines} == spoiled
        positions = await self.kept.stored()
        assert positions == {(self.group, part): count for part, count in counts.items()}


def good(count: int, parts: int = PARTS) -> int:
    """The expected number of rows of this many records in each partition."""
    return parts * sum(at % SPOILED != 13 for at in range(count))


async def _scene(
    stack: AsyncExitStack, broker: EmbeddedKafka, postgres: EmbeddedPostgres, folder: Path
) -> Scene:
    topic, group = await new_topic(broker, PARTS), new_name("transacted")
    for part in range(PARTS):
        await fill(broker, topic, COUNT, partition=part)
    kept = await stack.enter_async_context(kept_table(postgres.dsn, COLUMNS))
    return Scene(kept, broker, topic, group, folder / "letters")


@pytest.mark.long
async def test_kills_at_random_moments(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Each record once and in order, whatever was in progress."""
    await _kill_at_random(broker, embedded_postgres, tmp_path, 5, random.Random(0))


@pytest.mark.soak
async def test_many_kills_at_random_moments(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    await _kill_at_random(broker, embedded_postgres, tmp_path, KILLS, random.Random(1))


async def _kill_at_random(
    broker: EmbeddedKafka,
    postgres: EmbeddedPostgres,
    folder: Path,
    kills: int,
    chance: random.Random,
) -> None:
    async with AsyncExitStack() as stack:
        scene = await _scene(stack, broker, postgres, folder)
        options = scene.options(instance="only")
        everything = good(COUNT)
        moments = sorted(chance.randrange(everything - 500) for _ in range(kills))
        for moment in moments:
            async with child_process(PROGRAM, **options) as process:
                await scene.until(max(moment, await scene.written() + 1))
                process.kill()
                await process.wait()
        async with child_process(PROGRAM, **options) as process:
            await scene.until(everything)
            process.send_signal(signal.SIGTERM)
            await process.communicate()
            assert process.returncode == 0
        await scene.assert_exact(dict.fromkeys(range(PARTS), COUNT))
        copied = await stored(broker, scene.group)
        assert {each.partition: at.offset for each, at in copied.items()} == dict.fromkeys(
            range(PARTS), COUNT
        ), "the group's offsets are copies, for tools"


@pytest.mark.long
async def test_nothing_of_a_frozen_process_lands_after_its_partitions_have_moved(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """SIGSTOP during transactions; another member finishes; SIGCONT."""
    async with AsyncExitStack() as stack:
        scene = await _scene(stack, broker, embedded_postgres, tmp_path)
        await scene.kept.db.con.execute(SLOW.format(table=scene.kept.db.table))
        frozen = await stack.enter_async_context(child_process(PROGRAM, **scene.options()))
        await scene.until(300)
        frozen.send_signal(signal.SIGSTOP)
        began = await scene.written()
        await scene.kept.db.con.execute(f"DROP TRIGGER slow ON {scene.kept.db.table}")
        other = await stack.enter_async_context(child_process(PROGRAM, **scene.options()))
        await scene.until(max(began + 1_000, good(COUNT) - 1_000))
        frozen.send_signal(signal.SIGCONT)
        await scene.until(good(COUNT))
        for part in range(PARTS):
            await fill(broker, scene.topic, 500, partition=part)
        counts = dict.fromkeys(range(PARTS), COUNT + 500)
        await scene.until(good(COUNT + 500))
        for process in (frozen, other):
            process.send_signal(signal.SIGTERM)
        errors = await Child(frozen).errors()
        assert (await frozen.wait(), await other.wait()) == (0, 0), errors
        await scene.assert_exact(counts)


@pytest.mark.long
async def test_signals_drain_and_nothing_is_repeated(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        scene = await _scene(stack, broker, embedded_postgres, tmp_path)
        moments = {500: signal.SIGTERM, 2_000: signal.SIGINT, good(COUNT): signal.SIGTERM}
        for moment, how in moments.items():
            async with child_process(PROGRAM, **scene.options(instance="only")) as process:
                await scene.until(moment)
                process.send_signal(how)
                _, errors = await process.communicate()
                assert process.returncode == 0, errors.decode()
        await scene.assert_exact(dict.fromkeys(range(PARTS), COUNT))
