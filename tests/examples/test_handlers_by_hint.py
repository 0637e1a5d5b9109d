"""The page on handlers by type hint shows the output of its program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    import pytest

    from sluicegate.testing import FakeClock


async def test_the_page_shows_what_the_program_prints(
    fake_clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """S-T14: an unknown type is skipped and counted; a value that does not fit is given up."""
    await load("handlers_by_hint").main()
    assert [capsys.readouterr().out] == printed_on("how-to/handle-by-type.md")
