"""The pages on consumers show the output of their programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


@pytest.mark.parametrize(
    ("page", "programs"),
    [
        ("tutorial/a-first-consumer.md", ["first_consumer", "charges"]),
        (
            "how-to/handle-messages.md",
            ["consume_in_order", "consumer_steps", "handlers_by_hint", "batches"],
        ),
        ("how-to/retries-and-dead-letters.md", ["unblock", "retries", "limits_of_a_consumer"]),
    ],
)
async def test_the_page_shows_what_its_programs_print(
    fake_clock: FakeClock, capsys: pytest.CaptureFixture[str], page: str, programs: list[str]
) -> None:
    """consumer/O10, consumer/C:Ba4, S-T14, O-T18, O-T20: what is refused, skipped or given up."""
    printed: list[str] = []
    for program in programs:
        await load(program).main()
        printed.append(capsys.readouterr().out)
    assert printed == printed_on(page)[: len(printed)]


async def test_the_guide_to_sources_shows_what_its_first_program_prints(
    fake_clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second one needs a server: see `tests/redis/streams_source/test_page.py`."""
    await load("own_source").main()
    assert capsys.readouterr().out == printed_on("how-to/write-your-own-source.md")[0]
