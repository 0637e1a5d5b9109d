"""The page on steps shows the output of its program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    import pytest

    from sluicegate.testing import FakeClock


async def test_the_page_shows_what_the_program_prints(
    fake_clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """O-T18, O-T20: one duplicate is skipped; three bad records are given up, each alone."""
    await load("consumer_steps").main()
    assert [capsys.readouterr().out] == printed_on("how-to/prepare-messages.md")
