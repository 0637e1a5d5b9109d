"""Items with an unknown outcome hold their key until they are resubmitted or given up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from feed_help import (
    Row,
    Slip,
    Told,
    is_empty,
    key_of,
    of_claim,
    on_virtual_time,
    outcomes,
    rows_of,
    slips_for,
    steps,
    tenant_of,
)

from sluicegate import Batcher, ClosedError, ConfigError, Limits, Outcome, PermanentError
from sluicegate.errors import TimedOutError
from sluicegate.testing import FakeClock

HOLDS = (Outcome.UNKNOWN, Outcome.REJECTED)
SHAPES: dict[str, dict[str, Any]] = {
    "keyed": {"key": key_of},
    "keyed and sized": {"key": key_of, "size_of": lambda _: 1, "max_bytes": 100},
    "tenants and keys": {"tenant": tenant_of, "key": key_of},
}
shapes = pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES)
safe = pytest.mark.parametrize("prefix_safe", [False, True])


def batcher_of(sink: Any, clock: FakeClock, options: dict[str, Any], **more: Any) -> Batcher[Row]:
    given = {**options, **more}
    limits = Limits(
        max_items=3,
        max_delay=1.0,
        workers=2,
        max_bytes=given.pop("max_bytes", None),
        flush_timeout=given.pop("flush_timeout", 30.0),
    )
    return Batcher(sink, limits=limits, clock=clock, **given)


@shapes
@safe
@pytest.mark.parametrize("error", [TimedOutError("late"), PermanentError("no")])
def test_an_item_that_ended_unknown_comes_again_in_front_of_its_key(
    options: dict[str, Any], prefix_safe: bool, error: Exception
) -> None:
    async def main(clock: FakeClock) -> None:
        sink = Told(error, prefix_safe=prefix_safe)
        maybe = isinstance(error, TimedOutError)
        rows = rows_of("c", *"aaaa")
        slips = slips_for(rows)
        async with batcher_of(sink, clock, options) as batcher:
            feed = batcher.feed(HOLDS)
            await feed.submit(rows, slips)
            await clock.sleep(10)
            assert sink.applied == []
            ended = [row for row, slip in zip(rows, slips, strict=True) if slip.outcomes]
            again = slips_for(ended)
            assert ended == rows[: len(ended)]
            assert batcher.stats().held_keys == 1
            feed.resubmit(ended, again, maybe_applied=maybe)
            assert batcher.tally().accepted == 4 + len(ended)
            batcher.tally().verify()
            await batcher.flush()
            assert is_empty(batcher)
        assert sink.applied == rows
        assert sink.doubted[1] == (list(sink.begun[1][: len(ended)]) if maybe else [])
        assert outcomes(again) == [["delivered"]] * len(ended)

    on_virtual_time(main)


def test_a_resubmitted_item_waits_for_the_earlier_write_that_ignores_its_cancellation() -> None:
    async def main(clock: FakeClock) -> None:
        event = asyncio.Event()
        sink = Told(event, deaf=True)
        rows = rows_of("c", *"aaa")
        slips = slips_for(rows)
        async with batcher_of(sink, clock, {"key": key_of}, flush_timeout=2.0) as batcher:
            feed = batcher.feed(HOLDS)
            await feed.submit(rows, slips)
            await clock.sleep(10)
            assert outcomes(slips) == [["unknown"], [], []]
            again = slips_for(rows[:1])
            feed.resubmit(rows[:1], again, maybe_applied=True)
            await clock.sleep(10)
            assert len(sink.begun) == 1
            event.set()
            await batcher.flush()
            assert is_empty(batcher)
        assert sink.applied == [rows[0], *rows]
        assert sink.doubted[1] == [rows[0]]
        assert outcomes(again) == [["delivered"]]

    on_virtual_time(main)


@shapes
def test_release_lets_the_key_go_without_the_item(options: dict[str, Any]) -> None:
    async def main(clock: FakeClock) -> None:
        sink = Told(TimedOutError("late"))
        rows = rows_of("c", *"aaa")
        slips = slips_for(rows)
        async with batcher_of(sink, clock, options) as batcher:
            feed = batcher.feed(HOLDS)
            await feed.submit(rows, slips)
            await clock.sleep(10)
            assert feed.release(rows[0]) == 2
            assert feed.release(rows[0]) == 0
            await batcher.flush()
            assert is_empty(batcher)
        assert outcomes(slips) == [["unknown"], ["delivered"], ["delivered"]]

    on_virtual_time(main)


@shapes
def test_behind_an_unknown_item_nothing_is_written_in_a_shutdown(options: dict[str, Any]) -> None:
    async def main(clock: FakeClock) -> None:
        sink = Told((asyncio.Event(), None), TimedOutError("late"))
        event = asyncio.Event()
        sink = Told((event, TimedOutError("late")))
        rows = rows_of("c", *"aaa")
        slips = slips_for(rows)
        async with batcher_of(sink, clock, options) as batcher:
            feed = batcher.feed(HOLDS)
            await feed.submit(rows, slips)
            await clock.sleep(1.5)
            closing = asyncio.ensure_future(batcher.shutdown(20))
            await steps()
            event.set()
            report = await closing
            report.verify()
            assert feed.release(rows[0]) == 0
            with pytest.raises(ClosedError):
                feed.resubmit(rows[:1], [Slip("c")], maybe_applied=True)
        assert outcomes(slips) == [["unknown"], ["unsent"], ["unsent"]]
        assert len(sink.begun) == 1

    on_virtual_time(main)


@shapes
def test_a_withdrawn_item_that_ends_unknown_holds_nothing(options: dict[str, Any]) -> None:
    async def main(clock: FakeClock) -> None:
        event = asyncio.Event()
        sink = Told((event, TimedOutError("late")))
        rows = rows_of("c", *"aaa")
        slips = [Slip("lost"), Slip("lost"), Slip("kept")]
        async with batcher_of(sink, clock, options) as batcher:
            feed = batcher.feed(HOLDS)
            await feed.submit(rows, slips)
            await clock.sleep(1.5)
            assert feed.withdraw(of_claim("lost")) == 1
            event.set()
            await batcher.flush()
            assert is_empty(batcher)
        assert outcomes(slips) == [["unknown"], ["unsent"], ["delivered"]]

    on_virtual_time(main)


@shapes
@pytest.mark.parametrize("how", ["withdrawn", "handed back"])
def test_a_resubmitted_item_that_is_not_sent_again_is_still_unknown(
    options: dict[str, Any], how: str
) -> None:
    async def main(clock: FakeClock) -> None:
        event = asyncio.Event()
        sink = Told(event, deaf=True)
        rows = rows_of("c", *"aab")
        slips = slips_for(rows)
        async with batcher_of(sink, clock, options, flush_timeout=2.0) as batcher:
            feed = batcher.feed(HOLDS)
            await feed.submit(rows, slips)
            await clock.sleep(10)
            assert outcomes(slips)[0] == ["unknown"]
            again = slips_for(rows[:1])
            feed.resubmit(rows[:1], again, maybe_applied=True)
            if how == "withdrawn":
                seen: list[Any] = []

                def is_again(slip: object) -> bool:
                    seen.append(slip)
                    return slip is again[0]

                assert feed.withdraw(is_again) == 1
                assert again[0] in seen
            report = await batcher.shutdown(5)
            report.verify()
            event.set()
        assert outcomes(again) == [["unknown"]]
        assert report.tally.unknown == sum(s.outcomes == [Outcome.UNKNOWN] for s in slips + again)

    on_virtual_time(main)


def test_an_idle_or_unheld_key_takes_resubmitted_items_as_they_come() -> None:
    async def main(clock: FakeClock) -> None:
        event = asyncio.Event()
        sink = Told(event)
        rows = rows_of("c", *"aaa")
        async with batcher_of(sink, clock, {"key": key_of}) as batcher:
            feed = batcher.feed(HOLDS)
            feed.resubmit([], [], maybe_applied=False)
            feed.resubmit(rows[:1], [Slip("c")], maybe_applied=False)
            await clock.sleep(1.5)
            await feed.submit(rows[2:], [Slip("c")])
            feed.resubmit(rows[1:2], [Slip("c")], maybe_applied=True)
            event.set()
            await batcher.flush()
            assert is_empty(batcher)
        assert sink.applied == rows
        assert sink.doubted == [[], [rows[1]], []]

    on_virtual_time(main)


@pytest.mark.parametrize("options", [{}, {"tenant": tenant_of}])
def test_without_keys_items_come_again_at_the_end_and_nothing_is_held(
    options: dict[str, Any],
) -> None:
    async def main(clock: FakeClock) -> None:
        sink = Told(TimedOutError("late"))
        rows = rows_of("c", *"abcd")
        slips = slips_for(rows)
        async with batcher_of(sink, clock, options) as batcher:
            feed = batcher.feed(HOLDS)
            await feed.submit(rows, slips)
            await clock.sleep(10)
            feed.resubmit(rows[:3], slips_for(rows[:3]), maybe_applied=True)
            await batcher.flush()
            assert feed.release(rows[0]) == 0
            assert is_empty(batcher)
        assert sink.applied == [rows[3], *rows[:3]]
        assert sink.doubted[-1] == rows[:3]

    on_virtual_time(main)


def test_a_flush_in_front_of_resubmitted_items_ends() -> None:
    async def main(clock: FakeClock) -> None:
        for prefix_safe in (False, True):
            sink = Told(TimedOutError("late"), prefix_safe=prefix_safe)
            rows = rows_of("c", *"aaaab")
            slips = slips_for(rows)
            async with batcher_of(sink, clock, {"key": key_of}) as batcher:
                feed = batcher.feed(HOLDS)
                await feed.submit(rows[:4], slips[:4])
                await clock.sleep(10)
                await asyncio.wait_for(batcher.flush(), 5)
                held = [slip for slip in slips[:4] if slip.outcomes]
                feed.resubmit(rows[: len(held)], slips[: len(held)], maybe_applied=True)
                await feed.submit(rows[4:], slips[4:])
                await asyncio.wait_for(batcher.flush(), 5)
                assert is_empty(batcher)
            assert [row for row in sink.applied if row.key == "a"] == rows[:4]

    on_virtual_time(main)


def test_arguments_that_do_not_go_together_are_refused() -> None:
    async def main(clock: FakeClock) -> None:
        for options, holds, match in (
            ({"overflow": "reject"}, (), "overflow"),
            ({"last_resort": Told()}, (), "last_resort"),
            ({"key": key_of, "on_key_failure": "fail"}, HOLDS, "on_key_failure"),
            ({"key": key_of}, (Outcome.DROPPED,), "holds"),
        ):
            async with batcher_of(Told(), clock, dict(options)) as batcher:
                with pytest.raises(ConfigError, match=match):
                    batcher.feed(holds)
        batcher = batcher_of(Told(), clock, {"key": key_of})
        with pytest.raises(ClosedError):
            batcher.feed()
        async with batcher:
            feed = batcher.feed()
            with pytest.raises(ConfigError, match="already"):
                batcher.feed()
            with pytest.raises(ValueError, match="one key at a time"):
                feed.resubmit(rows_of("c", *"ab"), [Slip("c")] * 2, maybe_applied=False)
            with pytest.raises(ValueError, match="1 items with 0 receipts"):
                feed.resubmit(rows_of("c", "a"), [], maybe_applied=False)
        async with batcher:
            batcher.feed()

    on_virtual_time(main)
