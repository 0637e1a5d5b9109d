"""Runs steps on empty tables, and counts their commits. Usage: python commits.py DSN STEP ..."""

import asyncio
import importlib
import sys

import asyncpg

COUNTED = "SELECT count(*) AS rows, count(DISTINCT xmin::text) AS commits FROM audit_events"


async def fetch(dsn: str, statement: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetch(statement)
    finally:
        await connection.close()


def main(dsn: str, steps: list[str]) -> None:
    for name in steps:
        asyncio.run(fetch(dsn, "TRUNCATE audit_events, audit_refused"))
        step = importlib.import_module(name)
        step.main(dsn, step.thousand_requests())
        (counted,) = asyncio.run(fetch(dsn, COUNTED))
        print(f"{name}: {counted['rows']} rows in {counted['commits']} commits")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
