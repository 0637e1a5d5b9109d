"""Starting while the destination is down: waiting for it in `__aenter__`, or in the background."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import (
    Batch,
    Batcher,
    BlockingBatcher,
    ConfigError,
    DrainTimeout,
    ItemFailed,
    Limits,
    Observer,
    Outcome,
    RefusedError,
    TransientError,
    UnavailableError,
)
from sluicegate.batcher import Adaptive
from sluicegate.errors import BatcherBroken

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from sluicegate.testing import FakeClock

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "keyed": {"key": lambda item: item},
    "tenants": {"tenant": lambda item: item % 3},
    "adaptive": {"adaptive": Adaptive()},
}
FOREVER = 10**9


class Destination:
    """Raises `error` for the first `down` openings; counts them, and keeps the written items."""

    def __init__(self, down: int = 0, error: Callable[[], BaseException] | None = None) -> None:
        self.down = down
        self.error = error or (lambda: ConnectionRefusedError("connection refused"))
        self.tries: list[float] = []
        self.open = self.closed = 0
        self.rows: list[Any] = []
        self.hangs = False

    async def __aenter__(self) -> None:
        self.tries.append(asyncio.get_running_loop().time())
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if len(self.tries) <= self.down:
            raise self.error()
        self.open += 1

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.open -= 1
        self.closed += 1

    async def write(self, batch: Batch[Any]) -> None:
        assert self.open == 1, "a batch before the opening"
        self.rows.extend(batch)


class Seen(Observer):
    """Records states and destinations."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_state(self, name: str, state: str) -> None:
        self.events.append(state)

    def on_destination(self, name: str, state: str, reason: str) -> None:
        self.events.append(f"destination {state}")


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


# -- eager -----------------------------------------------------------------------------------------


async def test_without_a_timeout_there_is_one_try(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    sink, last = Destination(down=1), Destination()
    with pytest.raises(ConnectionRefusedError):
        await Batcher(sink, last_resort=last).__aenter__()
    assert len(sink.tries) == 1
    assert (last.open, last.closed) == (0, 1)
    assert lines(caplog) == []


async def test_an_eager_batcher_waits_for_a_destination_that_is_down(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sink = Destination(down=4)
    async with Batcher(sink, open_timeout=30.0, clock=fake_clock) as batcher:
        (level, first), (end, last) = lines(caplog)
        assert level == "WARNING"
        assert "destination has been unavailable since" in first
        assert "(0 s): the sink cannot be opened: ConnectionRefusedError: conn" in first
        assert end == "INFO"
        assert "the destination is available again after" in last
        assert batcher.stats().state == "open"
        assert batcher.stats().destination.state == "available"
        assert len(sink.tries) == 5
        await batcher.add(1)
    assert sink.rows == [1]
    assert (sink.open, sink.closed) == (0, 1)


async def test_at_the_end_of_the_timeout_the_last_error_is_raised_and_nothing_stays(
    fake_clock: FakeClock,
) -> None:
    sink, last = Destination(down=FOREVER), Destination()
    batcher = Batcher(sink, last_resort=last, open_timeout=30.0, clock=fake_clock, name="audit")
    began = fake_clock.now()
    with pytest.raises(ConnectionRefusedError):
        await batcher.__aenter__()
    assert 29.0 < fake_clock.now() - began <= 30.0
    assert 8 <= len(sink.tries) <= 40
    assert (last.open, last.closed) == (0, 1)
    assert len(fake_clock.leftovers()) == 1, "more than this test"
    assert batcher.stats().state == "new"
    sink.down = 0
    async with batcher:
        await batcher.add(1)
    assert sink.rows == [1]


@pytest.mark.parametrize(
    "error",
    [
        lambda: RefusedError("no such table"),
        lambda: ConfigError("table='x': does not exist"),
        lambda: KeyError("a bug"),
    ],
)
async def test_an_error_that_waiting_does_not_repair_is_raised_at_once(
    fake_clock: FakeClock, error: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    sink = Destination(down=1, error=error)
    with pytest.raises(type(error())):
        await Batcher(sink, open_timeout=30.0).__aenter__()
    assert len(sink.tries) == 1
    assert lines(caplog) == []


async def test_an_opening_that_hangs_ends_with_the_timeout(fake_clock: FakeClock) -> None:
    sink = Destination()
    sink.hangs = True
    batcher = Batcher(sink, open_timeout=5.0, clock=fake_clock)
    with pytest.raises(TransientError, match="opening the sink did not end within 5 s"):
        await batcher.__aenter__()


async def test_a_cancelled_wait_leaves_nothing_open(fake_clock: FakeClock) -> None:
    sink, last = Destination(down=FOREVER), Destination()
    batcher = Batcher(sink, last_resort=last, open_timeout=600.0, clock=fake_clock)
    entering = asyncio.ensure_future(batcher.__aenter__())
    await fake_clock.advance(100.0)
    assert batcher.stats().state == "opening"
    assert batcher.stats().destination.state == "unavailable"
    assert 99.0 < batcher.stats().destination.seconds <= 100.0
    with pytest.raises(ConfigError, match="is opening; enter it once"):
        await batcher.__aenter__()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert (last.open, last.closed) == (0, 1)
    assert len(fake_clock.leftovers()) == 1, "more than this test"
    assert batcher.stats().state == "new"


# -- lazy ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lazy_batcher_takes_items_while_its_destination_is_down(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level(logging.INFO)
    sink, seen = Destination(down=FOREVER), Seen()
    limits = Limits(max_items=10, max_delay=0.1, workers=2)
    batcher = Batcher(
        sink, limits=limits, open="lazy", clock=fake_clock, observers=[seen], **KINDS[kind]
    )
    began = fake_clock.now()
    async with batcher:
        assert fake_clock.now() == began
        for number in range(100):
            await batcher.add(number)
        await fake_clock.advance(130.0)
        stats = batcher.stats()
        assert stats.state == "opening"
        assert stats.tally.inside == 100
        assert stats.in_flight_batches == 0
        assert stats.destination.state == "unavailable"
        assert stats.destination.seconds == 130.0
        assert stats.last_error is not None
        assert stats.last_error.error_class == "unavailable"
        assert (await batcher.flush(timeout=1.0)).remaining == 100
        told = [message for level, message in lines(caplog) if level == "WARNING"]
        assert [f"({seconds} s)" in line for seconds, line in zip((0, 60, 120), told, strict=True)]
        assert "100 items and 0 producers wait" in told[1]
        sink.down = 0
        assert (await batcher.flush(timeout=10.0)).complete
        assert batcher.stats().state == "open"
        assert "the destination is available again after 13" in lines(caplog)[-1][1]
        now = batcher.stats()
        assert now.workers >= stats.workers, "the wait was taken for overload"
        assert now.max_items >= stats.max_items
    assert sorted(sink.rows) == list(range(100))
    assert (sink.open, sink.closed) == (0, 1)
    assert seen.events == [
        "opening", "destination unavailable", "destination available", "open", "closing", "closed",
    ]  # fmt: skip
    assert max(b - a for a, b in zip(sink.tries, sink.tries[1:], strict=False)) <= 5.0


async def test_the_ledger_bounds_what_waits_for_the_opening(fake_clock: FakeClock) -> None:
    sink = Destination(down=FOREVER)
    limits = Limits(max_items=10, max_pending_items=20)
    async with Batcher(sink, limits=limits, open="lazy", clock=fake_clock) as batcher:
        assert [batcher.try_add(number) for number in range(21)] == [True] * 20 + [False]
        adding = asyncio.ensure_future(batcher.add(20))
        await fake_clock.advance(10.0)
        assert not adding.done()
        sink.down = 0
        await fake_clock.advance(5.0)
        assert adding.done()
    assert sink.rows == list(range(21))


@pytest.mark.parametrize(
    "error", [lambda: ConfigError("table='x': does not exist"), lambda: KeyError("a bug")]
)
async def test_what_an_operator_can_repair_is_an_error_and_tried_again(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture, error: Callable[[], BaseException]
) -> None:
    sink = Destination(down=FOREVER, error=error)
    async with Batcher(sink, open="lazy", clock=fake_clock) as batcher:
        await batcher.add(1)
        await fake_clock.advance(30.0)
        outages = [line for line in lines(caplog) if "destination has refused" in line[1]]
        assert [level for level, _ in outages] == ["ERROR"]
        assert f"the sink cannot be opened: {type(error()).__name__}" in outages[0][1]
        assert batcher.stats().destination.state == "refused"
        unlisted = [line for line in lines(caplog) if "unlisted" in line[1]]
        assert len(unlisted) == isinstance(error(), KeyError)
        sink.down = 0
    assert sink.rows == [1]


async def test_a_lazy_batcher_is_broken_at_the_end_of_its_timeout(fake_clock: FakeClock) -> None:
    sink = Destination(down=FOREVER)
    batcher = Batcher(sink, open="lazy", open_timeout=20.0, clock=fake_clock)
    with pytest.raises(
        DrainTimeout,
        match=r"\(ended by the failure .*refused\): .*the sink was never open: ConnectionRefused",
    ) as raised:
        async with batcher:
            receipt = await batcher.submit(1)
            await batcher.add(2)
            await fake_clock.advance(20.0)
            assert batcher.stats().state == "broken"
            with pytest.raises(BatcherBroken, match="connection refused"):
                await batcher.add(3)
            with pytest.raises(ItemFailed):
                await receipt
            assert receipt.outcome is Outcome.UNSENT
    report: Any = raised.value.report
    report.verify()
    assert report.unsent == (1, 2)
    assert report.seconds < 1.0
    assert (sink.open, sink.closed) == (0, 0)


# -- shutting down before it was open --------------------------------------------------------------


async def test_a_shutdown_uses_its_time_to_open_and_drain(fake_clock: FakeClock) -> None:
    sink = Destination(down=FOREVER)
    batcher = Batcher(sink, open="lazy", clock=fake_clock)
    await batcher.__aenter__()
    await batcher.add(1)
    await fake_clock.advance(60.0)
    tries = len(sink.tries)
    ending = asyncio.ensure_future(batcher.shutdown(20.0))
    await fake_clock.advance(0)
    assert len(sink.tries) == tries + 1, "no immediate try"
    await fake_clock.advance(15.0)
    sink.down = 0
    report = await ending
    assert report.complete
    assert report.never_opened == ""
    assert sink.rows == [1]
    assert (sink.open, sink.closed) == (0, 1)


@pytest.mark.parametrize("hangs", [False, True])
async def test_what_a_batcher_that_was_never_open_could_not_write_is_accounted_for(
    fake_clock: FakeClock, *, hangs: bool
) -> None:
    sink = Destination(down=FOREVER)
    sink.hangs = hangs
    batcher = Batcher(sink, open="lazy", clock=fake_clock, shutdown_deadline=10.0)
    began = fake_clock.now()
    with pytest.raises(DrainTimeout) as raised:
        async with batcher:
            await batcher.add_many(range(1200))
    assert fake_clock.now() - began <= 10.0
    report: Any = raised.value.report
    report.verify()
    assert report.unsent == tuple(range(1200))
    why = "no try to open it has ended" if hangs else "ConnectionRefusedError: connection refused"
    assert f"the sink was never open: {why}" in str(raised.value)
    assert len(fake_clock.leftovers()) == 1, "more than this test"


async def test_the_last_resort_is_open_from_the_beginning(fake_clock: FakeClock) -> None:
    sink, last = Destination(down=FOREVER), Destination()
    async with Batcher(
        sink, open="lazy", clock=fake_clock, last_resort=last, shutdown_deadline=10.0
    ) as batcher:
        assert last.open == 1
        await batcher.add_many(range(10))
    assert last.rows == list(range(10))
    assert batcher.tally().dead_lettered == 10
    assert (last.open, last.closed) == (0, 1)


async def test_an_empty_batcher_that_is_not_open_ends_at_once(fake_clock: FakeClock) -> None:
    sink = Destination(down=FOREVER)
    began = fake_clock.now()
    async with Batcher(sink, open="lazy", clock=fake_clock) as batcher:
        await fake_clock.advance(1.0)
    assert fake_clock.now() == began + 1.0
    assert batcher.report is not None
    assert batcher.report.complete
    assert len(fake_clock.leftovers()) == 1, "more than this test"
    sink.down = 0
    async with batcher:
        await batcher.add(1)
    assert sink.rows == [1]


async def test_a_cancelled_opening_breaks_the_batcher_and_is_told(fake_clock: FakeClock) -> None:
    """A program may cancel all tasks at its end; afterwards nothing would open the sink."""
    sink = Destination(down=FOREVER)
    batcher = Batcher(sink, open="lazy", clock=fake_clock)
    await batcher.__aenter__()
    await batcher.add(1)
    await fake_clock.advance(1.0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        if "opening" in task.get_name():
            task.cancel()
    await fake_clock.advance(1.0)
    with pytest.raises(BatcherBroken, match="the task that opens the sink was cancelled"):
        await batcher.add(2)
    report = await batcher.shutdown()
    assert report.unsent == (1,)


async def test_a_sink_that_cancels_its_own_opening_is_tried_again(fake_clock: FakeClock) -> None:
    sink = Destination(down=2, error=asyncio.CancelledError)
    async with Batcher(sink, open="lazy", clock=fake_clock) as batcher:
        await batcher.add(1)
    assert sink.rows == [1]


def test_a_batcher_for_threads_opens_lazily_as_well() -> None:
    sink = Destination(down=1, error=lambda: UnavailableError("starting"))
    with BlockingBatcher(sink, open="lazy") as batcher:
        assert batcher.deliver(1) is Outcome.DELIVERED
    with BlockingBatcher(Destination(down=1), open_timeout=10.0) as batcher:
        assert batcher.deliver(1) is Outcome.DELIVERED


def test_threads_get_back_what_a_lazy_batcher_could_not_open_for() -> None:
    sink = Destination(down=FOREVER)
    with (
        pytest.raises(DrainTimeout) as raised,
        BlockingBatcher(sink, open="lazy", open_timeout=0.2) as batcher,
    ):
        receipts = [batcher.submit(number) for number in range(10)]
        batcher.add_many(range(10, 1000))
        for receipt in receipts:
            with pytest.raises(ItemFailed):
                receipt.result()
        with pytest.raises(BatcherBroken):
            batcher.add(1000)
    report: Any = raised.value.report
    report.verify()
    assert report.unsent == tuple(range(1000))
    assert "ConnectionRefusedError" in report.never_opened


async def test_a_lazy_batcher_that_fails_in_its_shutdown_does_not_wait_for_the_deadline(
    fake_clock: FakeClock,
) -> None:
    sink, last = Destination(down=FOREVER), Destination()
    batcher = Batcher(
        sink, open="lazy", open_timeout=5.0, last_resort=last, clock=fake_clock, name="audit"
    )
    await batcher.__aenter__()
    await batcher.add_many([1, 2])
    await fake_clock.advance(1.0)
    report = await batcher.shutdown(60.0)
    assert report.seconds < 5.0
    assert "the failure that had broken the batcher" in report.ended_by
    assert last.rows == [1, 2]
    assert report.tally.dead_lettered == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"open": "later"}, "open='later': must be one of 'eager', 'lazy'"),
        ({"open_timeout": 0}, "open_timeout=0: must be more than 0 seconds"),
        ({"open_timeout": -1.0}, "open_timeout=-1.0"),
    ],
)
def test_a_bad_argument_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Batcher(Destination(), **given)
