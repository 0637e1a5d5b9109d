"""The supervision of running handlers: timeouts, deaf handlers, blocked loops, extended
deadlines.

White box: the clock of one handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from consuming import PROMPT, consume, records
from watch_help import running

from sluicegate import Ack, Backoff, Batcher, Consumer, RetryPolicy, flow
from sluicegate.consumer import InFlight, MemoryLog, MemorySource, SourceCapabilities
from sluicegate.consumer.handling.results import HandlerTimeout
from sluicegate.consumer.handling.timeouts import HandlerClock
from sluicegate.consumer.handling.workers import Slot
from sluicegate.consumer.operating.report import WaitReason
from sluicegate.errors import StoppedError
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate import Message
    from sluicegate._core.clock import TimerHandle
    from sluicegate.testing import FakeClock

AT_ONCE = RetryPolicy(
    attempts=4, unlisted_attempts=4, backoff=Backoff(base=1e-06, longest=1e-06, jitter="none")
)


# -- timeouts --------------------------------------------------------------------------------------


async def test_a_handler_is_cut_after_its_timeout_and_its_neighbours_are_not(
    fake_clock: FakeClock,
) -> None:
    """O-T16: one handler hangs. It has failed with a counted attempt, and is retried."""
    lasted: list[float] = []
    errors: list[BaseException | None] = []
    handled: list[bytes] = []

    async def handle(message: Message) -> None:
        if message.value == b"hangs":
            errors.append(message.attempts.error)
            began = fake_clock.now()
            try:
                await asyncio.sleep(1000.0)
            finally:
                lasted.append(fake_clock.now() - began)
        await asyncio.sleep(0.9)
        handled.append(message.value)

    given = records(("a", b"1"), ("b", b"hangs"), ("b", b"2"), ("c", b"3"))
    ran = await consume(fake_clock, given, handle, timeout=1.0)
    assert len(lasted) == PROMPT.attempts
    assert all(1.0 <= seconds <= 1.1 + 1e-9 for seconds in lasted)
    assert errors[0] is None
    assert isinstance(errors[1], HandlerTimeout)
    assert sorted(handled) == [b"1", b"2", b"3"]
    assert (ran.report.counts.acked, ran.report.counts.terminated, ran.position) == (3, 1, 4)
    assert ran.report.counts.deaf == 0


@pytest.mark.parametrize("timeout", [0.001, 0.03, 1.0, 60.0])
async def test_no_handler_is_cut_before_its_timeout(fake_clock: FakeClock, timeout: float) -> None:
    """Each handler is sampled, so a continuously busy worker must not look like one long
    handler.
    """

    async def handle(message: Message) -> None:
        await asyncio.sleep(timeout * 0.99)

    given = records(*(("a", b"%d" % place) for place in range(30)))
    ran = await consume(fake_clock, given, handle, timeout=timeout)
    assert (ran.report.counts.acked, ran.report.counts.naks) == (30, 0)


async def test_a_message_that_is_tried_again_in_the_same_worker_begins_anew(
    fake_clock: FakeClock,
) -> None:
    errors: list[BaseException | None] = []

    async def handle(message: Message) -> None:
        errors.append(message.attempts.error)
        await asyncio.sleep(0.6)
        if message.attempt < 4:
            raise KeyError(message.attempt)

    ran = await consume(
        fake_clock, records(("a", b"1")), handle, timeout=1.0, retry=AT_ONCE, concurrency=1
    )
    assert [type(error) for error in errors] == [type(None), KeyError, KeyError, KeyError]
    assert ran.report.counts.acked == 1


async def test_in_progress_begins_the_timeout_again(fake_clock: FakeClock) -> None:
    """O-T17: a long handler that reports progress is not cut until it stops reporting."""
    began: list[float] = []
    ended: list[float] = []

    async def handle(message: Message) -> None:
        began.append(fake_clock.now())
        for _ in range(10):
            await asyncio.sleep(0.8)
            message.in_progress()
        try:
            await asyncio.sleep(1000.0)
        finally:
            ended.append(fake_clock.now())

    ran = await consume(
        fake_clock, records(("a", b"1")), handle, timeout=1.0, retry=RetryPolicy(attempts=1)
    )
    assert 9.0 <= ended[0] - began[0] <= 9.1 + 1e-9
    assert (ran.report.counts.naks, ran.report.counts.terminated) == (1, 1)


async def test_a_timeout_covers_the_steps(fake_clock: FakeClock) -> None:
    async def hang(message: Message) -> None:
        await asyncio.sleep(1000.0)

    async def handle(message: Message) -> None:
        """Do nothing."""

    ran = await consume(fake_clock, records(("a", b"1")), handle, timeout=1.0, steps=[hang])
    assert (ran.report.counts.naks, ran.report.counts.terminated) == (2, 1)


# -- deaf handlers ---------------------------------------------------------------------------------


async def swallow(until: asyncio.Event) -> None:
    while not until.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await until.wait()


@pytest.mark.parametrize(("answer", "naks"), [(None, 1), (Ack(), 0)])
async def test_a_deaf_handler_keeps_its_key_and_is_reported_once(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture, answer: Ack | None, naks: int
) -> None:
    """consumer/C:F4: its key is released when it ends, not earlier. Only an explicit `Ack()` counts
    then.
    """
    end = asyncio.Event()
    begun: list[bytes] = []

    async def handle(message: Message) -> Ack | None:
        begun.append(message.value)
        if message.value == b"deaf" and message.attempt == 1:
            await swallow(end)
            return answer
        return None

    log = MemoryLog(records(("a", b"deaf"), ("a", b"behind"), ("b", b"other")))
    async with running(fake_clock, log, handle, timeout=1.0, retry=PROMPT) as consumer:
        await fake_clock.advance(60.0)
        assert begun == [b"deaf", b"other"]
        assert consumer.stats().counts.deaf == 1
        (cause,) = consumer.explain().partitions[0].causes
        assert cause.reason is WaitReason.DEAF
        end.set()
        await fake_clock.advance(1.0)
        assert begun == [b"deaf", b"other", *[b"deaf"] * naks, b"behind"]
        counts = consumer.stats().counts
    assert (counts.acked, counts.naks, counts.deaf) == (3, naks, 1)
    reports = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage().count("orders/0@0") for record in reports] == [1]


async def test_a_handler_in_its_grace_is_not_called_deaf(fake_clock: FakeClock) -> None:
    async def handle(message: Message) -> None:
        try:
            await asyncio.sleep(1000.0)
        finally:
            await asyncio.sleep(0.09)

    ran = await consume(fake_clock, records(("a", b"1")), handle, timeout=1.0)
    assert (ran.report.counts.deaf, ran.report.counts.naks) == (0, 2)


async def test_a_thread_keeps_its_key_until_it_returns(fake_clock: FakeClock) -> None:
    """A thread cannot be stopped, so no other handler of the key may run beside it."""
    begun: list[bytes] = []
    entered, leave = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        begun.append(message.value)
        if message.value == b"slow" and message.attempt == 1:
            entered.set()
            assert leave.wait(10.0)

    log = MemoryLog(records(("a", b"slow"), ("a", b"behind")))
    source = MemorySource(log, ends=True, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, timeout=1.0, retry=PROMPT)
    async with consumer:
        run = asyncio.get_running_loop().create_task(consumer.run(handle))
        with fake_clock.external():
            await asyncio.get_running_loop().run_in_executor(None, entered.wait, 10.0)
        await fake_clock.advance(5.0, wait_for_threads=False)
        assert begun == [b"slow"]
        assert consumer.stats().counts.deaf == 1
        leave.set()
        report = await run
    assert begun == [b"slow", b"slow", b"behind"]
    assert (report.counts.acked, report.counts.naks) == (2, 1)


# -- a blocked loop --------------------------------------------------------------------------------


class Blockable:
    """A clock on which test code can block the event loop."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._blocked = 0.0

    def block(self, seconds: float) -> None:
        """Spend time without running other tasks."""
        self._blocked += seconds

    def now(self) -> float:
        return self._clock.now() + self._blocked

    def wall_time(self) -> float:
        return self._clock.wall_time() + self._blocked

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def call_at(self, when: float, callback: Callable[[], object]) -> TimerHandle:
        return self._clock.call_at(when - self._blocked, callback)

    def timeout_at(self, when: float | None) -> asyncio.Timeout:
        return self._clock.timeout_at(None if when is None else when - self._blocked)


async def test_a_handler_that_blocks_the_loop_is_named_and_harms_no_other(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """O-T16: the seconds in which nothing could run count towards no handler's timeout."""
    clock = Blockable(fake_clock)

    async def handle(message: Message) -> None:
        if message.value == b"blocks":
            await asyncio.sleep(0.2)
            clock.block(5.0)
        await asyncio.sleep(0.7)

    log = MemoryLog(records(("a", b"blocks"), ("b", b"other")))
    source = MemorySource(log, ends=True, clock=clock)
    report = await Consumer(source, clock=clock, timeout=1.0, retry=PROMPT).run(handle)
    assert (report.counts.acked, report.counts.naks) == (2, 0)
    warnings = [
        record.getMessage() for record in caplog.records if "blocked" in record.getMessage()
    ]
    assert len(warnings) == 1
    assert "blocked for 5 s" in warnings[0]
    assert "orders/0@0" in warnings[0]


@pytest.mark.parametrize("kind", ["run", "run_batch", "flow.pipe"])
async def test_a_handler_that_begins_and_ends_in_the_blocked_time_is_named_first(
    kind: str, fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """No sample finds it running."""
    clock = Blockable(fake_clock)

    def blocks(values: list[object]) -> None:
        if b"blocks" in values:
            clock.block(5.0)

    async def handle(message: Message) -> None:
        await clock.sleep(2.0 if message.offset == 0 else 1.0)
        blocks([message.value])

    async def handle_batch(messages: list[Message]) -> None:
        await clock.sleep(1.0)
        blocks([message.value for message in messages])

    async def transform(message: Message) -> None:
        await clock.sleep(1.0)
        blocks([message.value])

    log = MemoryLog(records(("a", b"other"), ("b", b"blocks")))
    source = MemorySource(log, ends=True, clock=clock)
    batcher = Batcher(MemorySink[object](), clock=clock)
    ways: dict[str, Callable[[], Any]] = {
        "run": lambda: Consumer(source, clock=clock).run(handle),
        "run_batch": lambda: Consumer(source, clock=clock).run_batch(handle_batch, size=1),
        "flow.pipe": lambda: flow.pipe(source, batcher, transform).run(),
    }
    await ways[kind]()
    warnings = [text for text in caplog.messages if "was blocked for" in text]
    assert len(warnings) == 1
    named = warnings[0].partition("during the handling of ")[2].partition(". ")[0]
    assert "orders/0@1" in named.split(", ")[: 1 if kind.startswith("run") else 2]


async def test_many_messages_are_not_all_named(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Blockable(fake_clock)

    async def handle(message: Message) -> None:
        await asyncio.sleep(0.2)
        clock.block(1.0)
        await asyncio.sleep(0.7)

    log = MemoryLog(records(*((place, b"") for place in range(20))))
    source = MemorySource(log, ends=True, clock=clock)
    await Consumer(source, clock=clock).run(handle)
    (warning,) = [
        record.getMessage() for record in caplog.records if "blocked" in record.getMessage()
    ]
    assert warning.count("orders/0@") == 5


# -- the source's own deadlines --------------------------------------------------------------------


@pytest.mark.parametrize("extends", [True, False])
async def test_held_records_are_extended_at_the_source(
    fake_clock: FakeClock, extends: bool
) -> None:
    """O-T17: running, queued behind a running one, backing off, and fetched but not yet
    admitted.
    """
    log = MemoryLog(records(("a", b"slow"), ("a", b"2"), ("b", b"fails"), ("c", b"big" * 100)))
    can = SourceCapabilities(extend_every=1.0 if extends else None)
    source = MemorySource(log, ends=True, ack_wait=3.0, capabilities=can, clock=fake_clock)

    async def handle(message: Message) -> None:
        if message.value == b"slow":
            await asyncio.sleep(10.0)
        if message.value == b"fails" and message.attempt == 1:
            raise ValueError

    retry = RetryPolicy(backoff=Backoff(base=8.0, longest=8.0, jitter="none"))
    consumer = Consumer(source, clock=fake_clock, retry=retry, in_flight=InFlight(bytes=100))
    report = await consumer.run(handle)
    assert report.counts.acked == 4
    assert bool(source.redelivered) is not extends


@pytest.mark.parametrize("tells", [True, False])
async def test_in_progress_extends_the_deadline_of_the_source(
    fake_clock: FakeClock, tells: bool
) -> None:
    """O-T17."""
    log = MemoryLog(records(("a", b"1")))
    source = MemorySource(log, ack_wait=3.0, capabilities=SourceCapabilities(), clock=fake_clock)

    async def handle(message: Message) -> None:
        for _ in range(5):
            await asyncio.sleep(2.0)
            if tells:
                message.in_progress()

    async with running(fake_clock, source, handle) as consumer:
        await fake_clock.advance(10.0)
        assert consumer.stats().counts.acked == 1
    assert bool(source.redelivered) is not tells


async def test_a_source_that_cannot_extend_is_reported_and_no_handler_fails(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(MemorySource):
        def extend(self, records: object) -> None:
            raise ConnectionError("gone")

    source = Broken(
        MemoryLog(records(("a", b"1"))),
        ends=True,
        capabilities=SourceCapabilities(extend_every=1.0),
        clock=fake_clock,
    )

    async def handle(message: Message) -> None:
        message.in_progress()
        await asyncio.sleep(1.5)

    report = await Consumer(source, clock=fake_clock).run(handle)
    assert (report.counts.acked, report.counts.naks) == (1, 0)
    assert [record.getMessage().count("ConnectionError: gone") for record in caplog.records] == [
        1,
        1,
    ]


# -- the pure part ---------------------------------------------------------------------------------


async def in_a_slot(running: list[Message]) -> Slot:
    slot = Slot()
    slot.task = asyncio.current_task()
    slot.running = running
    return slot


async def test_a_slot_is_overdue_from_its_first_look_on(fake_clock: FakeClock) -> None:
    slot, clock = await in_a_slot([]), HandlerClock(1.0, 0.1)
    assert clock.look(5.0, [slot]) == ([], [], 6.0)
    assert clock.look(5.9, [slot]) == ([], [], 6.0)
    clock.skip(2.0)
    assert clock.look(6.5, [slot]) == ([], [], 8.0)
    assert clock.look(8.0, [slot]).overdue == [slot]
    slot.running = []  # another batch
    assert clock.look(8.5, [slot]) == ([], [], 9.5)
    slot.running = None
    assert clock.look(9.5, [slot]) == ([], [], float("inf"))


async def test_a_slot_that_is_cut_is_deaf_after_its_grace(fake_clock: FakeClock) -> None:
    slot, clock = await in_a_slot([]), HandlerClock(None, 0.1)
    clock.look(0.0, [slot])
    slot.cut(StoppedError("cut"))
    assert clock.look(5.0, [slot]) == ([], [], 5.1)
    assert clock.look(5.1, [slot]).deaf == [slot]
    assert (slot.turn_deaf(), slot.turn_deaf(), slot.is_deaf) == (True, False, True)
    slot.take_cut()
    await slot.settle_down()
    assert not slot.is_deaf
