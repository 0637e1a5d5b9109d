"""The page on subscriptions: its program runs on a database, and its sources can be created."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    import pytest

    from sluicegate import Message


def test_the_page_shows_what_the_program_prints(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refused order has no message, and a second run continues where the first one ended."""
    asyncio.run(load("stream_subscription").main(database))
    assert capsys.readouterr().out == printed_on("how-to/subscribe-to-a-stream.md")[0]


def test_the_sources_of_the_page_can_be_made() -> None:
    """Each reads what its name says, and none shows the password."""
    module, dsn = load("stream_sources"), "postgresql://shop:hunter2@db/shop"
    read = [repr(source).rpartition(", ")[2] for source in module.where_to_begin(dsn)]
    assert read == ["all streams)"] * 3
    read = [repr(source) for source in module.what_to_read(dsn)]
    assert read[0].endswith("category order)")
    assert read[1].endswith("streams order-de-*)")
    assert read[2].endswith("streams account-*, order-17)")
    assert "hunter2" not in repr([*module.what_to_read(dsn), *module.how_to_divide(dsn)])


def test_a_run_for_a_limited_time_says_whether_work_remains(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """S-T12: with no work left it prints nothing."""
    asyncio.run(load("stream_subscription").main(database))
    capsys.readouterr()
    found: list[object] = []

    async def send(message: Message) -> None:
        found.append(message.key)

    report = asyncio.run(load("stream_sources").for_a_minute(database, send))
    assert not report.work_remaining
    assert found == []
    assert capsys.readouterr().out == ""
