"""A batcher of log records does not batch its own, and an abandoned batcher is reported."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from helpers import Gated
from sluicegate import Batch, Batcher, BlockingBatcher, Limits, PermanentError
from sluicegate.batcher import NoFeedback
from sluicegate.testing import FakeClock

app = logging.getLogger("app")
client = logging.getLogger("client_library")


class ToBatcher(logging.Handler):
    """Passes records to a batcher."""

    def __init__(self, batcher: Batcher[str] | BlockingBatcher[str]) -> None:
        super().__init__()
        self.batcher = batcher
        self.addFilter(NoFeedback())

    def emit(self, record: logging.LogRecord) -> None:
        self.batcher.try_add(record.getMessage())


@contextmanager
def installed(handler: logging.Handler) -> Iterator[None]:
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.DEBUG)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


def fail(batch: Batch[str]) -> None:
    """Log and fail like a sink, in the sink's thread."""
    client.warning("cannot write %d records", len(batch))
    raise PermanentError("no such index")


class Failing:
    """Logs and fails in every method."""

    async def __aenter__(self) -> None:
        client.info("opened")

    async def __aexit__(self, *error: object) -> None:
        client.info("closed")

    async def write(self, batch: Batch[str]) -> None:
        asyncio.get_running_loop().call_soon(client.info, "later")
        await asyncio.create_task(self.complain())
        await asyncio.to_thread(fail, batch)

    async def complain(self) -> None:
        client.warning("in a task")


@pytest.mark.parametrize("sink", [fail, Failing()], ids=["function", "object"])
def test_a_sink_that_logs_and_fails_does_not_feed_its_own_batcher(
    sink: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """batcher/4b.14: records of the program are batched, those of the writes and of Sluicegate are
    not; other handlers receive all of them.
    """
    batcher: BlockingBatcher[str] = BlockingBatcher(
        sink, limits=Limits(max_items=2, max_pending_items=100), name="logs"
    )
    with installed(ToBatcher(batcher)), batcher:
        for number in range(5):
            app.info("record %d", number)
        batcher.flush()
        assert batcher.tally().accepted == 5
        app.info("record 5")
    assert batcher.report is not None
    assert batcher.report.tally.rejected == batcher.report.tally.accepted == 6
    heard = [record.getMessage() for record in caplog.records]
    assert heard.count("cannot write 2 records") >= 2
    assert any("batcher 'logs': 2 of 2 items failed" in message for message in heard)


async def test_an_asyncio_batcher_does_not_feed_itself_either(fake_clock: FakeClock) -> None:
    """batcher/4b.14."""

    async def write(batch: Batch[str]) -> None:
        client.warning("cannot write")
        raise PermanentError("no such index")

    async with Batcher(write, limits=Limits(max_items=2)) as batcher:
        with installed(ToBatcher(batcher)):
            for number in range(5):
                app.info("record %d", number)
            await batcher.flush()
            assert batcher.tally().rejected == batcher.tally().accepted == 5


def test_a_batcher_that_is_forgotten_with_items_inside_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """design 3.7: its name, the number of pending items, and what to do."""
    forgotten: list[Batcher[int]] = []

    async def main() -> None:
        batcher: Batcher[int] = Batcher(Gated(), name="audit", limits=Limits(max_items=2))
        await batcher.__aenter__()
        await batcher.add_many([1, 2, 3])
        forgotten.append(batcher)
        del batcher
        message = (
            r"batcher 'audit' was dropped with items inside \(3 accepted: 1 queued, 2 in "
            r"flight\); use `async with`"
        )
        with pytest.warns(ResourceWarning, match=message):
            forgotten.clear()

    asyncio.run(main())
    assert "batcher 'audit' was dropped" in caplog.text


def test_a_batcher_that_is_forgotten_empty_is_silent() -> None:
    """Warnings are errors here."""

    async def main() -> None:
        await Batcher(Gated()).__aenter__()

    asyncio.run(main())
    gc.collect()
