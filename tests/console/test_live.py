"""Live parts: what is shown of consumers, pipes and batchers, and the actions on them."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.console.console_help import browsing

from sluicegate import Batcher, Consumer, Limits, RetryPolicy, flow
from sluicegate.consumer import MemoryLog, MemoryParkStore, MemorySource, Poison
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

pytestmark = pytest.mark.usefixtures("real_clock")


@asynccontextmanager
async def running(**options: Any) -> AsyncGenerator[tuple[Consumer, asyncio.Queue[int]]]:
    """A consumer of the values 1 to 6 with two keys, whose handler fails for 3 the first time."""
    log, handled, failed = MemoryLog(), asyncio.Queue[int](), set[int]()
    for value in range(1, 7):
        log.produce("orders", value, key=f"<k{value % 2}>")

    async def handle(message: Any) -> None:
        if message.value == 3 and 3 not in failed:
            failed.add(3)
            raise ValueError("<b>no</b>")
        handled.put_nowait(message.value)

    source, retry = MemorySource(log), RetryPolicy(attempts=1)
    async with Consumer(source, name="ledger", retry=retry, **options) as consumer:
        task = asyncio.create_task(consumer.run(handle))
        try:
            for _ in range(4):
                await handled.get()
            yield consumer, handled
        finally:
            consumer.stop()
            await task


async def test_a_blocked_key_is_shown_and_tried_again() -> None:
    async with running(poison="block") as (consumer, handled), browsing(consumer) as browser:
        text = await browser.text("part", name="ledger")
        assert "orders/0: position" in text
        assert "'<k1>'" in text
        page = await browser.get("part", name="ledger")
        assert "<k1>" not in page.text
        assert "1 partition, 0 paused" in page.text
        assert "1 blocked" in re.sub("(?s).*<desc[^>]*>|</desc>.*", "", page.text)
        fields = {"name": "ledger", "key": "'<k1>'", "partition": "orders/0"}
        asked, result = await browser.do("unblock-part", **fields)
        assert asked == "Try again 1 blocked message of the key '<k1>' of ledger?"
        assert "Tried again: 1 message of the key '<k1>' of ledger." in result
        assert {await handled.get(), await handled.get()} == {3, 5}
        asked, _ = await browser.ask("unblock-part", **fields)
        assert "0 blocked messages" in asked


async def test_a_count_that_has_changed_is_reported() -> None:
    async with running(poison="block") as (consumer, handled), browsing(consumer) as browser:
        fields = {"name": "ledger", "key": "'<k1>'"}
        _, form = await browser.ask("skip-part", **fields)
        await browser.do("skip-part", **fields)
        assert await handled.get() == 5
        page = await browser.post("act", form)
        assert "It was 1 when you confirmed; the real number is 0." in " ".join(page.text.split())


@pytest.mark.filterwarnings("ignore:parked=MemoryParkStore")
async def test_parked_keys_are_unparked() -> None:
    options = {"poison": Poison("park_key", parked=MemoryParkStore())}
    async with running(**options) as (consumer, handled), browsing(consumer) as browser:
        page = await browser.text("part", name="ledger")
        assert "Parked keys" in page
        _, result = await browser.do("unpark-part", name="ledger", key="'<k1>'")
        assert "ledger, key '<k1>':" in result
        assert 3 in [handled.get_nowait() for _ in range(handled.qsize())]


async def test_partitions_are_paused_and_resumed() -> None:
    async with running(poison="skip") as (consumer, _), browsing(consumer) as browser:
        asked, result = await browser.do("pause-part", name="ledger")
        assert asked == "Pause 1 partition of ledger?"
        assert "Paused 1 partition of ledger." in result
        assert all(each.is_paused for each in consumer.stats().partitions.values())
        assert "paused" in await browser.text("parts")
        _, result = await browser.do("resume-part", name="ledger", partition="orders/0")
        assert "Resumed 0 partitions" in result
        assert "resume all of it" in result
        _, result = await browser.do("resume-part", name="ledger")
        assert "Resumed 1 partition of" in result
        _, result = await browser.do("pause-part", name="ledger", partition="orders/0")
        assert "Paused 1 partition of" in result
        _, result = await browser.do("resume-part", name="ledger", partition="orders/0")
        assert "Resumed 1 partition of" in result
        assert not any(each.is_paused for each in consumer.stats().partitions.values())


async def test_a_batcher_and_a_pipe_have_pictures() -> None:
    limits = Limits(max_items=10, max_delay=60.0)
    log = MemoryLog()
    into: Batcher[object] = Batcher(MemorySink(), name="rows")
    feeding = flow.pipe(MemorySource(log, ends=True), into, name="feed")
    made: Batcher[int] = Batcher(MemorySink(), name="audit", limits=limits)
    async with made as audit:
        for n in range(3):
            await audit.add(n)
        async with browsing(audit, feeding, lambda: [audit]) as browser:
            text = await browser.text("")
            assert "audit" in text
            assert "audit (2)" in text
            page = (await browser.get("part", name="audit")).text
            assert "Batcher: 3 in the open batch" in page
            assert 'role="img"' in page
            assert "not open" in await browser.text("part", name="feed")
            assert (await browser.get("act", do="pause-part", name="feed")).status_code == 409
            assert (await browser.get("act", do="pause-part", name="audit")).status_code == 409


async def test_the_live_part_of_a_page_is_refreshed_from_its_own_address() -> None:
    made: Batcher[int] = Batcher(MemorySink(), name="a&b")
    async with made as batcher, browsing(batcher) as browser:
        page = (await browser.get("part", name="a&b")).text
        (address,) = re.findall(r'hx-get="([^"]*)"', page)
        assert address == "/part?name=a%26b"
        assert 'aria-live="polite"' in page
