"""The pages on shapes and sharing show the output of their programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


@pytest.mark.parametrize(
    ("program", "page"),
    [
        ("shapes", "explanation/when-to-batch.md"),
        ("shared_or_several", "explanation/when-to-batch.md"),
    ],
)
async def test_the_page_shows_what_the_program_prints(
    program: str, page: str, fake_clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """batcher/B21, batcher/B50: three shapes under one load; one batcher or ten."""
    await load(program).main(fake_clock)
    assert capsys.readouterr().out in printed_on(page)
