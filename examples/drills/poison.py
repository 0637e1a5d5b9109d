"""A poison flood: a release of the producer sends an action that the table refuses."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from sluicegate.files import FileSink
from sluicegate.postgres import PostgresAccess

from .drill import events, stored

if TYPE_CHECKING:
    from .drill import Drill

ALERTS = {"BatcherDeadLetters": 8}


def repaired() -> Any:
    """The sink of the replay."""
    return events(PostgresAccess(os.environ["DRILL_DSN"]))


async def dlq(drill: Drill, *arguments: str) -> None:
    """Run a command of the runbook, and print its output."""
    drill.show(f"$ sluicegate dlq {' '.join(arguments)}")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", "from sluicegate.cli import main; main()", "dlq", *arguments),
        env={**os.environ, "DRILL_DSN": drill.dsn},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    drill.show(output.decode().strip())


async def run(drill: Drill) -> set[int]:
    letters = drill.folder / "letters.jsonl"

    async def release() -> None:
        drill.sick = lambda number: number % 10 == 0

    async def repair() -> None:
        await con.execute("ALTER TABLE events DROP CONSTRAINT known")

    async with drill.table() as con:
        async with drill.service(drill.sink(), letters=FileSink(letters)) as batcher:
            await drill.incident(batcher, release, repair, "repair the table, then replay")
        await dlq(drill, "replay", str(letters), "--to", f"{__name__}:repaired")
        found = [json.loads(line)["item"]["id"] for line in letters.read_text().splitlines()]
        kept = await stored(drill)
        drill.show(f"{len(found)} dead letters, of which {len({*found} & {*kept})} are stored now")
        return drill.end(kept)
