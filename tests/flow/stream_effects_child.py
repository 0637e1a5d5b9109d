"""A flow from a log of streams into effects in PostgreSQL, in a process that tests kill or freeze.

`stream_effects_child.py '{"dsn": ..., "schema": ..., "table": ..., "positions": ...}'` writes a row
per message, with its stream and version.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import penstock
from penstock import flow
from penstock.sinks import PostgresEffects
from penstock.sources.postgres_stream import PostgresStreamSource

if TYPE_CHECKING:
    from penstock import Message


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the flow reads, and where its effects are."""

    dsn: str
    schema: str
    table: str
    positions: str
    ends: bool = False


async def main(options: Options) -> None:
    """Run until a signal arrives, or all messages are handled."""

    async def handle(message: Message) -> None:
        await message.connection.execute(
            f"INSERT INTO {options.table} (stream, version) VALUES ($1, $2)",
            message.key,
            int(message.header("version") or -1),
        )

    source = PostgresStreamSource(
        options.dsn,
        subscription="effects",
        schema=options.schema,
        lease=0.5,
        poll=0.02,
        slots_at_once=256,
        ends=options.ends,
    )
    effects = PostgresEffects(options.dsn, positions=options.positions, idle_timeout=1.0)
    await flow.transaction(
        source, effects, handle, name="child", commit_after=10, commit_every=0.02, drain=4.0
    ).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    penstock.run(main(Options(**json.loads(sys.argv[1]))))
