"""The circuit breaker around sinks: which calls are admitted, which count, and which wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
import tenacity

from sluicegate import (
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
    Timeout,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    gather,
    send,
    stack,
)
from sluicegate.errors import CircuitOpenError, StoppedError
from sluicegate.testing import (
    BlockingSink,
    FakeSink,
    FlakySink,
    ScriptedSink,
    fail,
    hang,
    ignore_cancel,
    partial,
    slow,
)

if TYPE_CHECKING:
    from sluicegate import Sink
    from sluicegate.testing import FakeClock

DOWN = UnavailableError("refused")


def breaker(**changes: Any) -> CircuitBreaker:
    """A breaker that opens at the second failure in a row, for ten seconds."""
    rules: dict[str, Any] = {
        "failure_rate": None,
        "consecutive": 2,
        "open_for": 10.0,
        "when_open": "raise",
    }
    return CircuitBreaker(**{**rules, **changes})


async def write(sink: Sink[Any], *items: Any) -> BaseException | None:
    """The error of the first item."""
    return (await send(sink, RowBatch(items or "x"))).get(0)


def state(sink: Any) -> str:
    return str(sink.state.value)


async def test_open_means_not_called_and_one_probe_decides(fake_clock: FakeClock) -> None:
    """B-T20, batcher/B29."""
    inner = FlakySink[Any](3, DOWN)
    sink = stack(inner, breaker())
    assert [await write(sink) for _ in range(2)] == [DOWN, DOWN]
    error = await write(sink)
    assert isinstance(error, CircuitOpenError)
    assert error.retry_after == 10.0
    assert (len(inner.calls), state(sink)) == (2, "open")
    await fake_clock.advance(10.0)
    assert await write(sink) is DOWN
    assert (len(inner.calls), state(sink)) == (3, "open")
    await fake_clock.advance(19.0)
    error = await write(sink)
    assert isinstance(error, CircuitOpenError)
    assert error.retry_after == pytest.approx(1.0)
    await fake_clock.advance(1.0)
    assert await write(sink) is None
    assert (len(inner.calls), state(sink)) == (4, "closed")


async def test_one_of_fifty_concurrent_callers_is_the_probe(fake_clock: FakeClock) -> None:
    """Half open: the others fail at once."""
    inner = BlockingSink[int]()
    failing = FlakySink[int](2, DOWN)

    async def either(batch: Batch[int]) -> Any:
        return await (failing if len(failing.calls) < 2 else inner).write(batch)

    sink = stack(either, breaker())
    await write(sink, -1)
    await write(sink, -1)
    await fake_clock.advance(10.0)
    tasks = [asyncio.create_task(write(sink, item)) for item in range(50)]
    await fake_clock.advance(0.0)
    assert len(inner.calls) == 1
    refused = [task.result() for task in tasks if task.done()]
    assert len(refused) == 49
    assert all(
        isinstance(error, CircuitOpenError) and error.retry_after == 0.0 for error in refused
    )
    inner.release()
    assert [error for error in await asyncio.gather(*tasks) if error is None] == [None]
    assert state(sink) == "closed"


async def test_fifty_waiting_callers_follow_the_probe_that_closed_it(fake_clock: FakeClock) -> None:
    inner = ScriptedSink[int]([fail(DOWN), fail(DOWN), slow(3.0)])
    sink = stack(inner, breaker(when_open="wait"))
    await write(sink, -1)
    await write(sink, -1)
    assert await asyncio.gather(*(write(sink, item) for item in range(50))) == [None] * 50
    assert [call.started for call in inner.calls] == [0.0, 0.0, 10.0, *[13.0] * 49]


COUNTED = [
    TransientError("t"),
    UnavailableError("u"),
    UnknownOutcomeError("o"),
    ValueError("unlisted"),
    ConnectionRefusedError(),
]


@pytest.mark.parametrize("error", COUNTED, ids=repr)
async def test_these_count_as_failures(fake_clock: FakeClock, error: BaseException) -> None:
    sink = stack(FlakySink[Any](2, error), breaker())
    await write(sink)
    await write(sink)
    assert state(sink) == "open"


@pytest.mark.parametrize(
    "error", [PermanentError("p"), ThrottledError("t"), StoppedError("s")], ids=repr
)
async def test_these_do_not(fake_clock: FakeClock, error: BaseException) -> None:
    sink = stack(FlakySink[Any](9, error), breaker(consecutive=1))
    for _ in range(9):
        assert await write(sink) is error
    assert state(sink) == "closed"


async def test_a_permanent_error_answers_a_probe_and_a_throttled_one_leaves_the_question_open(
    fake_clock: FakeClock,
) -> None:
    steps: list[Any] = [
        fail(DOWN),
        fail(DOWN),
        fail(ThrottledError("slow")),
        fail(PermanentError("bad row")),
    ]
    sink = stack(ScriptedSink[Any](steps), breaker())
    for _ in range(2):
        await write(sink)
    await fake_clock.advance(10.0)
    await write(sink)
    assert state(sink) == "half_open"
    await write(sink)
    assert state(sink) == "closed"


@pytest.mark.parametrize(
    ("failed", "expected"), [(1, "closed"), (4, "closed"), (5, "open"), (10, "open")]
)
async def test_a_partial_answer_is_a_failure_when_half_of_it_failed(
    fake_clock: FakeClock, failed: int, expected: str
) -> None:
    sink = stack(
        ScriptedSink[int](default=partial(dict.fromkeys(range(failed), TransientError("t")))),
        breaker(consecutive=1),
    )
    assert len(await send(sink, RowBatch(range(10)))) == failed
    assert state(sink) == expected


async def test_the_users_classifier_and_the_sinks_own_are_asked(fake_clock: FakeClock) -> None:
    class Own(FlakySink[Any]):
        def classify(self, error: BaseException) -> ErrorClass | None:
            return ErrorClass.PERMANENT if isinstance(error, ValueError) else None

    inner = stack(Own(9, ValueError("v")), breaker(consecutive=1))
    await write(inner)
    assert state(inner) == "closed"
    mine = stack(
        Own(9, ValueError("v")), breaker(consecutive=1, classify=lambda _: ErrorClass.TRANSIENT)
    )
    await write(mine)
    assert state(mine) == "open"


async def test_rates_over_a_window(fake_clock: FakeClock) -> None:
    steps: list[Any] = [fail(DOWN) if n % 2 else fail(PermanentError("p")) for n in range(20)]
    sink = stack(ScriptedSink[Any](steps), CircuitBreaker(0.5, when_open="raise"))
    for _ in range(19):
        await write(sink)
        await fake_clock.advance(1.0)
    assert state(sink) == "closed"
    await write(sink)
    assert state(sink) == "open"


async def test_slow_calls_open_it(fake_clock: FakeClock) -> None:
    rules = CircuitBreaker(None, slow_rate=0.8, slow_after=2.0, min_calls=5)
    sink = stack(ScriptedSink[Any]([slow(1.0)], default=slow(2.0)), rules)
    for _ in range(5):
        assert state(sink) == "closed"
        assert await write(sink) is None
    assert state(sink) == "open"


@pytest.mark.parametrize("after", [1.0, 4.0])
async def test_cancelling_is_neutral_and_gives_the_probe_back(
    fake_clock: FakeClock, after: float
) -> None:
    """batcher/4b.10: unless the call had taken so long that it counts as a slow one."""
    inner = ScriptedSink[Any]([fail(DOWN), fail(DOWN), hang()])
    sink = stack(inner, breaker(slow_rate=1.0, slow_after=3.0))
    for _ in range(2):
        await write(sink)
    await fake_clock.advance(10.0)
    probe = asyncio.create_task(write(sink))
    await fake_clock.advance(after)
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    assert state(sink) == ("half_open" if after < 3.0 else "open")
    assert isinstance(await write(sink), CircuitOpenError if after > 3.0 else type(None))


@pytest.mark.parametrize("slow_after", [None, 0.5])
async def test_a_cancellation_that_the_sink_made_an_answer_of_is_one_all_the_same(
    fake_clock: FakeClock, slow_after: float | None
) -> None:
    async def stubborn(batch: Batch[Any]) -> None:
        try:
            await asyncio.sleep(50.0)
        except asyncio.CancelledError:
            raise RuntimeError("connection lost") from None

    rate = None if slow_after is None else 1.0
    inner = stack(
        stubborn, breaker(consecutive=1, slow_rate=rate, slow_after=slow_after, min_calls=1)
    )
    await write(stack(inner, Timeout(1.0)))
    assert state(inner) == ("closed" if slow_after is None else "open")


async def test_inside_a_retry_it_sees_every_try(fake_clock: FakeClock) -> None:
    """B-T21, batcher/B31: four attempts are four calls."""
    inner = FlakySink[Any](9, TransientError("t"))
    guarded = breaker(consecutive=4)(inner)
    sink = stack(guarded, Retry(attempts=4, backoff=tenacity.wait_fixed(1.0)))
    assert isinstance(await write(sink), TransientError)
    assert len(inner.calls) == 4
    assert state(guarded) == "open"


async def test_outside_of_a_retry_it_sees_one_failure_per_series(fake_clock: FakeClock) -> None:
    """B-T21, batcher/B31: three series of four attempts are three calls."""
    inner = FlakySink[Any](99, TransientError("t"))
    sink = stack(inner, Retry(attempts=4, backoff=tenacity.wait_fixed(1.0)), breaker(consecutive=3))
    for series in range(3):
        assert state(sink) == "closed"
        await write(sink)
        assert len(inner.calls) == 4 * (series + 1)
    assert isinstance(await write(sink), CircuitOpenError)
    assert len(inner.calls) == 12


async def test_an_open_circuit_uses_up_no_attempts(fake_clock: FakeClock) -> None:
    """design 3.4: `when_open="raise"` inside a Retry of two attempts; the open time is spent
    waiting, without attempts.
    """
    inner = FlakySink[Any](1, TransientError("t"))
    sink = stack(inner, breaker(consecutive=1), Retry(attempts=2, backoff=tenacity.wait_fixed(1.0)))
    assert await write(sink) is None
    assert [call.started for call in inner.calls] == [0.0, 10.0]


async def test_a_probe_elsewhere_is_no_reason_to_ask_without_end(fake_clock: FakeClock) -> None:
    """Also with a backoff of zero: while one batch probes, the others do not keep the loop busy."""
    calls: list[float] = []
    inner = ScriptedSink[str]([fail(DOWN), slow(3.0)])
    guarded = breaker(consecutive=1)(inner)

    async def counted(batch: Batch[Any]) -> Any:
        calls.append(fake_clock.now())
        errors = await send(guarded, batch)
        if errors:
            raise errors[0]

    first, second = (
        stack(counted, Retry(backoff=tenacity.wait_fixed(0.0))),
        stack(counted, Retry(backoff=tenacity.wait_fixed(0.0))),
    )
    errors = await asyncio.gather(write(first), write(second))
    assert set(errors) == {None}
    assert len(calls) < 400


async def test_who_waits_for_an_open_circuit_holds_no_slot_and_pushes_back(
    fake_clock: FakeClock,
) -> None:
    """batcher/B-T38, design 3.3: nothing fails; the items back off inside the ledger."""
    inner = FlakySink[Any](2, DOWN)
    sink = stack(inner, breaker(when_open="wait"), Retry(backoff=tenacity.wait_fixed(0.0)))
    async with Batcher(sink, limits=Limits(max_items=1, workers=3)) as batcher:
        receipts = [await batcher.submit(item) for item in range(9)]
        await fake_clock.advance(5.0)
        assert batcher.tally().backing_off == 9
        assert len(inner.calls) == 2
        assert set(await gather(receipts)) == {Outcome.DELIVERED}
    assert fake_clock.now() == pytest.approx(10.0, abs=0.1)


@pytest.mark.parametrize("when_open", ["wait", "raise"])
@pytest.mark.parametrize("workers", [1, 16])
@pytest.mark.parametrize("inside", [True, False])
async def test_an_outage_pushes_back_and_loses_nothing(
    fake_clock: FakeClock, workers: int, when_open: Any, *, inside: bool
) -> None:
    """B-T42, B-T60: with a breaker inside or outside of the retry, 120 s down; failed calls do not
    grow with the workers.
    """
    applied: list[int] = []
    failed = 0

    async def destination(batch: Batch[int]) -> None:
        nonlocal failed
        await asyncio.sleep(0.01)
        if 1.0 <= fake_clock.now() < 121.0:
            failed += 1
            raise DOWN
        applied.extend(batch)

    decorators = [breaker(consecutive=5, when_open=when_open, longest_open=10.0), Retry()]
    sink = stack(destination, Timeout(5.0), *(decorators if inside else reversed(decorators)))
    limits = Limits(max_items=125, workers=workers, max_pending_items=4_250)
    async with Batcher(sink, limits=limits, shutdown_deadline=1000.0) as batcher:
        for item in range(10_000):
            await batcher.add(item)
            if item % 250 == 0:
                await asyncio.sleep(0.1)
        await batcher.flush()
        assert fake_clock.now() < 145.0
    assert failed <= workers + 50
    assert batcher.report is not None
    assert batcher.report.tally.delivered == 10_000
    assert sorted(applied) == list(range(10_000))


async def test_a_shutdown_lets_what_waits_try_at_once_and_until_its_deadline(
    fake_clock: FakeClock,
) -> None:
    """batcher/4b.3: items that fail until the end because the destination is unavailable are
    unsent.
    """
    applied: list[int] = []

    async def down_for_one(batch: Batch[int]) -> None:
        calls.append((fake_clock.now(), batch[0]))
        if len(calls) == 1 or batch[0] == 1:
            raise TransientError("still down")
        applied.append(batch[0])

    calls: list[tuple[float, int]] = []
    sink = stack(
        down_for_one,
        breaker(consecutive=1, when_open="wait", open_for=500.0, longest_open=500.0),
        Retry(),
    )
    async with Batcher(sink, limits=Limits(max_items=1, workers=2)) as batcher:
        receipts = [await batcher.submit(item) for item in range(2)]
        await fake_clock.advance(1.0)
        report = await batcher.shutdown(deadline=25.0)
    assert [item for when, item in calls if when <= 1.0] == [0, 1, 0] or [
        item for when, item in calls if when <= 1.0
    ] == [0, 0, 1]
    assert 20 < len([item for _, item in calls if item == 1]) < 30
    assert calls[-1][0] > 24.5
    assert [receipt.outcome for receipt in receipts] == [Outcome.DELIVERED, Outcome.UNSENT]
    assert report.unsent == (1,)
    assert report.spent.destination["circuit_open"] == pytest.approx(report.seconds)


async def test_the_last_try_of_a_shutdown_keeps_what_is_final(fake_clock: FakeClock) -> None:
    inner = ScriptedSink[int](
        [slow(0.1, fail(DOWN)), fail(PermanentError("bad row")), fail(UnknownOutcomeError("cut"))]
    )
    sink = stack(inner, breaker(consecutive=1, when_open="wait"))
    async with Batcher(sink, limits=Limits(max_items=1, workers=1)) as batcher:
        receipts = [await batcher.submit(item) for item in range(3)]
        await fake_clock.advance(1.0)
        await batcher.shutdown()
    assert [receipt.outcome for receipt in receipts] == [
        Outcome.REJECTED,
        Outcome.REJECTED,
        Outcome.UNKNOWN,
    ]


async def test_a_deaf_call_is_neutral_too(fake_clock: FakeClock) -> None:
    inner = stack(ScriptedSink[Any]([ignore_cancel(5.0)]), breaker(consecutive=1))
    async with Batcher(stack(inner, Timeout(1.0)), limits=Limits(flush_timeout=60.0)) as batcher:
        receipt = await batcher.submit("x")
        with pytest.raises(Exception, match="unknown"):
            await receipt
        await fake_clock.advance(10.0)
        assert state(inner) == "closed"


async def test_each_application_and_each_opening_has_a_state_of_its_own(
    fake_clock: FakeClock,
) -> None:
    rules = breaker(consecutive=1)
    one, two = rules(FlakySink[Any](1, DOWN)), rules(FakeSink[Any]())
    async with one:
        await write(one)
        assert (state(one), state(two)) == ("open", "closed")
    assert state(one) == "closed"


async def test_the_state_does_not_travel(fake_clock: FakeClock) -> None:
    async def destination(batch: Batch[Any]) -> None:
        raise DOWN

    sink = stack(destination, breaker(consecutive=1))
    await write(sink)
    assert state(sink) == "open"
    assert state(cloudpickle.loads(cloudpickle.dumps(sink))) == "closed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"failure_rate": 0}, "failure_rate=0: must be a share"),
        ({"failure_rate": 1.5}, "failure_rate=1.5"),
        ({"failure_rate": None}, "failure_rate=None: must be given, or slow_rate or consecutive"),
        ({"slow_rate": 0.5}, r"slow_rate=0.5: must be given with slow_after \(None\)"),
        ({"slow_after": 1.0}, "slow_rate=None: must be given with slow_after"),
        ({"consecutive": 0}, "consecutive=0"),
        ({"window": 0}, "window=0"),
        ({"min_calls": 0}, "min_calls=0"),
        ({"open_for": -1}, "open_for=-1"),
        ({"open_for": 100}, "longest_open=60.0: must be at least open_for=100.0"),
        ({"when_open": "drop"}, "when_open='drop': must be one of 'wait', 'raise'"),
        ({"classify": 3}, "classify=3: must be a function"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    """B-T30."""
    with pytest.raises(ConfigError, match=message):
        CircuitBreaker(**arguments)
