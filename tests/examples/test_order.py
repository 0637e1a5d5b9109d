"""The page on order shows the output of its program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    import pytest

    from sluicegate.testing import FakeClock


async def test_the_page_shows_what_the_program_prints(
    fake_clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """batcher/B22, B-T14: one worker keeps the order of batches and of each producer; two do not:
    100-199 comes before 0-99.
    """
    await load("order").main()
    assert capsys.readouterr().out in printed_on("explanation/order.md")


async def test_who_keeps_the_order(fake_clock: FakeClock) -> None:
    """batcher/B22: the four fields of the table, and the two exceptions below it."""
    order = load("order")
    assert await order.one_producer(workers=1) == [*range(200)]
    assert await order.one_producer(workers=2) == [*range(100, 200), *range(100)]
    lines = await order.two_producers(workers=1)
    assert [line for line in lines if line < 1000] == [*range(100)]
    assert [line for line in lines if line >= 1000] == [*range(1000, 1100)]
    lines = await order.two_producers(workers=2)
    assert [line for line in lines if line < 1000] != [*range(100)]
    lines = await order.two_batchers()
    assert [line for line in lines if line < 1000] == [*range(200)]
    assert [line for line in lines if line >= 1000] == [*range(1000, 1200)]
    assert await order.one_item_again() == [*range(50), *range(51, 100), 50, *range(100, 200)]
