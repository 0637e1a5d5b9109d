"""The page on request coalescing: its program prints the output on the page."""

from __future__ import annotations

import asyncio
import textwrap
from typing import TYPE_CHECKING, Any

from tests.examples.example import load, printed_on
from tests.examples.snippets import snippet_on

from sluicegate import Batch, Batcher, Limits, Retry, Timeout, WriteResult, stack
from sluicegate.sinks import Combine

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from sluicegate.testing import FakeClock


def test_many_callers_share_a_query(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(load("coalesce_requests").main(tmp_path / "stock.db"))
    assert capsys.readouterr().out == printed_on("how-to/coalesce-requests.md")[0]


async def shout(batch: Batch[str]) -> WriteResult:
    assert len(set(batch)) == len(batch)
    return WriteResult.failed(batch, {}, details={i: item.upper() for i, item in enumerate(batch)})


def test_the_stack_of_the_page() -> None:
    snippet = snippet_on(
        "how-to/coalesce-requests.md", "from sluicegate import Retry, Timeout, stack"
    )
    made, _, call = snippet.rpartition("\n\n")
    names: dict[str, Any] = {
        "asyncio": asyncio, "item": "a", "look_up": shout, "stack": stack,
        "Batcher": Batcher, "Limits": Limits, "Retry": Retry, "Timeout": Timeout,
    }  # fmt: skip
    exec(made, names)  # the page's own
    inside = textwrap.indent(call, "        ")
    exec(f"async def main():\n    async with lookups:\n{inside}\n    return receipt", names)
    assert asyncio.run(names["main"]()).detail == "A"


async def test_combine_looks_each_item_up_once(fake_clock: FakeClock) -> None:
    once = Combine(shout, key=lambda item: item, merge=lambda one, _: one)
    async with Batcher(once, limits=Limits(max_delay=0)) as lookups:
        receipts = [await lookups.submit(item) for item in "aba"]
        for receipt in receipts:
            await receipt
    assert [receipt.detail for receipt in receipts] == ["A", "B", "A"]
