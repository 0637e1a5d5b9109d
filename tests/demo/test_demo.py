"""The demo on a real server: killed, on a given database, interrupted, refused."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from sluicegate.testing import EmbeddedUnavailable
from sluicegate.testing.servers.require import skip_or_fail

pytest.importorskip("rich")
pytest.importorskip("asyncpg")
from examples.demo.__main__ import main
from examples.demo.database import Database
from examples.demo.flights import NoFlights, find_file
from tests.demo.demo_help import ENDED_WITHIN, assert_nothing_is_left, signalled, start

from sluicegate import Batcher

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import EmbeddedPostgres

PROVEN = "every flight is stored exactly once"


@pytest.fixture(autouse=True)
def flights() -> None:
    try:
        find_file()
    except NoFlights as error:
        skip_or_fail("flights", str(error))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_server_killed_half_way_costs_no_row(
    embedded_postgres: EmbeddedPostgres,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """With few rows and its own server, of which nothing remains."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert (
        main(
            [
                "--rows",
                "20000",
                "--plain",
                "--batch-size",
                "200",
                "--no-spark",
                "--no-queue",
                "--no-nats",
                "--no-kafka",
            ]
        )
        == 0
    )
    output = capfd.readouterr().out
    assert "killing the database server" in output
    assert "the database server is up again" in output
    assert "20010 accepted: " in output
    assert PROVEN in output
    assert "refused for good: (10, 10, 10)" in output
    assert "ok   flights written past a refused one of their aircraft: 0" in output
    assert re.search(
        r"every aircraft's history is in order, written by 8 workers; [1-9]\d* flights were "
        r"parked behind 3",
        output,
    )
    assert "ok   batches of several carriers, with tenants: 0" in output
    assert "BAD" not in output
    assert "\x1b" not in output
    assert_nothing_is_left(folder)


def test_where_spark_cannot_run_its_scene_is_left_out_and_says_why(
    embedded_postgres: EmbeddedPostgres,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("examples.demo.spark.has_java", lambda: False)
    assert (
        main(
            [
                "--rows",
                "100",
                "--plain",
                "--no-queue",
                "--no-nats",
                "--no-kafka",
                "--dsn",
                embedded_postgres.dsn,
            ]
        )
        == 0
    )
    assert "no scene on Spark: Spark needs Java" in capfd.readouterr().out


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_an_executor_killed_on_the_way_costs_no_aircraft_its_latest_flight(folder: Path) -> None:
    """P-T9, P-T22: at full size, in separate executors; Spark's work folder is unchanged
    afterwards.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        pytest.skip("no PySpark")
    work = Path(found.origin).parent / "work"
    before = sorted(work.glob("*"))
    with start(folder, "--plain") as process:
        output = process.communicate()[0]
    assert process.returncode == 0, output
    assert "killing an executor with SIGKILL" in output
    assert "every aircraft has its latest flight, although an executor was killed" in output
    assert sorted(work.glob("*")) == before
    assert_nothing_is_left(folder)


def test_without_chaos_the_server_stays_alive(
    embedded_postgres: EmbeddedPostgres, capfd: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "--rows",
                "1",
                "--plain",
                "--no-chaos",
                "--producers",
                "7",
                "--workers",
                "3",
                "--poison",
                "0",
                "--no-spark",
                "--no-queue",
                "--no-nats",
                "--no-kafka",
            ]
        )
        == 0
    )
    output = capfd.readouterr().out
    assert "killing" not in output
    assert PROVEN in output


def test_a_given_database_is_used_and_left_alive(
    embedded_postgres: EmbeddedPostgres, capfd: pytest.CaptureFixture[str]
) -> None:
    """Twice: the second run replaces the tables of the first. The password is not shown."""
    for _ in range(2):
        assert (
            main(
                [
                    "--rows",
                    "500",
                    "--plain",
                    "--no-spark",
                    "--no-queue",
                    "--no-nats",
                    "--no-kafka",
                    "--dsn",
                    embedded_postgres.dsn,
                ]
            )
            == 0
        )
        captured = capfd.readouterr()
        assert "so it is never killed" in captured.out
        assert PROVEN in captured.out
        assert embedded_postgres.dsn.split(":")[2].split("@")[0] not in captured.out + captured.err


def test_a_schema_of_its_name_that_is_not_the_demos_stays(
    embedded_postgres: EmbeddedPostgres, capfd: pytest.CaptureFixture[str]
) -> None:
    """It would be dropped with all its content."""

    async def execute(sql: str) -> Any:
        connection = await asyncpg.connect(embedded_postgres.dsn)
        try:
            return await connection.execute(sql)
        finally:
            await connection.close()

    asyncio.run(execute("DROP SCHEMA IF EXISTS sluicegate_demo CASCADE"))
    asyncio.run(execute("CREATE SCHEMA sluicegate_demo CREATE TABLE precious (n int)"))
    try:
        arguments = [
            "--rows",
            "500",
            "--plain",
            "--no-spark",
            "--no-queue",
            "--no-nats",
            "--no-kafka",
            "--dsn",
            embedded_postgres.dsn,
        ]
        assert main([*arguments]) == 2
        assert (
            "the schema sluicegate_demo exists, and was not created by this demo"
            in capfd.readouterr().err
        )
        asyncio.run(execute("SELECT * FROM sluicegate_demo.precious"))
    finally:
        asyncio.run(execute("DROP SCHEMA sluicegate_demo CASCADE"))


def test_a_row_that_is_lost_is_a_failure(
    embedded_postgres: EmbeddedPostgres,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A batcher that loses an item is detected."""
    add = Batcher[Any].add

    async def forgets(self: Batcher[Any], item: Any, **options: Any) -> None:
        if item[0] != 250:
            await add(self, item, **options)

    monkeypatch.setattr(Batcher, "add", forgets)
    assert main(["--rows", "500", "--plain", "--dsn", embedded_postgres.dsn]) == 1
    output = capfd.readouterr().out
    assert PROVEN not in output
    assert "BAD  rows in the table: 499, expected 500" in output
    assert (
        "DIFFERENT, the table does not match the flights: delivered, or found stored after an "
        "unknown attempt, rows in the table" in output
    )


@pytest.mark.parametrize(
    ("dsn", "code", "told"),
    [
        ("postgresql://someone:sesame@127.0.0.1:1/nowhere", 1, "Connect call failed"),
        ("sesame", 2, 'must be "postgresql://'),
        ("postgresql://someone:sesame@127.0.0.1:port/nowhere", 2, "a port is a number"),
    ],
)
def test_a_database_that_is_not_there_is_told_without_its_password(
    dsn: str, code: int, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A clear message instead of a traceback."""
    assert main(["--rows", "10", "--plain", "--dsn", dsn]) == code
    captured = capfd.readouterr()
    assert captured.err.startswith("demo: ")
    assert told in captured.err
    assert "Traceback" not in captured.err
    assert "sesame" not in captured.out + captured.err


def test_a_password_that_is_wrong_is_told(
    embedded_postgres: EmbeddedPostgres, capfd: pytest.CaptureFixture[str]
) -> None:
    dsn = f"postgresql://postgres:sesame@127.0.0.1:{embedded_postgres.port}/postgres"
    assert main(["--rows", "10", "--plain", "--dsn", dsn]) == 1
    captured = capfd.readouterr()
    assert 'demo: password authentication failed for user "postgres"' in captured.err
    assert "sesame" not in captured.out + captured.err


def test_a_server_that_does_not_come_back_is_told_with_what_was_left(
    embedded_postgres: EmbeddedPostgres,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def no_way(*_: object) -> None:
        raise EmbeddedUnavailable("it would not start")

    monkeypatch.setattr(Database, "crash", no_way)
    assert main(["--rows", "5000", "--plain"]) == 2
    assert "demo: it would not start" in capfd.readouterr().err


def test_a_required_scene_that_cannot_run_ends_the_demo_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("examples.demo.spark.has_java", lambda: False)
    assert main(["--plain", "--spark"]) == 2
    assert capfd.readouterr().err.startswith("demo: --spark: ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--rows", "0"], "argument --rows: '0' must be a whole number of at least 1"),
        (["--rows", "-3"], "argument --rows"),
        (["--rows", "9" * 5000], "argument --rows"),
        (["--batch-size", "1.5"], "argument --batch-size"),
        (["--workers", "x"], "argument --workers: 'x' must be a whole number from 1 to 64"),
        (["--workers", "65"], "argument --workers"),
        (["--producers", "1001"], "argument --producers"),
        (["--unheard-of"], "--unheard-of"),
    ],
)
def test_wrong_use_is_told_with_exit_code_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is started."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert told in capsys.readouterr().err


# -- signals ---------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_interrupt_drains_and_says_what_was_left(
    embedded_postgres: EmbeddedPostgres, folder: Path
) -> None:
    """Ctrl-C."""
    child = start(folder, "--dsn", embedded_postgres.dsn, "--batch-size", "10")
    output = signalled(child, signal.SIGINT, after=r"delivered: [1-9]")
    assert child.returncode == 130
    assert "interrupt again to end it now" in output
    assert "interrupted; shutdown of batcher 'flights' complete" in output
    assert "0 flights were returned unsent, 0 are unknown" in output


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_second_interrupt_means_now(embedded_postgres: EmbeddedPostgres, folder: Path) -> None:
    """Items inside are returned and counted."""
    child = start(folder, "--dsn", embedded_postgres.dsn, "--batch-size", "1", "--workers", "1")
    output = signalled(child, signal.SIGINT, signal.SIGINT, after=r"delivered: [1-9]")
    assert child.returncode == 130
    assert "interrupted; shutdown of batcher 'flights' INCOMPLETE" in output
    assert re.search(r"[1-9][\d,]* flights were returned unsent", output)
    assert "Traceback" not in output


MOMENTS: dict[str, tuple[signal.Signals, Any]] = {
    "reading the flights": (signal.SIGINT, ()),
    "producers": (signal.SIGTERM, ()),
    "killing the database": (signal.SIGHUP, pytest.mark.long),
    "starting the database server again": (signal.SIGHUP, pytest.mark.long),
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTIONS = [
    pytest.param(after, sign, marks=mark if sign is always else pytest.mark.soak)
    for after, (always, mark) in MOMENTS.items()
    for sign in SIGNALS
]
"""Every moment and every signal, which all end in the same handler; the two slowest pairs are among
the long tests, the others among the soak tests.
"""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("after", "sign"), INTERRUPTIONS)
def test_no_moment_to_interrupt_leaves_a_server_behind(
    embedded_postgres: EmbeddedPostgres, folder: Path, after: str, sign: signal.Signals
) -> None:
    """While it starts, receives writes, is down, or restarts."""
    child = start(folder, "--rows", "30000")
    output = signalled(child, sign, after=after)
    assert (child.returncode, "interrupted" in output, "Traceback" in output) == (
        130,
        True,
        False,
    ), output
    assert_nothing_is_left(folder)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_reader_that_goes_away_leaves_no_server_behind(
    embedded_postgres: EmbeddedPostgres, folder: Path
) -> None:
    """`make demo | head -1`."""
    child = start(folder, "--rows", "30000")
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.wait(timeout=ENDED_WITHIN) != 0
    assert_nothing_is_left(folder)
