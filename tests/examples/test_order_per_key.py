"""The page on order per key shows the output of its program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    import pytest

    from sluicegate.testing import FakeClock


async def test_the_page_shows_what_the_program_prints(
    fake_clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """batcher/4a.10: in order per account, parked behind the refused movement, and continued
    afterwards.
    """
    await load("order_per_key").main()
    assert [capsys.readouterr().out] == printed_on("how-to/keep-order-per-key.md")
