"""The page on backfills: its program prints the output on the page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from sluicegate import Message


def test_the_page_shows_what_the_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """The second run continues where the first one was stopped."""
    asyncio.run(load("backfill").main())
    assert capsys.readouterr().out == printed_on("how-to/backfill-from-files.md")[0]


def test_the_file_that_could_not_be_read_is_told_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('customer\nann\n"bob')
    seen: list[object] = []

    async def book(message: Message) -> None:
        seen.append(message.key)

    unread = asyncio.run(load("file_sources").complete(str(tmp_path), book))
    assert [*unread] == ["a.csv"]
    assert seen == ["ann"]
