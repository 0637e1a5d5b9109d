"""The page on exactly once: its program runs on a broker and a database."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka, EmbeddedPostgres


@pytest.mark.long
def test_bookings_reach_postgresql_once(
    embedded_kafka: EmbeddedKafka,
    embedded_postgres: EmbeddedPostgres,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A process is killed during the run."""
    embedded_kafka.create_topic("bookings")
    asyncio.run(load("exactly_once").main(embedded_kafka.bootstrap, embedded_postgres.dsn))
    assert capsys.readouterr().out == printed_on("how-to/exactly-once.md")[0]


def test_bookings_reach_a_topic_once(
    embedded_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records and offsets commit in one transaction."""
    embedded_kafka.create_topic("transfers")
    embedded_kafka.create_topic("journal")
    asyncio.run(load("exactly_once_kafka").main(embedded_kafka.bootstrap))
    assert capsys.readouterr().out == printed_on("how-to/exactly-once.md")[1]


def test_a_handler_that_fails_has_its_effects_once(
    embedded_postgres: EmbeddedPostgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """S-T7: a failed attempt leaves no effect, and the message is redelivered."""
    asyncio.run(load("effects").main(embedded_postgres.dsn))
    assert capsys.readouterr().out == printed_on("how-to/exactly-once.md")[2]
