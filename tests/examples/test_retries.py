"""The page on retries and dead letters shows what its program prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    import pytest

    from penstock.testing import FakeClock


async def test_the_page_shows_what_the_program_prints(
    fake_clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """consumer/C:N4."""
    await load("retries").main()
    assert [capsys.readouterr().out] == printed_on("how-to/retries-and-dead-letters.md")
