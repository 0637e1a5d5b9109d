"""The pages on sizes, shapes and sharing say what their programs say."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest
from tests.examples.example import DOCS, load, printed_on

from penstock import Limits

if TYPE_CHECKING:
    from penstock.testing import EmbeddedPostgres, FakeClock


@pytest.mark.parametrize(
    ("program", "page"),
    [("shapes", "explanation/shapes-and-knobs.md"), ("shared_or_several", "explanation/one-batcher-or-several.md")],
)
async def test_the_page_shows_what_the_program_prints(
    program: str, page: str, fake_clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """batcher/B21, batcher/B50: three shapes under one load; one batcher or ten."""
    await load(program).main(fake_clock)
    assert [capsys.readouterr().out] == printed_on(page)


def test_the_worksheet() -> None:
    """batcher/B51: the example that the page computes by hand."""
    sizing = load("size_a_batcher")
    limits = sizing.worksheet(sizing.Measured(500, 0.3, 500 / 0.3), peak=1000, budget=0.05)
    assert limits == Limits(max_items=400, max_delay=0.05, workers=1, max_pending_items=2800)
    assert "0.400 s, so most are sealed by time, with about 50 items" in "\n".join(sizing.told(limits, rate=1000, item_bytes=1024))


def test_the_worksheet_when_batches_fill_in_time() -> None:
    """batcher/B51: the delay is the budget there too. A peak beyond one worker takes more of them."""
    sizing = load("size_a_batcher")
    limits = sizing.worksheet(sizing.Measured(500, 0.3, 500 / 0.3), peak=4000, budget=1.0, absorb=1.0)
    assert limits == Limits(max_items=400, max_delay=1.0, workers=3, max_pending_items=4000 + 400 * 4)
    assert "sealed by size" in "\n".join(sizing.told(limits, rate=4000, item_bytes=1024))


def test_the_knee() -> None:
    """batcher/B51: the smallest size with nine tenths of the best."""
    sizing = load("size_a_batcher")
    rows = [sizing.Measured(size, 1.0, rate) for size, rate in ((1, 10), (10, 95), (100, 100), (1000, 99))]
    assert sizing.knee(rows).size == 10


def test_the_starting_points() -> None:
    """batcher/B51: ten kinds of work; depth plus size times (1 + workers), and limits that are accepted."""
    page = (DOCS / "how-to/size-a-batcher.md").read_text().replace(",", "")
    rows = re.findall(r"\| (\d+) \| ([\d.]+) s \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert len(rows) == 10
    for size, delay, depth, ledger in rows:
        limits = Limits(max_items=int(size), max_delay=float(delay), max_pending_items=int(ledger))
        assert limits.max_pending_items == int(depth) + limits.max_items * (1 + limits.workers)


def test_a_destination_is_measured(embedded_postgres: EmbeddedPostgres, capsys: pytest.CaptureFixture[str]) -> None:
    """The program, at two sizes."""
    sizing = load("size_a_batcher")
    asyncio.run(sizing.main(embedded_postgres.dsn, rate=600, peak=5000, budget=0.05, absorb=2.0, item_bytes=1024, sizes=(1, 100)))
    out = capsys.readouterr().out
    assert out.count(" a write ") == 2
    assert "the knee is at" in out
