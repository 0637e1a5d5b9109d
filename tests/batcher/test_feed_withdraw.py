"""`Feed.withdraw`: items return to their source, wherever they are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

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

from sluicegate import (
    Backoff,
    Batcher,
    DeadLetter,
    FanOut,
    Limits,
    PermanentError,
    Retry,
    TransientError,
    WriteResult,
    stack,
)
from sluicegate.errors import TimedOutError, WithdrawnError
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Mapping

SHAPES: dict[str, Mapping[str, Any]] = {
    "plain": {},
    "sized": {"size_of": lambda _: 1, "limits": {"max_bytes": 3}},
    "keyed": {"key": key_of},
    "keyed and sized": {"key": key_of, "size_of": lambda _: 1, "limits": {"max_bytes": 3}},
    "tenants": {"tenant": tenant_of},
    "tenants and keys": {"tenant": tenant_of, "key": key_of},
}
SLOW = Backoff(base=100.0, longest=1000.0, jitter="none")
shapes = pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES)
safe = pytest.mark.parametrize("prefix_safe", [False, True])


def batcher_of(
    sink: Any, clock: FakeClock, options: Mapping[str, Any], **limits: Any
) -> Batcher[Row]:
    bounds = {"max_items": 3, "max_delay": 1.0, "workers": 1} | limits | options.get("limits", {})
    given = {name: value for name, value in options.items() if name != "limits"}
    return Batcher(sink, limits=Limits(**bounds), clock=clock, **given)


@shapes
@safe
def test_queued_items_of_a_claim_end_unsent_and_the_others_are_written(
    options: Mapping[str, Any], prefix_safe: bool
) -> None:
    async def main(clock: FakeClock) -> None:
        event = asyncio.Event()
        sink = Told(event, prefix_safe=prefix_safe)
        rows = [*rows_of("lost", "x"), *rows_of("lost", *"abcaab"), *rows_of("kept", *"abcaabd")]
        slips = slips_for(rows)
        async with batcher_of(sink, clock, options) as batcher:
            feed = batcher.feed()
            assert await feed.submit(rows[:1], slips[:1]) == []
            await clock.sleep(1.5)
            assert await feed.submit(rows[1:], slips[1:]) == []
            assert feed.withdraw(of_claim("lost")) == 6
            batcher.tally().verify()
            assert outcomes(slips[1:7]) == [["unsent"]] * 6
            assert all(isinstance(slip.causes[0], WithdrawnError) for slip in slips[1:7])
            event.set()
            assert (await batcher.flush()).complete
            assert is_empty(batcher)
        assert outcomes(slips[:1] + slips[7:]) == [["delivered"]] * 8
        for key in "abcd":
            applied = [row.number for row in sink.applied if row.claim == "kept" and row.key == key]
            assert applied == [row.number for row in rows[7:] if row.key == key]
        assert batcher.report is not None
        assert batcher.report.complete
        assert batcher.report.tally.withdrawn == 6
        assert batcher.report.tally.lost == 0
        assert str(batcher.report.tally) == "14 accepted: 8 delivered, 6 withdrawn"
        assert batcher.report.unsent == ()

    on_virtual_time(main)


@shapes
def test_an_item_at_the_destination_is_delivered_if_its_write_succeeds(
    options: Mapping[str, Any],
) -> None:
    async def main(clock: FakeClock) -> None:
        event = asyncio.Event()
        sink = Told(event)
        rows = rows_of("lost", *"ab")
        slips = slips_for(rows)
        async with batcher_of(sink, clock, options) as batcher:
            feed = batcher.feed()
            await feed.submit(rows, slips)
            await clock.sleep(1.5)
            assert feed.withdraw(of_claim("lost")) == 0
            event.set()
            await steps()
            assert outcomes(slips) == [["delivered"]] * 2
            assert is_empty(batcher)

    on_virtual_time(main)


@shapes
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TransientError("no"), "unsent"),
        (PermanentError("no"), "unsent"),
        (TimedOutError("late"), "unknown"),
    ],
)
def test_a_failed_write_is_not_repeated_for_withdrawn_items(
    options: Mapping[str, Any], error: Exception, outcome: str
) -> None:
    async def main(clock: FakeClock) -> None:
        event = asyncio.Event()
        sink, letters = Told((event, error)), Told()
        rows = [*rows_of("lost", *"ab")]
        slips = slips_for(rows)
        whole = stack(sink, Retry(backoff=SLOW), DeadLetter(letters))
        async with batcher_of(whole, clock, options) as batcher:
            feed = batcher.feed()
            await feed.submit(rows, slips)
            await clock.sleep(1.5)
            assert sink.begun
            feed.withdraw(of_claim("lost"))
            event.set()
            await steps()
            assert is_empty(batcher)
            assert outcomes(slips) == [[outcome]] * 2
            await clock.sleep(100)
        assert len(sink.begun) == 1
        assert not sink.applied
        assert not letters.begun

    on_virtual_time(main)


@shapes
@safe
def test_the_others_of_a_failed_batch_are_sent_again(
    options: Mapping[str, Any], prefix_safe: bool
) -> None:
    async def main(clock: FakeClock) -> None:
        event = asyncio.Event()
        sink = Told((event, TransientError("no")), prefix_safe=prefix_safe)
        rows = [Row("t", "a", 0), Row("t", "b", 0), Row("t", "a", 1)]
        slips = [Slip("lost"), Slip("kept"), Slip("kept")]
        async with batcher_of(stack(sink, Retry(backoff=SLOW)), clock, options) as batcher:
            feed = batcher.feed()
            await feed.submit(rows, slips)
            await clock.sleep(1.5)
            feed.withdraw(of_claim("lost"))
            event.set()
            assert (await batcher.flush()).complete
            assert is_empty(batcher)
        assert sorted(sink.applied) == sorted(rows[1:])
        assert outcomes(slips) == [["unsent"], ["delivered"], ["delivered"]]

    on_virtual_time(main)


@shapes
def test_items_in_a_backoff_end_at_once_and_an_emptied_batch_does_not_sleep_on(
    options: Mapping[str, Any],
) -> None:
    async def main(clock: FakeClock) -> None:
        sink = Told(TransientError("no"), TransientError("no"))
        rows = rows_of("lost", *"ab")
        slips = slips_for(rows)
        policy = Retry(attempts=50, backoff=SLOW)
        async with batcher_of(stack(sink, policy), clock, options) as batcher:
            feed = batcher.feed()
            await feed.submit(rows, slips)
            await clock.sleep(1.5)
            assert batcher.tally().backing_off == 2
            assert feed.withdraw(of_claim("lost")) == 2
            assert outcomes(slips) == [["unsent"]] * 2
            assert isinstance(slips[0].causes[0], WithdrawnError)
            batcher.tally().verify()
            began = clock.now()
            again = slips_for(rows)
            await feed.submit(rows, again)
            sink.answers.clear()
            assert (await batcher.flush()).complete
            assert clock.now() - began < 1
            assert outcomes(again) == [["delivered"]] * 2

    on_virtual_time(main)


def test_an_item_in_a_backoff_that_may_have_been_applied_ends_unknown() -> None:
    async def main(clock: FakeClock) -> None:
        sink = Told(TimedOutError("late"))
        rows = rows_of("lost", *"ab")
        slips = slips_for(rows)
        async with batcher_of(stack(sink, Retry(backoff=SLOW)), clock, {"key": key_of}) as batcher:
            feed = batcher.feed()
            await feed.submit(rows, slips)
            await clock.sleep(1.05)
            assert feed.withdraw(of_claim("lost")) == 2
            assert outcomes(slips) == [["unknown"]] * 2
            await steps()
            assert is_empty(batcher)
        assert len(sink.begun) == 1

    on_virtual_time(main)


def test_a_branch_does_not_send_a_withdrawn_item_again() -> None:
    async def main(clock: FakeClock) -> None:
        rows = rows_of("lost", *"ab")
        for other, outcome in ((Told(), "unknown"), (Told(5.0), "unknown"), (None, "unsent")):
            failing = Told(TransientError("no"))
            branches = [stack(failing, Retry(backoff=SLOW)), *([other] if other else [])]
            slips = slips_for(rows)
            async with batcher_of(FanOut(*branches), clock, {}) as batcher:
                feed = batcher.feed()
                await feed.submit(rows, slips)
                await clock.sleep(1.05)
                feed.withdraw(of_claim("lost"))
                if other and not other.applied:
                    assert outcomes(slips) == [[]] * 2  # they are in a write
                await clock.sleep(10)  # the branch would sleep for longer
                assert is_empty(batcher)
                assert not batcher._dispatcher.flights
            assert outcomes(slips) == [[outcome]] * 2
            assert len(failing.begun) == 1
            assert other is None or other.applied == rows

    on_virtual_time(main)


def test_a_permanent_failure_is_not_dead_lettered_once_it_is_withdrawn() -> None:
    async def main(clock: FakeClock) -> None:
        letters = Told(TransientError("no"))
        sink = Told(PermanentError("no"))
        rows = rows_of("lost", *"ab")
        slips = slips_for(rows)
        whole = stack(sink, Retry(backoff=SLOW), DeadLetter(stack(letters, Retry(backoff=SLOW))))
        async with batcher_of(whole, clock, {"key": key_of}) as batcher:
            feed = batcher.feed()
            await feed.submit(rows, slips)
            await clock.sleep(1.05)
            assert len(letters.begun) == 1
            assert feed.withdraw(of_claim("lost")) == 2
            assert outcomes(slips) == [["unsent"]] * 2
            await clock.sleep(50)
        assert len(letters.begun) == 1

    on_virtual_time(main)


def test_a_flush_does_not_wait_for_withdrawn_items_and_counts_them() -> None:
    async def main(clock: FakeClock) -> None:
        event = asyncio.Event()
        sink = Told(event)
        rows = rows_of("lost", *"aaa")
        slips = slips_for(rows)
        async with batcher_of(sink, clock, {"key": key_of}) as batcher:
            feed = batcher.feed()
            await feed.submit(rows, slips)
            flush = asyncio.ensure_future(batcher.flush())
            await steps()
            assert feed.withdraw(of_claim("lost")) == 2
            event.set()
            report = await flush
            assert {outcome.value: n for outcome, n in report.outcomes.items() if n} == {
                "unsent": 2,
                "delivered": 1,
            }

    on_virtual_time(main)


def test_a_withdrawal_in_a_shutdown_is_not_handed_back() -> None:
    async def main(clock: FakeClock) -> None:
        event = asyncio.Event()
        sink = Told(event)
        rows = rows_of("lost", *"aaa")
        slips = slips_for(rows)
        async with batcher_of(sink, clock, {"key": key_of}) as batcher:
            feed = batcher.feed()
            await feed.submit(rows, slips)
            await clock.sleep(1.5)
            closing = asyncio.ensure_future(batcher.shutdown(20))
            await steps()
            assert feed.withdraw(of_claim("lost")) == 2
            event.set()
            report = await closing
            assert report.complete
            assert feed.withdraw(of_claim("lost")) == 0
        assert outcomes(slips) == [["delivered"], ["unsent"], ["unsent"]]

    on_virtual_time(main)


def test_a_predicate_that_raises_spares_its_item_and_is_told() -> None:
    async def main(clock: FakeClock) -> None:
        sink = Told()
        slips = [Slip("lost"), Slip("bad"), Slip("lost")]

        def predicate(slip: Any) -> bool:
            if slip.claim == "bad":
                raise KeyError(slip.claim)
            return True

        async with batcher_of(sink, clock, {}, max_items=10) as batcher:
            feed = batcher.feed()
            await feed.submit(rows_of("c", *"abc"), slips)
            with pytest.raises(KeyError):
                feed.withdraw(predicate)
            batcher.tally().verify()
        assert outcomes(slips) == [["unsent"], ["delivered"], ["unsent"]]

    on_virtual_time(main)


def test_what_left_with_an_item_that_is_withdrawn_later_is_sent_again() -> None:
    def refuse(batch: Any) -> WriteResult:
        errors: dict[int, BaseException] = {0: PermanentError("this")}
        errors |= {index: TransientError("behind or busy") for index in range(1, len(batch))}
        return WriteResult.failed(batch, errors)

    async def main(clock: FakeClock) -> None:
        sink, letters = Told(refuse, prefix_safe=True), Told()
        rows = [Row("t", "a", 0), Row("t", "a", 1), Row("t", "b", 0)]
        slips = [Slip("lost"), Slip("kept"), Slip("kept")]
        whole = stack(sink, Retry(backoff=SLOW), DeadLetter(letters))
        async with batcher_of(whole, clock, {"key": key_of}) as batcher:
            feed = batcher.feed()
            await feed.submit(rows, slips)
            await clock.sleep(1.5)
            assert batcher.tally().backing_off == 3
            assert feed.withdraw(of_claim("lost")) == 1
            await clock.sleep(500)
            assert is_empty(batcher)
        assert sorted(sink.applied) == sorted(rows[1:])
        assert not letters.begun
        assert outcomes(slips) == [["unsent"], ["delivered"], ["delivered"]]

    on_virtual_time(main)
