"""The demo's scene on a queue: workers that are killed and whose number changes, interrupts, and
its proof.
"""

from __future__ import annotations

import asyncio
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("rich")
pytest.importorskip("asyncpg")
import asyncpg
from examples.demo.flights import NoFlights, find_file
from examples.demo.proof import create_table, replace_schema
from examples.demo.queue_producer import enqueue, planned, shares_of
from examples.demo.queue_proof import QueueTables
from examples.demo.queue_worker import QUEUE, QueuePlace
from tests.demo.demo_help import assert_nothing_is_left, signalled, start

from sluicegate.postgres import QueueAdmin, install_streams
from sluicegate.testing.servers.require import skip_or_fail

if TYPE_CHECKING:
    from pathlib import Path

    from examples.demo.proof import Finding

    from sluicegate.testing import EmbeddedPostgres

JOIN, KILL = "one worker becomes 8", "killing 3 workers with SIGKILL"


@pytest.fixture
def flights() -> None:
    """Skip if the flights are missing, unless `SLUICEGATE_REQUIRE` names them."""
    try:
        find_file()
    except NoFlights as error:
        skip_or_fail("flights", str(error))


# -- the scene -------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.long
@pytest.mark.usefixtures("flights")
def test_killed_workers_cost_no_flight_and_no_order(
    embedded_postgres: EmbeddedPostgres, folder: Path
) -> None:
    """Q-T2, Q-T11: eight workers, three of them killed; the dead letters are the spoiled flights."""
    arguments = ["--rows", "4000", "--poison", "500", "--no-kafka", "--no-spark", "--plain"]
    with start(folder, *arguments, "--dsn", embedded_postgres.dsn) as process:
        output = process.communicate()[0]
    assert process.returncode == 0, output
    assert JOIN in output
    assert KILL in output
    assert "3 more drain; 2 are left" in output
    for finding in (
        "workers that drained: [0, 0, 0, 0, 0]",
        "flights rolled back together with their jobs: 360",
        "committed flights whose job was lost: 0",
        "flights handled without being committed: 0",
        "flights handled out of their aircraft's order: 0",
        "dead letters of the queue: spoiled flights, others: (5, 0)",
        "jobs, keys and bells left in the queue: (0, 0, 0)",
    ):
        assert f"ok   {finding}" in output
    assert re.search(r"by [2-8] of 8 workers, .* 3 workers were killed, and [\d,]+ flights", output)
    assert "BAD" not in output
    assert_nothing_is_left(folder)


INTERRUPTIONS = [
    pytest.param(
        after,
        sign,
        marks=pytest.mark.long if (after, sign) == (KILL, signal.SIGINT) else pytest.mark.soak,
    )
    for after in ("for a sticky queue", "through the queue", JOIN, KILL, "3 more drain")
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
]


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("flights")
@pytest.mark.parametrize(("after", "sign"), INTERRUPTIONS)
def test_no_moment_to_interrupt_leaves_a_worker_behind(
    embedded_postgres: EmbeddedPostgres, folder: Path, after: str, sign: signal.Signals
) -> None:
    child = start(folder, "--rows", "8000", "--no-kafka", "--dsn", embedded_postgres.dsn)
    output = signalled(child, sign, after=after)
    assert (child.returncode, "interrupted" in output, "Traceback" in output) == (
        130,
        True,
        False,
    ), output
    assert_nothing_is_left(folder)


# -- the proof -------------------------------------------------------------------------------------

LEGS = [
    {"line": line, "tailnum": f"N{line % 3}", "number": line // 3 + 1} for line in range(1, 900)
]
SPOILED = {"line": -7, "tailnum": "N1", "number": 2}
HANDLE = """
INSERT INTO {schema}.handled (line, tailnum, number, worker)
SELECT line, tailnum, number, '1' FROM {schema}.flight WHERE line > 0 ORDER BY inserted;
SELECT {queues}.bury_job(queue, place, 1, 'spoiled', NULL, now()) FROM {queues}.job
WHERE (payload->>'line')::int < 0;
DELETE FROM {queues}.job; DELETE FROM {queues}.bell;
"""


def proven(server: EmbeddedPostgres, change: str) -> tuple[list[Finding], int]:
    """The proof of 899 enqueued flights and a spoiled one after `change` to the handled ones, and
    the number of those handled again.
    """
    place = QueuePlace(dsn=server.dsn, schema="sluicegate_demo", queues="sluicegate_demo_queue")

    async def run() -> tuple[list[Finding], int]:
        await create_table(place.dsn, place.schema)
        connection: Any = await asyncpg.connect(place.dsn)
        try:
            await replace_schema(connection, place.queues)
            await install_streams(place.dsn, schema=place.queues)
            async with QueueAdmin(place.dsn, schema=place.queues) as admin:
                await admin.create(QUEUE)
            tables = QueueTables(connection, place.schema, place.queues)
            await tables.create()
            shares = shares_of([*LEGS[:6], SPOILED, *LEGS[6:]])
            for share in shares:
                await enqueue(connection, place, share)
            for query in (HANDLE, change):
                await connection.execute(query.format(schema=place.schema, queues=place.queues))
            return await tables.prove(planned(shares)), (await tables.count()).repeated
        finally:
            await connection.close()

    return asyncio.run(run())


def test_what_was_enqueued_is_proven(embedded_postgres: EmbeddedPostgres) -> None:
    """Flights and jobs of a rolled-back transaction are absent."""
    findings, repeated = proven(embedded_postgres, "SELECT 1")
    assert [each for each in findings if not each.holds] == []
    found = {each.what: each.found for each in findings}
    assert found["flights committed together with their jobs"] == 820
    assert found["flights rolled back together with their jobs"] == 80
    assert repeated == 0


def test_a_flight_that_was_handled_again_is_counted(embedded_postgres: EmbeddedPostgres) -> None:
    change = "INSERT INTO {schema}.handled (line, tailnum, number, worker) VALUES (1, 'N1', 1, '2')"
    findings, repeated = proven(embedded_postgres, change)
    assert [each for each in findings if not each.holds] == []
    assert repeated == 1


@pytest.mark.parametrize(
    ("change", "bad"),
    [
        (
            "DELETE FROM {schema}.flight WHERE line = 1",
            [
                "flights committed together with their jobs",
                "flights rolled back together with their jobs",
                "flights handled without being committed",
            ],
        ),
        (
            "DELETE FROM {schema}.handled WHERE line = 1",
            ["committed flights whose job was lost"],
        ),
        (
            "INSERT INTO {schema}.handled (line, tailnum, number, worker) "
            "VALUES (5000, 'N1', 9000, '1')",
            ["flights handled without being committed"],
        ),
        (
            "DELETE FROM {schema}.handled WHERE line = 4; "
            "INSERT INTO {schema}.handled (line, tailnum, number, worker) VALUES (4, 'N1', 2, '1')",
            ["flights handled out of their aircraft's order"],
        ),
        (
            "DELETE FROM {queues}.finished_job",
            [
                "committed flights whose job was lost",
                "dead letters of the queue: spoiled flights, others",
            ],
        ),
        (
            "UPDATE {queues}.finished_job SET payload = jsonb_build_object('line', 1)",
            [
                "committed flights whose job was lost",
                "dead letters of the queue: spoiled flights, others",
            ],
        ),
        (
            "INSERT INTO {queues}.job (queue, key, payload) VALUES ('flights', 'N1', '1')",
            ["jobs, keys and bells left in the queue"],
        ),
    ],
)
def test_a_difference_is_found(
    embedded_postgres: EmbeddedPostgres, change: str, bad: list[str]
) -> None:
    findings, _ = proven(embedded_postgres, change)
    assert [each.what for each in findings if not each.holds] == bad
