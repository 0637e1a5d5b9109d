"""The page on batches shows the output of its program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    import pytest

    from sluicegate.testing import FakeClock


async def test_the_page_shows_what_the_program_prints(
    fake_clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """consumer/O10, consumer/C:Ba4: a message behind a refused one is handled again."""
    await load("batches").main()
    assert [capsys.readouterr().out] == printed_on("how-to/handle-batches.md")
