"""The proof: it holds only for rows that are exactly as written."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("asyncpg")
import asyncpg
from examples.demo.flights import NAMES, Flight, FlightFile
from examples.demo.proof import Expected, create_table, prove

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import EmbeddedPostgres

SCHEMA = "sluicegate_proof"
LINES = (
    "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z\n"
    "2013,1,1,533,529,4,850,830,20,UA,1714,N24211,LGA,IAH,227,1416,5,29,2013-01-01T10:00:00Z\n"
    "2013,9,30,NA,840,NA,NA,1020,NA,MQ,3531,NA,LGA,RDU,NA,431,8,40,2013-09-30T12:00:00Z\n"
)
EXPECTED = Expected(3, hashlib.sha256(LINES.encode()).hexdigest())
LETTERS = "spoiled flights in the dead letters: rows, distinct, refused for good"
DIGEST = "SHA-256 of the table as CSV, and of the file"


@pytest.fixture
def flights(tmp_path: Path) -> list[Flight]:
    path = tmp_path / "flights.csv"
    path.write_text(",".join(NAMES[1:]) + "\n" + LINES)
    with FlightFile(path) as file:
        return list(file)


def wrong(dsn: str, flights: list[Flight], change: str = "SELECT 1") -> list[str]:
    """Write the flights, make a change directly in the table, and return the findings of the
    proof.
    """

    async def findings() -> list[str]:
        await create_table(dsn, SCHEMA)
        connection = await asyncpg.connect(dsn)
        try:
            await connection.copy_records_to_table(
                "flights", schema_name=SCHEMA, columns=NAMES, records=flights
            )
            await connection.execute(change.format(table=f"{SCHEMA}.flights"))
        finally:
            await connection.close()
        return [finding.what for finding in await prove(dsn, SCHEMA, EXPECTED) if not finding.holds]

    return asyncio.run(findings())


def test_it_holds_for_what_was_written(
    embedded_postgres: EmbeddedPostgres, flights: list[Flight]
) -> None:
    assert wrong(embedded_postgres.dsn, flights) == []


def test_it_holds_in_any_order_and_in_any_time_zone(
    embedded_postgres: EmbeddedPostgres, flights: list[Flight]
) -> None:
    """The server's time zone and the order of arrival do not matter."""
    change = "ALTER DATABASE postgres SET timezone TO 'Asia/Kathmandu'"
    try:
        assert wrong(embedded_postgres.dsn, flights[::-1], change) == []
    finally:
        wrong(embedded_postgres.dsn, flights, "ALTER DATABASE postgres RESET timezone")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("DELETE FROM {table} WHERE line = 2", ["rows in the table", "distinct lines", DIGEST]),
        (
            "DELETE FROM {table} WHERE line = 3",
            ["rows in the table", "distinct lines", "last line", DIGEST],
        ),
        ("UPDATE {table} SET line = 4 WHERE line = 1", ["first line", "last line", DIGEST]),
        ("UPDATE {table} SET distance = distance + 1 WHERE line = 2", [DIGEST]),
        ("UPDATE {table} SET tailnum = '' WHERE line = 3", [DIGEST]),
        ("UPDATE {table} SET time_hour = time_hour + interval '1 hour' WHERE line = 3", [DIGEST]),
        ("UPDATE {table} SET dep_delay = 0 WHERE line = 3", [DIGEST]),
        (f"INSERT INTO {SCHEMA}.dead_letters VALUES ('k', -1, 'permanent', 'no', 1)", [LETTERS]),
        (
            "ALTER TABLE {table} DROP CONSTRAINT flights_pkey; INSERT INTO {table} SELECT * "
            "FROM {table} WHERE line = 2",
            ["rows in the table", DIGEST],
        ),
    ],
)
def test_it_fails_for_anything_else(
    embedded_postgres: EmbeddedPostgres, flights: list[Flight], change: str, found: list[str]
) -> None:
    """A missing row, a repeated one, a moved one, a row with a single changed value."""
    assert wrong(embedded_postgres.dsn, flights, change) == found


def test_an_empty_table_proves_nothing(embedded_postgres: EmbeddedPostgres) -> None:
    found = wrong(embedded_postgres.dsn, [])
    assert found == ["rows in the table", "distinct lines", "first line", "last line", DIGEST]
