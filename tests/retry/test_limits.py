"""The limits of a retry: its total time, and a shared budget.

White box: errors are judged by the class that a retry would see.
"""

from __future__ import annotations

import asyncio
import random
import socket
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
import tenacity

from sluicegate import (
    AddTimeout,
    Backoff,
    Batch,
    Batcher,
    CircuitBreaker,
    ConfigError,
    ErrorClass,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    RowBatch,
    ThrottledError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    gather,
    send,
    stack,
)
from sluicegate._core.classify import classified
from sluicegate.retry import RetryBudget, classify_network, first_of
from sluicegate.testing import FlakySink, ScriptedSink, fail, ok, partial, slow

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock

AGAIN = TransientError("again")


def fixed(seconds: float) -> Any:
    return tenacity.wait_fixed(seconds)


def started(sink: ScriptedSink[Any]) -> list[float]:
    return [round(call.started, 9) for call in sink.calls]


@pytest.mark.parametrize(
    "error", [AGAIN, UnknownOutcomeError("cut"), ValueError("unlisted")], ids=repr
)
async def test_no_try_is_made_after_the_total_time(
    fake_clock: FakeClock, error: BaseException
) -> None:
    """batcher/4a.6: a wait that would exceed it is not begun."""
    sink = FlakySink[str](99, error)
    retry = Retry(attempts=99, unlisted_attempts=99, backoff=fixed(4.0), max_seconds=10.0)
    assert await send(stack(sink, retry), RowBatch("x")) == {0: error}
    assert started(sink) == [0.0, 4.0, 8.0]
    assert fake_clock.now() == 8.0


async def test_a_try_at_the_very_end_of_the_total_time_is_made(fake_clock: FakeClock) -> None:
    sink = FlakySink[str](99, AGAIN)
    await send(stack(sink, Retry(attempts=99, backoff=fixed(5.0), max_seconds=10.0)), RowBatch("x"))
    assert started(sink) == [0.0, 5.0, 10.0]


async def test_the_time_that_tries_take_counts(fake_clock: FakeClock) -> None:
    sink = ScriptedSink[str](default=slow(3.0, fail(AGAIN)))
    await send(stack(sink, Retry(attempts=99, backoff=fixed(1.0), max_seconds=10.0)), RowBatch("x"))
    assert started(sink) == [0.0, 4.0, 8.0]


async def test_waiting_for_a_destination_that_is_away_is_no_part_of_the_total_time(
    fake_clock: FakeClock,
) -> None:
    """design 3.4: an outage and a throttle cost neither attempts nor time of the series."""
    steps: list[Any] = [
        fail(AGAIN),
        *[fail(UnavailableError("gone"))] * 9,
        fail(ThrottledError("slow", retry_after=60.0)),
        fail(AGAIN),
    ]
    sink = ScriptedSink[str](steps)
    assert await send(stack(sink, Retry(backoff=fixed(4.0), max_seconds=10.0)), RowBatch("x")) == {}
    assert fake_clock.now() > 100.0


async def test_who_waits_for_anothers_probe_loses_no_time_by_it(fake_clock: FakeClock) -> None:
    steps: list[Any] = [*[fail(UnavailableError("gone"))] * 20, ok(), fail(AGAIN), ok(), ok()]
    sink = ScriptedSink[str](steps)
    retried = stack(sink, Retry(backoff=fixed(5.0), max_seconds=6.0))
    assert await asyncio.gather(*(send(retried, RowBatch([item])) for item in "ab")) == [{}, {}]


async def test_retry_after_is_a_floor_whatever_the_class(fake_clock: FakeClock) -> None:
    """batcher/4a.6: also on an error that counts as an attempt."""
    error = TransientError("busy")
    error.retry_after = 7.0  # type: ignore[attr-defined]
    sink = FlakySink[str](1, error)
    await send(stack(sink, Retry(backoff=fixed(1.0))), RowBatch("x"))
    assert started(sink) == [0.0, 7.0]


async def test_a_throttled_destination_tells_the_producers_for_how_long(
    fake_clock: FakeClock,
) -> None:
    """batcher/4a.6, batcher/B11: `AddTimeout.retry_after` is the value for a server's own
    `Retry-After`.
    """
    sink = FlakySink[int](1, ThrottledError("slow", retry_after=60.0))
    async with Batcher(
        stack(sink, Retry()), limits=Limits(max_items=1, max_pending_items=2)
    ) as batcher:
        await batcher.add(1)
        await fake_clock.advance(1.0)
        await batcher.add(2)
        with pytest.raises(AddTimeout) as caught:
            await batcher.add(3, timeout=2.0)
        assert caught.value.retry_after == pytest.approx(57.0)


# -- the budget ------------------------------------------------------------------------------------


def test_a_budget_is_filled_by_first_tries_and_emptied_by_further_ones() -> None:
    budget = RetryBudget(0.2, reserve=2)
    assert [budget.withdraw() for _ in range(3)] == [True, True, False]
    for _ in range(4):
        budget.deposit()
    assert not budget.withdraw()
    budget.deposit()
    assert budget.withdraw()
    for _ in range(100):
        budget.deposit()
    assert budget.tokens == 2.0
    assert repr(budget) == "RetryBudget(share=0.2, reserve=2)"


async def test_an_empty_budget_is_an_outage_with_one_probe(fake_clock: FakeClock) -> None:
    """design 3.4: no item is lost or fails; all batches continue when the probe has succeeded."""
    broken = True
    calls: list[tuple[float, int]] = []

    async def destination(batch: Batch[int]) -> None:
        calls.append((fake_clock.now(), batch.attempt))
        await asyncio.sleep(0.01)
        if broken:
            raise AGAIN

    budget = RetryBudget(0.1, reserve=3)
    sink = stack(destination, Retry(attempts=50, backoff=fixed(5.0), budget=budget))
    async with Batcher(
        sink, limits=Limits(max_items=1, workers=20), shutdown_deadline=500.0
    ) as batcher:
        receipts = [await batcher.submit(item) for item in range(20)]
        await fake_clock.advance(40.0)
        assert len([call for call in calls if call[1] == 1]) == 20
        assert len([call for call in calls if call[1] > 1]) <= 3 + 2 + 40 / 5
        assert batcher.tally().backing_off >= 19
        broken = False
        assert set(await gather(receipts)) == {Outcome.DELIVERED}
        assert fake_clock.now() < 200.0
    for when in {when for when, attempt in calls if attempt > 1 and 10.0 < when < 40.0}:
        assert sum(1 for call in calls if call[0] == when) == 1


async def test_a_probe_that_runs_out_of_attempts_hands_the_probe_on(fake_clock: FakeClock) -> None:
    sink = FlakySink[str](12, AGAIN)
    budget = RetryBudget(0.01, reserve=1)
    budget.withdraw()
    retried = stack(sink, Retry(attempts=3, backoff=fixed(1.0), budget=budget))
    errors = await asyncio.gather(*(send(retried, RowBatch([item])) for item in "abcdef"))
    assert [len(found) for found in errors].count(0) >= 2
    times = started(sink)
    assert len(times) == len(sink.calls) > 12


async def test_a_permanent_error_of_the_probe_ends_the_outage(fake_clock: FakeClock) -> None:
    sink = ScriptedSink[str]([fail(AGAIN), fail(PermanentError("bad row")), ok()])
    budget = RetryBudget(0.01, reserve=1)
    budget.withdraw()
    retried = stack(sink, Retry(backoff=fixed(1.0), budget=budget))
    first = asyncio.create_task(send(retried, RowBatch("a")))
    await asyncio.sleep(1.5)
    assert await send(retried, RowBatch("b")) == {}
    assert isinstance((await first)[0], PermanentError)
    assert started(sink) == [0.0, 2.0, 2.0]


async def test_first_tries_of_a_divided_batch_need_no_budget(fake_clock: FakeClock) -> None:
    """An item that was sent again by itself costs; those behind it have not failed by themselves."""
    answers: list[BaseException] = [InterruptedError()] * 4  # the last one of an item alone

    async def destination(batch: Batch[int]) -> None:
        if answers:
            raise answers.pop()

    budget = RetryBudget(0.01, reserve=1)
    retry = Retry(backoff=fixed(1.0), budget=budget, classify=lambda _: ErrorClass.DEADLOCK)
    assert await send(stack(destination, retry), RowBatch(range(3))) == {}
    assert budget.tokens < 1.0
    assert fake_clock.now() == 4.0


async def test_one_budget_for_several_retries(fake_clock: FakeClock) -> None:
    budget = RetryBudget(0.01, reserve=1)
    sinks = [FlakySink[str](1, AGAIN) for _ in range(2)]
    for sink in sinks:
        assert (
            await send(stack(sink, Retry(backoff=fixed(1.0), budget=budget)), RowBatch("x")) == {}
        )
    assert started(sinks[0]) == [0.0, 1.0]
    assert started(sinks[1]) == [1.0, 3.0]  # its own backoff, then that of a probe
    assert budget.tokens < 1.0


async def test_a_shutdown_needs_no_budget(fake_clock: FakeClock) -> None:
    """batcher/4b.3: one immediate last attempt."""
    budget = RetryBudget(0.01, reserve=1)
    budget.withdraw()
    sink = FlakySink[str](1, AGAIN)
    async with Batcher(
        stack(sink, Retry(backoff=fixed(60.0), budget=budget)), limits=Limits(max_items=1)
    ) as batcher:
        receipt = await batcher.submit("x")
        await fake_clock.advance(1.0)
        await batcher.shutdown()
        assert await receipt is Outcome.DELIVERED
    assert started(sink) == [0.0, 1.0]


def test_a_budget_travels_as_a_description() -> None:
    budget = RetryBudget(0.5, reserve=7)
    budget.withdraw()
    assert cloudpickle.loads(cloudpickle.dumps(budget)).tokens == 7.0


# -- jitter ----------------------------------------------------------------------------------------


def draws(backoff: Backoff, tries: int, waited: float = 0.0) -> list[float]:
    return [backoff(tries, None, waited) for _ in range(10_000)]


def test_equal_jitter_stays_in_the_upper_half() -> None:
    """B-T16, batcher/B26: ten thousand seeded draws; the cap holds."""
    backoff = Backoff(jitter="equal", longest=1.0, rng=random.Random(7))
    for tries, bound in ((1, 0.1), (3, 0.4), (40, 1.0)):
        found = draws(backoff, tries)
        assert bound / 2 <= min(found) < 0.505 * bound
        assert 0.995 * bound < max(found) <= bound


def test_decorrelated_jitter_grows_from_the_wait_before() -> None:
    """B-T16, batcher/B26."""
    backoff = Backoff(jitter="decorrelated", base=0.1, longest=2.0, rng=random.Random(7))
    for waited, most in ((0.0, 0.1), (0.1, 0.3), (0.5, 1.5), (1.9, 2.0)):
        found = draws(backoff, 5, waited)
        assert min(found) >= 0.1
        assert 0.99 * most < max(found) <= most + 1e-12


async def test_a_series_remembers_its_last_wait(fake_clock: FakeClock) -> None:
    waits: list[float] = []

    class Top(random.Random):
        def uniform(self, a: float, b: float) -> float:
            waits.append(b)
            return b

    sink = FlakySink[str](4, AGAIN)
    await send(
        stack(
            sink, Retry(backoff=Backoff(jitter="decorrelated", base=1.0, longest=20.0, rng=Top()))
        ),
        RowBatch("x"),
    )
    assert waits == [1.0, 3.0, 9.0, 27.0]
    assert started(sink) == [0.0, 1.0, 4.0, 13.0, 33.0]


async def test_without_jitter_waits_equal_the_schedule(fake_clock: FakeClock) -> None:
    """B-T15."""
    sink = FlakySink[str](4, AGAIN)
    await send(
        stack(sink, Retry(backoff=Backoff(jitter="none", base=1.0, longest=3.0))), RowBatch("x")
    )
    assert started(sink) == [0.0, 1.0, 3.0, 6.0, 9.0]


def test_the_same_seed_gives_the_same_waits() -> None:
    one, two = (Backoff(rng=random.Random(3)) for _ in range(2))
    assert draws(one, 4) == draws(two, 4)


@pytest.mark.parametrize("jitter", ["full", "equal", "decorrelated", "none"])
def test_a_base_of_nothing_waits_for_nothing(jitter: Any) -> None:
    """B-T16."""
    assert Backoff(base=0, jitter=jitter)(3) == 0.0


# -- classifiers -----------------------------------------------------------------------------------


def raised_from(cause: BaseException) -> BaseException:
    error = RuntimeError("a client library's own")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "wrap", [lambda error: error, raised_from, lambda error: raised_from(raised_from(error))]
)
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(), ErrorClass.UNAVAILABLE),
        (socket.gaierror(), ErrorClass.UNAVAILABLE),
        (ConnectionResetError(), ErrorClass.TRANSIENT),
        (BrokenPipeError(), ErrorClass.TRANSIENT),
        (TimeoutError(), ErrorClass.TRANSIENT),
        (asyncio.IncompleteReadError(b"", 4), ErrorClass.TRANSIENT),
        (EOFError(), ErrorClass.TRANSIENT),
        (ValueError(), None),
        (OSError(), None),
    ],
)
def test_errors_of_the_network(
    error: BaseException, expected: ErrorClass | None, wrap: Any
) -> None:
    """B-T17, batcher/B25: also if a client has wrapped them."""
    assert classify_network(wrap(error)) is expected


def test_errors_that_go_round_in_a_circle_are_looked_at_once() -> None:
    one, two = ValueError(), KeyError()
    one.__cause__, two.__cause__ = two, one
    assert classify_network(one) is None


def test_classifiers_compose() -> None:
    """B-T17: the first classifier that knows the error decides; if none does, the result is `None`,
    and the built-in ones are used.
    """

    def mine(error: BaseException) -> ErrorClass | None:
        return ErrorClass.PERMANENT if isinstance(error, ConnectionResetError) else None

    both = first_of(mine, classify_network)
    assert both(ConnectionResetError()) is ErrorClass.PERMANENT
    assert both(ConnectionRefusedError()) is ErrorClass.UNAVAILABLE
    assert both(ValueError()) is None
    assert classified(AGAIN, both) is ErrorClass.TRANSIENT
    assert cloudpickle.loads(cloudpickle.dumps(both))(TimeoutError()) is ErrorClass.TRANSIENT


async def test_a_breaker_outside_sees_errors_as_the_retry_does(fake_clock: FakeClock) -> None:
    """B-T21."""
    retry = Retry(
        classify=lambda error: ErrorClass.PERMANENT if isinstance(error, ValueError) else None
    )
    sink = CircuitBreaker(None, consecutive=1, when_open="raise")(
        stack(FlakySink[str](1, ValueError("bad row")), retry)
    )
    assert len(await send(sink, RowBatch("x"))) == 1
    assert sink.state.value == "closed"


async def test_a_part_that_succeeds_ends_the_outage_of_a_budget(fake_clock: FakeClock) -> None:
    sink = ScriptedSink[str]([fail(AGAIN), partial({1: AGAIN}), ok(), ok()])
    budget = RetryBudget(0.5, reserve=1)
    budget.withdraw()
    retried = stack(sink, Retry(backoff=fixed(1.0), budget=budget))
    first = asyncio.create_task(send(retried, RowBatch("ab")))
    await asyncio.sleep(1.5)
    second = asyncio.create_task(send(retried, RowBatch("c")))
    assert (await first, await second) == ({}, {})
    assert [(call.started, call.items) for call in sink.calls[:3]] == [
        (0.0, ("a", "b")),
        (2.0, ("a", "b")),
        (2.0, ("c",)),
    ]


async def test_each_first_try_pays_into_the_budget(fake_clock: FakeClock) -> None:
    """Five successful batches pay for one further attempt."""
    budget = RetryBudget(0.2, reserve=1)
    budget.withdraw()
    steps: list[Any] = [*[ok() for _ in range(4)], fail(AGAIN)]
    sink = ScriptedSink[int](steps)
    retried = stack(sink, Retry(backoff=fixed(1.0), budget=budget))
    for item in range(5):
        assert await send(retried, RowBatch([item])) == {}
    assert started(sink) == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Retry(max_seconds=0), "max_seconds=0"),
        (lambda: Retry(budget=5), "budget=5: must be a RetryBudget"),  # type: ignore[arg-type]
        (lambda: RetryBudget(0), "share=0"),
        (lambda: RetryBudget(1.5), "share=1.5"),
        (lambda: RetryBudget(reserve=0), "reserve=0"),
        (
            lambda: Backoff(jitter="some"),  # type: ignore[arg-type]
            "jitter='some': must be one of 'full', 'equal', 'decorrelated', 'none'",
        ),
    ],
)
def test_bad_arguments_are_named(make: Any, message: str) -> None:
    """B-T30."""
    with pytest.raises(ConfigError, match=message):
        make()
