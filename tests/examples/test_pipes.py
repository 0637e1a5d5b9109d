"""The pages on pipes: their programs print the output on the pages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.examples.example import load, printed_on

from sluicegate import Batcher, Retry, UnavailableError, flow, stack
from sluicegate.consumer import MemoryLog, MemorySource

if TYPE_CHECKING:
    import pytest

    from sluicegate import Batch
    from sluicegate.testing import FakeClock


async def test_a_hot_key_by_a_handler_and_by_a_pipe(
    fake_clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    await load("hot_key").main(fake_clock)
    assert [capsys.readouterr().out] == printed_on("explanation/consumer.md")


async def test_explain_during_an_outage(fake_clock: FakeClock) -> None:
    """It names the destination's trouble and the oldest record behind it."""
    log = MemoryLog()
    for number in range(1200):
        log.produce("payments", number, key="ann")

    async def away(batch: Batch[Any]) -> None:
        raise UnavailableError("connection refused")

    batcher: Batcher[Any] = Batcher(stack(away, Retry()), key=lambda row: row.key, clock=fake_clock)
    pipe = flow.pipe(MemorySource(log, clock=fake_clock), batcher, name="ledger")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(30.0)
        explanation = str(pipe.explain())
        pipe.stop()
    assert f"{explanation}\n" in printed_on("how-to/source-into-postgresql.md")
