"""Retry: which items are sent again, when, and with which outcome.

White box: the class that a classifier gives an error.
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import tenacity

from sluicegate import (
    Backoff,
    Batch,
    Batcher,
    ConfigError,
    ErrorClass,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    RowBatch,
    ThrottledError,
    Timeout,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    WriteResult,
    gather,
    send,
    stack,
)
from sluicegate.errors import ResultMismatch, StoppedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate.testing import FakeClock


class Scripted:
    """Returns the scripted results in turn, then success. Records requests and times."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[float, tuple[Any, ...]]] = []

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        self.calls.append((asyncio.get_running_loop().time(), tuple(batch)))
        answer: Any = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        return None if answer is None else WriteResult.failed(batch, answer)

    @property
    def times(self) -> list[float]:
        return [when for when, _ in self.calls]


def fixed(seconds: float) -> Any:
    return tenacity.wait_fixed(seconds)


async def test_two_failures_then_success_are_three_tries(fake_clock: FakeClock) -> None:
    """B-T15, batcher/B23."""
    sink = Scripted(TransientError("a"), TransientError("b"))
    assert await send(stack(sink, Retry(backoff=fixed(2.0))), RowBatch("xy")) == {}
    assert sink.times == [0.0, 2.0, 4.0]


async def test_a_permanent_error_is_not_tried_again(fake_clock: FakeClock) -> None:
    """B-T15."""
    sink = Scripted(PermanentError("no"))
    errors = await send(stack(sink, Retry()), RowBatch("xy"))
    assert sorted(errors) == [0, 1]
    assert len(sink.calls) == 1


@pytest.mark.parametrize(
    ("error", "tries"),
    [(TransientError("t"), 5), (ValueError("unlisted"), 3), (UnknownOutcomeError("u"), 5)],
)
async def test_tries_are_bounded_and_nothing_is_waited_for_after_the_last(
    fake_clock: FakeClock, error: BaseException, tries: int
) -> None:
    """batcher/B24, B-T15, and the class table of design 3.4."""
    sink = Scripted(*[error] * 9)
    errors = await send(stack(sink, Retry(attempts=5, backoff=fixed(1.0))), RowBatch("x"))
    assert errors == {0: error}
    assert sink.times == [float(i) for i in range(tries)]
    assert fake_clock.now() == tries - 1


async def test_only_failed_items_are_sent_again_in_order(fake_clock: FakeClock) -> None:
    """B-T18, batcher/4a.5: ten items, five failed; the second request carries exactly those
    five.
    """
    bad: dict[int, BaseException] = {i: TransientError("again") for i in (1, 3, 5, 7, 9)}
    sink = Scripted(bad, {0: PermanentError("poison")})
    errors = await send(stack(sink, Retry(backoff=fixed(1.0))), RowBatch(range(10)))
    assert [items for _, items in sink.calls] == [tuple(range(10)), (1, 3, 5, 7, 9)]
    assert list(errors) == [1]


async def test_receipts_of_delivered_items_resolve_before_the_backoff(
    fake_clock: FakeClock,
) -> None:
    """batcher/4a.5, design 3.3: success is final at once."""
    sink = Scripted({1: TransientError("again")})
    async with Batcher(
        stack(sink, Retry(backoff=fixed(50.0))), limits=Limits(max_items=2)
    ) as batcher:
        first, second = await batcher.submit("a"), await batcher.submit("b")
        assert await first is Outcome.DELIVERED
        assert fake_clock.now() == 0.0
        assert not second.done
        assert batcher.tally().backing_off == 1
        assert await second is Outcome.DELIVERED
        assert fake_clock.now() == 50.0


async def test_each_item_counts_its_own_attempts(fake_clock: FakeClock) -> None:
    """An item that failed late has as many attempts as one that failed at once."""
    error = TransientError("t")
    sink = Scripted({0: error, 1: error}, {0: error, 1: error}, {0: error, 1: error})
    errors = await send(stack(sink, Retry(attempts=3, backoff=fixed(1.0))), RowBatch("ab"))
    assert sorted(errors) == [0, 1]
    assert len(sink.calls) == 3


async def test_a_cut_off_try_is_not_made_again_when_told_so(fake_clock: FakeClock) -> None:
    """Delivery at most once: `resend_unknown=False`."""
    sink = Scripted(UnknownOutcomeError("cut"))
    errors = await send(stack(sink, Retry(resend_unknown=False)), RowBatch("x"))
    assert isinstance(errors[0], UnknownOutcomeError)
    assert len(sink.calls) == 1


async def test_an_answer_that_does_not_fit_is_never_sent_again(fake_clock: FakeClock) -> None:
    """B-T44: ninety results for a hundred items."""
    calls: list[int] = []

    async def short(batch: Batch[Any]) -> WriteResult:
        calls.append(len(batch))
        return WriteResult.from_outcomes(batch, [None] * 90)

    async with Batcher(stack(short, Retry())) as batcher:
        receipts = [await batcher.submit(i) for i in range(100)]
        assert {await receipt.settled() for receipt in receipts} == {Outcome.UNKNOWN}
    assert calls == [100]
    with pytest.raises(Exception, match="90 answers for a batch of 100") as caught:
        await receipts[0]
    assert isinstance(caught.value.__cause__, ResultMismatch)


@pytest.mark.parametrize("asked", [7.0, timedelta(seconds=7)])
async def test_throttling_waits_at_least_as_long_as_asked_and_does_not_count(
    fake_clock: FakeClock, asked: Any
) -> None:
    """batcher/4a.6, batcher/B47: as a minimum of the wait, without a counted attempt."""
    sink = Scripted(*[ThrottledError("slow", retry_after=asked)] * 4)
    assert await send(stack(sink, Retry(attempts=1)), RowBatch("x")) == {}
    assert sink.times == [0.0, 7.0, 14.0, 21.0, 28.0]


async def test_a_throttled_destination_is_left_alone_by_every_batch(fake_clock: FakeClock) -> None:
    """batcher/4a.6: the pause applies to the whole sink and is reported to producers."""
    sink = Scripted(ThrottledError("slow", retry_after=10.0))
    limits = Limits(max_items=1, workers=3)
    async with Batcher(stack(sink, Retry()), limits=limits) as batcher:
        await batcher.add("a")
        await fake_clock.advance(1.0)
        await batcher.add("b")
        await fake_clock.advance(1.0)
        assert batcher.stats().throttled_seconds == pytest.approx(8.0)
        await batcher.flush()
    assert sink.times[0] == 0.0
    assert sink.times[1:] == [10.0, 10.0]


async def test_a_throttled_wait_grows_fourfold(fake_clock: FakeClock) -> None:
    """B-T15, batcher/B23."""
    backoff = Backoff(base=1.0, longest=1000.0)
    assert [backoff.bound(n, 4.0) for n in (1, 2, 3, 4)] == [1.0, 4.0, 16.0, 64.0]
    assert [backoff.bound(n) for n in (1, 2, 3, 4)] == [1.0, 2.0, 4.0, 8.0]


def test_full_jitter_stays_in_its_interval() -> None:
    """B-T16: ten thousand seeded draws; the maximum holds; base 0 does not wait."""
    backoff = Backoff(rng=random.Random(7))

    for tries in (1, 2, 5, 50):
        most = min(30.0, 0.1 * 2 ** (tries - 1))
        draws = [backoff(tries) for _ in range(2_500)]
        assert 0 <= min(draws) < 0.05 * most
        assert 0.95 * most < max(draws) <= most
    assert Backoff(base=0)(3) == 0.0


@pytest.mark.parametrize("workers", [1, 4, 16])
async def test_an_outage_pushes_back_and_loses_nothing(fake_clock: FakeClock, workers: int) -> None:
    """B-T42, B-T60: 120 s down; producers wait, one batch at a time probes, nothing is rejected,
    everything is written soon afterwards.
    """
    calls = 0
    failed = 0
    applied: list[int] = []
    running = 0
    most = 0

    async def write(batch: Batch[int]) -> None:
        nonlocal calls, failed, running, most
        calls += 1
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(0.01)
        finally:
            running -= 1
        if 1.0 <= fake_clock.now() < 121.0:
            failed += 1
            raise UnavailableError("refused")
        applied.extend(batch)

    limits = Limits(max_items=125, workers=workers, max_pending_items=4_250)
    sink = stack(write, Timeout(5.0), Retry())
    waited = 0.0
    async with Batcher(sink, limits=limits, shutdown_deadline=1000.0) as batcher:
        for i in range(10_000):
            began = fake_clock.now()
            await batcher.add(i)
            waited = max(waited, fake_clock.now() - began)
            if i % 250 == 0:
                await asyncio.sleep(0.1)
        await batcher.flush()
        assert fake_clock.now() < 135.0
    assert waited > 60.0
    assert failed <= workers + 50
    assert batcher.report is not None
    assert batcher.report.tally.delivered == 10_000
    assert sorted(applied) == list(range(10_000))
    if workers == 1:
        assert applied == list(range(10_000))


async def test_an_outage_can_be_given_up(fake_clock: FakeClock) -> None:
    """`give_up_after`: the series ends with the outage's error."""
    sink = Scripted(*[UnavailableError("refused")] * 99)
    errors = await send(stack(sink, Retry(give_up_after=20.0)), RowBatch("x"))
    assert isinstance(errors[0], UnavailableError)
    assert 20.0 <= fake_clock.now() <= 25.0


async def test_a_probe_that_is_cancelled_is_handed_on(fake_clock: FakeClock) -> None:
    """batcher/4b.10: a cancellation is neither failure nor success, and no batch waits for a probe
    that will not take place.
    """
    sink = Scripted(UnavailableError("refused"), UnavailableError("refused"))
    retried = stack(sink, Retry(backoff=fixed(3.0)))
    first = asyncio.create_task(send(retried, RowBatch("a")))
    await asyncio.sleep(0)
    second = asyncio.create_task(send(retried, RowBatch("b")))
    await asyncio.sleep(1.0)
    first.cancel()
    assert await second == {}


async def test_shutdown_ends_a_backoff_with_an_immediate_try_and_tries_on_until_its_deadline(
    fake_clock: FakeClock,
) -> None:
    """batcher/4b.3, design 3.3: each wait is a quarter of the remaining time; items that fail until
    the end are unsent and returned.
    """
    sink = Scripted(*[TransientError("t")] * 99)
    async with Batcher(stack(sink, Retry(backoff=fixed(100.0)))) as batcher:
        receipt = await batcher.submit("a")
        await fake_clock.advance(1.0)
        report = await batcher.shutdown(deadline=25.0)
        assert sink.times[:4] == pytest.approx(
            [0.2, 1.0, 1.0 + 0.25 * 23.98, 1.0 + (0.25 + 0.75 * 0.25) * 23.98]
        )
        assert 24.9 < sink.times[-1] < 25.0
        assert len(sink.times) < 30
        assert report.unsent == ("a",)
        assert receipt.outcome is Outcome.UNSENT
        with pytest.raises(Exception, match="stopping") as caught:
            await receipt
        assert isinstance(caught.value.__cause__, StoppedError)


async def test_a_batch_that_backs_off_gives_its_slot_to_others(fake_clock: FakeClock) -> None:
    """batcher/B27, B-T38: two workers, one batch backing off for ten seconds; the other batches are
    not delayed.
    """

    async def write(batch: Batch[int]) -> None:
        if batch[0] == 0 and fake_clock.now() < 5.0:
            raise TransientError("t")
        await asyncio.sleep(0.1)

    limits = Limits(max_items=1, workers=2)
    async with Batcher(stack(write, Retry(backoff=fixed(10.0))), limits=limits) as batcher:
        receipts = [await batcher.submit(i) for i in range(21)]
        await gather(receipts[1:])
        assert fake_clock.now() == pytest.approx(1.0)
        assert batcher.stats().backing_off_batches == 1
        assert batcher.tally().backing_off == 1
        await batcher.flush()


async def test_one_worker_keeps_total_order_through_retries(fake_clock: FakeClock) -> None:
    """design 3.3: the slot is kept if a single worker guarantees the order."""
    sink = Scripted(TransientError("t"))
    async with Batcher(
        stack(sink, Retry(backoff=fixed(10.0))), limits=Limits(max_items=1)
    ) as batcher:
        await batcher.add_many(list("abc"))
    assert [items for _, items in sink.calls] == [("a",), ("a",), ("b",), ("c",)]


@pytest.mark.parametrize(
    "decorators",
    [
        lambda: (Timeout(1.0), Retry(backoff=fixed(0.1))),
        lambda: (Retry(backoff=fixed(0.1)), Timeout(1.0)),
        lambda: (Retry(backoff=fixed(0.1)), Retry(backoff=fixed(0.1)), Timeout(5.0)),
        lambda: (Timeout(0.9), Retry(backoff=fixed(0.1)), Timeout(3.0), Retry(backoff=fixed(0.1))),
    ],
)
async def test_a_settled_item_is_never_sent_again_and_never_ends_unknown(
    fake_clock: FakeClock, decorators: Callable[[], tuple[Any, ...]]
) -> None:
    """B-T41, in every order: half of each batch is settled, the rest hangs."""
    sent: dict[int, int] = {}

    async def write(batch: Batch[int]) -> None:
        settled = [place for place, item in enumerate(batch) if item % 2 == 0]
        for item in batch:
            sent[item] = sent.get(item, 0) + 1
        batch.settle(settled, Outcome.DELIVERED)
        await asyncio.sleep(50.0)

    async with Batcher(stack(write, *decorators())) as batcher:
        receipts = [await batcher.submit(i) for i in range(10)]
        outcomes = [await receipt.settled() for receipt in receipts]
    assert all(outcomes[i] is Outcome.DELIVERED and sent[i] == 1 for i in range(0, 10, 2))
    assert all(outcomes[i] is Outcome.UNKNOWN for i in range(1, 10, 2))


async def test_a_deaf_sink_behind_a_timeout_resolves_its_items_and_keeps_its_slot(
    fake_clock: FakeClock,
) -> None:
    """B-T58."""
    calls = 0

    async def deaf(batch: Batch[Any]) -> None:
        nonlocal calls
        calls += 1
        until = fake_clock.now() + (60.0 if batch[0] == 0 else 0.0)
        while fake_clock.now() < until:
            try:
                await asyncio.sleep(until - fake_clock.now())
            except asyncio.CancelledError:
                continue

    async with Batcher(
        stack(deaf, Timeout(1.0), Retry()), limits=Limits(max_items=1, flush_timeout=500.0)
    ) as batcher:
        receipts = [await batcher.submit(i) for i in range(2)]
        with pytest.raises(Exception, match="unknown"):
            await receipts[0]
        assert fake_clock.now() == pytest.approx(1.1)
        await asyncio.sleep(50.0)
        assert calls == 1
        await receipts[1].settled()


def test_unlisted_exceptions_ask_the_users_classifier_first() -> None:
    """Classifiers can be combined and overridden."""
    from sluicegate._core.classify import classified

    def mine(error: BaseException) -> ErrorClass | None:
        return ErrorClass.PERMANENT if isinstance(error, ConnectionError) else None

    assert classified(ConnectionResetError(), mine) is ErrorClass.PERMANENT
    assert classified(ConnectionResetError()) is ErrorClass.TRANSIENT
    assert classified(ConnectionRefusedError()) is ErrorClass.UNAVAILABLE
    assert classified(TimeoutError()) is ErrorClass.TRANSIENT
    assert classified(ValueError()) is ErrorClass.UNLISTED
    assert classified(ThrottledError("t")) is ErrorClass.THROTTLE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attempts": 0}, "attempts=0"),
        ({"unlisted_attempts": -1}, "unlisted_attempts=-1"),
        ({"backoff": 3.0}, "backoff=3.0"),
        ({"classify": "x"}, "classify='x'"),
        ({"give_up_after": 0}, "give_up_after=0"),
        ({"resend_unknown": "no"}, "resend_unknown='no': must be True or False"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    """B-T30."""
    with pytest.raises(ConfigError, match=message):
        Retry(**arguments)
    with pytest.raises(ConfigError, match="seconds=0"):
        Timeout(0)


def test_a_timeout_as_long_as_the_backstop_is_refused() -> None:
    """Decisions: equal values would end a series as unknown before the retry can act."""

    async def write(batch: Batch[Any]) -> None: ...

    with pytest.raises(
        ConfigError, match=r"flush_timeout=30.0: must be longer than the Timeout\(30.0\)"
    ):
        Batcher(stack(write, Timeout(30.0), Retry()))
