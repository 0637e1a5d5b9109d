"""The demo's scene on Kafka: a killed consumer, interrupts, and the error where it cannot run."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("rich")
pytest.importorskip("asyncpg")
pytest.importorskip("aiokafka")
import asyncpg
from examples.demo.__main__ import main
from examples.demo.consumer import Place
from examples.demo.consumers import ConsumerFailed, Consumers
from examples.demo.flights import NAMES, Flight, NoFlights, find_file
from examples.demo.legs import LEG, Leg, create_legs, legs_of, prove_legs
from examples.demo.proof import create_table
from tests.demo.demo_help import assert_nothing_is_left, signalled, start

from sluicegate.testing import EmbeddedKafka, EmbeddedUnavailable
from sluicegate.testing.servers.require import skip_or_fail

if TYPE_CHECKING:
    from pathlib import Path

    from examples.demo.legs import ProvenLegs

    from sluicegate.testing import EmbeddedPostgres

KILLED = "killing the first consumer with SIGKILL"


@pytest.fixture
def kafka() -> None:
    """Skip if Kafka or the flights are missing, unless `SLUICEGATE_REQUIRE` names them."""
    try:
        find_file()
    except NoFlights as error:
        skip_or_fail("flights", str(error))
    try:
        EmbeddedKafka({}, "64m").close()
    except EmbeddedUnavailable as error:
        skip_or_fail("kafka", str(error))


# -- the scene -------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.long
@pytest.mark.usefixtures("kafka")
def test_a_killed_consumer_costs_no_flight_and_no_order(
    embedded_postgres: EmbeddedPostgres, folder: Path
) -> None:
    """Three consumers, every flight once, every spoiled one of both kinds in the dead letters."""
    arguments = [
        "--rows",
        "12000",
        "--poison",
        "500",
        "--no-queue",
        "--no-nats",
        "--kafka",
        "--no-spark",
        "--plain",
    ]
    with start(folder, *arguments, "--dsn", embedded_postgres.dsn) as process:
        output = process.communicate()[0]
    assert process.returncode == 0, output
    assert KILLED in output
    assert "a third consumer has joined" in output
    for finding in (
        "consumers that drained at the end: [0, 0]",
        "flights missing, changed or stored twice: 0",
        "flights out of their aircraft's order: 0",
        "spoiled records among the dead letters: 2",
        "other records among the dead letters: 0",
    ):
        assert f"ok   {finding}" in output
    assert "once and in order, stored by 3 consumers" in output
    assert "BAD" not in output
    assert_nothing_is_left(folder)


MOMENTS = (
    "starting an embedded Kafka",
    "two consumers pipe them",
    "through Kafka",
    KILLED,
    "a third consumer has joined",
)
INTERRUPTIONS = [
    pytest.param(
        after,
        sign,
        marks=pytest.mark.long if (after, sign) == (KILLED, signal.SIGTERM) else pytest.mark.soak,
    )
    for after in MOMENTS
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
]


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("kafka")
@pytest.mark.parametrize(("after", "sign"), INTERRUPTIONS)
def test_no_moment_to_interrupt_leaves_a_process_behind(
    embedded_postgres: EmbeddedPostgres, folder: Path, after: str, sign: signal.Signals
) -> None:
    """Neither Kafka nor a consumer, nor their folders."""
    arguments = [
        "--rows",
        "8000",
        "--no-queue",
        "--no-nats",
        "--kafka",
        "--no-spark",
        "--dsn",
        embedded_postgres.dsn,
    ]
    child = start(folder, *arguments)
    output = signalled(child, sign, after=after)
    assert (child.returncode, "interrupted" in output, "Traceback" in output) == (
        130,
        True,
        False,
    ), output
    assert_nothing_is_left(folder)


# -- where it cannot run ---------------------------------------------------------------------------


@pytest.fixture
def without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("JAVA_HOME", "SLUICEGATE_REQUIRE", "SLUICEGATE_KAFKA_BOOTSTRAP"):
        monkeypatch.delenv(name, raising=False)


def demo(server: EmbeddedPostgres, *arguments: str) -> int:
    return main(
        [
            "--rows",
            "50",
            "--plain",
            "--no-queue",
            "--no-nats",
            "--no-spark",
            "--dsn",
            server.dsn,
            *arguments,
        ]
    )


@pytest.mark.usefixtures("without_java")
def test_without_java_the_scene_is_left_out_and_says_why(
    embedded_postgres: EmbeddedPostgres, capfd: pytest.CaptureFixture[str]
) -> None:
    assert demo(embedded_postgres) == 0
    assert "no scene on Kafka: no java: install a Java runtime" in capfd.readouterr().out


@pytest.mark.usefixtures("without_java")
@pytest.mark.parametrize("required", ["--kafka", "SLUICEGATE_REQUIRE"])
def test_a_required_scene_is_not_left_out(
    embedded_postgres: EmbeddedPostgres,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    required: str,
) -> None:
    if required == "SLUICEGATE_REQUIRE":
        monkeypatch.setenv(required, "kafka")
        assert demo(embedded_postgres) == 2
    else:
        assert demo(embedded_postgres, required) == 2
    assert "demo: no java: install a Java runtime" in capfd.readouterr().err


def test_a_consumer_that_ends_by_itself_is_told_with_its_last_words() -> None:
    """Instead of an endless wait."""
    place = Place(
        broker="kafka", address="127.0.0.1:1", topic="flights", dsn="postgresql://x/x", schema="x"
    )

    async def run() -> None:
        async with Consumers("sluicegate.no_such_module", place) as consumers:
            with pytest.raises(ConsumerFailed, match=r"(?s)consumer 'first'.*no_such_module"):
                await consumers.start("first")
            with pytest.raises(ConsumerFailed, match=r"(?s)consumer 'first'.*no_such_module"):
                consumers.check()
            assert await consumers.stop() == []

    asyncio.run(run())


def test_a_consumer_that_still_runs_at_the_end_is_killed_and_reaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stays.py").write_text("input()\nprint('ready', flush=True)\ninput()\n")
    monkeypatch.syspath_prepend(tmp_path)
    place = Place(
        broker="kafka", address="127.0.0.1:1", topic="flights", dsn="postgresql://x/x", schema="x"
    )

    async def run() -> None:
        async with Consumers("stays", place) as consumers:
            await consumers.start("first")
            process = consumers._started["first"].process
            assert consumers.states == "first up"
        assert process.returncode == -signal.SIGKILL

    asyncio.run(run())


# -- the proof -------------------------------------------------------------------------------------

FLIGHTS: list[Flight] = [
    tuple(
        {"line": line, "tailnum": tailnum, "flight": 7, "origin": "JFK"}.get(n, "MIA")
        for n in NAMES
    )
    for line, tailnum in ((1, "N1"), (2, "N2"), (3, "N1"), (4, None), (-3, "N1"), (5, "N1"))
]


def proven(server: EmbeddedPostgres, change: str) -> ProvenLegs:
    """The proof of five produced records after `change` to the received ones."""

    async def run() -> ProvenLegs:
        schema = "sluicegate_demo"
        await create_table(server.dsn, schema)
        connection: Any = await asyncpg.connect(server.dsn)
        try:
            await create_legs(connection, schema)
            legs = list(legs_of(FLIGHTS))
            for leg in legs:
                await connection.execute(
                    f"INSERT INTO {schema}.flights (line, tailnum, flight, origin, dest) "
                    "VALUES ($1, $2, 7, 'JFK', 'MIA') ON CONFLICT DO NOTHING",
                    abs(leg["line"]),
                    leg["tailnum"],
                )
                await _arrive(connection, schema, leg)
            await connection.execute(f"SET search_path = {schema}; {change}")
            return await prove_legs(connection, schema, legs)
        finally:
            await connection.close()

    return asyncio.run(run())


async def _arrive(connection: Any, schema: str, leg: Leg) -> None:
    if leg["line"] < 0:
        await connection.execute(
            f"INSERT INTO {schema}.leg_letters VALUES ($1, $2, 'spoiled')",
            leg["line"],
            leg["tailnum"],
        )
        return
    await connection.execute(
        f"INSERT INTO {schema}.legs ({', '.join(LEG)}, consumer) VALUES ($1, $2, $3, $4, $5, $6, "
        "'first')",
        *(leg[name] for name in LEG),
    )


def test_what_was_produced_is_proven(embedded_postgres: EmbeddedPostgres) -> None:
    found = proven(embedded_postgres, "")
    assert [each for each in found.findings if not each.holds] == []
    assert (found.repeated, found.consumers) == (0, 1)


def test_a_repeated_flight_is_counted_and_keeps_its_first_arrival(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    change = "UPDATE legs SET consumer = 'second', number = 9 WHERE line = 1"
    found = proven(embedded_postgres, change)
    assert [each for each in found.findings if not each.holds] == []
    assert (found.repeated, found.consumers) == (1, 1)


@pytest.mark.parametrize(
    ("change", "bad"),
    [
        (
            "DELETE FROM legs WHERE line = 5",
            ["flights stored", "flights missing, changed or stored twice"],
        ),
        (
            "ALTER TABLE legs DISABLE TRIGGER keep_first; UPDATE legs SET dest = 'X' WHERE line = 2",
            ["flights missing, changed or stored twice"],
        ),
        (
            "DELETE FROM legs WHERE line = 1; INSERT INTO legs (line, tailnum, number, flight, "
            "origin, dest, consumer) VALUES (1, 'N1', 1, 7, 'JFK', 'MIA', 'third')",
            ["flights out of their aircraft's order"],
        ),
        ("DELETE FROM leg_letters", ["spoiled records among the dead letters"]),
        ("INSERT INTO leg_letters VALUES (8, 'N1', 'x')", ["other records among the dead letters"]),
    ],
)
def test_a_difference_is_found(
    embedded_postgres: EmbeddedPostgres, change: str, bad: list[str]
) -> None:
    found = proven(embedded_postgres, change)
    assert [each.what for each in found.findings if not each.holds] == bad
