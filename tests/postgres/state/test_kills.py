"""A consumer with state that is killed at random moments: the stored state is always a replay.

`SLUICEGATE_KILLS=50 pytest -m soak tests/postgres/state/test_kills.py` kills at 50 random moments.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from state_counting import assert_replay
from state_help import state_tables
from tests.kafka.source.child_help import child_process

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

PROGRAM = Path(__file__).parents[2] / "flow/state_child.py"
KILLS = int(os.environ.get("SLUICEGATE_KILLS", "50"))


@pytest.mark.long
async def test_some_kills(embedded_postgres: EmbeddedPostgres) -> None:
    """G-T24: after each kill the state is exactly that of the events before the position."""
    await _kill(embedded_postgres, 4, random.Random(0))


@pytest.mark.soak
async def test_many_kills(embedded_postgres: EmbeddedPostgres) -> None:
    await _kill(embedded_postgres, KILLS, random.Random(1))


async def _kill(postgres: EmbeddedPostgres, kills: int, chance: random.Random) -> None:
    count = 1500 * kills
    moments = sorted(chance.randrange(count - 1000) for _ in range(kills))
    async with state_tables(postgres.dsn) as tables:
        options = {
            "dsn": tables.dsn,
            "table": tables.table,
            "positions": tables.positions,
            "count": count,
        }
        before = 0
        for seed, moment in enumerate(moments):
            async with child_process(PROGRAM, **options, seed=seed) as process:
                async with asyncio.timeout(60.0):
                    while await tables.position() <= max(moment, before):
                        assert process.returncode is None
                process.kill()
                await process.wait()
            before, state = await tables.stored()
            assert_replay(before, state)
        async with child_process(PROGRAM, **options, seed=kills) as process:
            out, _ = await process.communicate()
        assert process.returncode == 0, out
        position, state = await tables.stored()
        assert position == count
        assert_replay(position, state)
