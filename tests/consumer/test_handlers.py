"""Valid kinds of handlers, and handlers that must not harm their neighbours.

White box: how a function becomes a handler.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import TYPE_CHECKING, Any

import pytest
from consuming import PROMPT, consume, records
from kept_rows import KeptRows, KeptSink

from sluicegate import Ack, Batcher, ConfigError, Consumer, Nak, Terminate, flow
from sluicegate.consumer import (
    InFlight,
    MemoryLog,
    MemorySource,
    Poison,
    Record,
    Skip,
    decode,
    with_steps,
)
from sluicegate.consumer.handling.handlers import as_batch_handler, as_handler
from sluicegate.consumer.handling.workers import Slot, result_of_cut
from sluicegate.consumer.run import TaskCancelled
from sluicegate.errors import StoppedError
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate import Message
    from sluicegate.consumer import SourceRecord
    from sluicegate.testing import FakeClock

pytestmark = pytest.mark.usefixtures("fake_clock")


async def fine(message: Message) -> None:
    """Do nothing."""


async def fine_batch(messages: list[Message]) -> None:
    """Do nothing."""


class Callable_:
    async def __call__(self, message: Message) -> None:
        """Do nothing."""


async def generates(message: Message) -> Any:
    yield message


def generates_too(message: Message) -> Any:
    yield message


async def takes_none() -> None: ...


async def takes_two(message: Message, other: object) -> None: ...


def test_an_async_handler_is_called_as_it_is() -> None:
    partial, made = functools.partial(fine), Callable_()
    assert as_handler(fine) is fine
    assert as_handler(partial) is partial
    assert as_handler(made) is made


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (takes_none, "must take one argument"),
        (takes_two, "must take one argument"),
        (generates, "generator function"),
        (generates_too, "generator function"),
        (Callable_, "is a class"),
        ("handle", "must be a function"),
        (None, "must be a function"),
    ],
)
def test_what_is_no_handler_is_refused(given: object, rule: str) -> None:
    with pytest.raises(ConfigError, match=rf"handler=.*{rule}"):
        as_handler(given)


def test_a_coroutine_is_refused_and_closed() -> None:
    """Python would warn about a coroutine that is never awaited, and warnings are errors here."""
    with pytest.raises(ConfigError, match="is a coroutine; pass the function itself"):
        as_handler(takes_none())


def test_a_handler_of_single_messages_is_refused_for_batches() -> None:
    with pytest.raises(ConfigError, match=r"one message at a time; pass it to run"):
        as_batch_handler(with_steps(fine, decode(bytes)))
    assert as_batch_handler(fine) is fine


async def test_a_bad_handler_is_refused_before_anything_starts(fake_clock: FakeClock) -> None:
    source = MemorySource(MemoryLog(records(("a", b"1"))), ends=True, clock=fake_clock)
    async with Consumer(source, clock=fake_clock) as consumer:
        with pytest.raises(ConfigError, match="must take one argument"):
            await consumer.run(takes_none)  # type: ignore[arg-type]  # the mistake
        report = await consumer.run(fine)
    assert report.counts.acked == 1


async def test_receive_refuses_a_bad_handler_before_it_opens(fake_clock: FakeClock) -> None:
    source = MemorySource(MemoryLog(records(("a", b"1"))), ends=True, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock)
    with pytest.raises(ConfigError, match="must take one argument"):
        await consumer.run(takes_none)  # type: ignore[arg-type]  # the mistake
    report = await consumer.run(fine)  # it has not been opened before
    assert report.counts.acked == 1


async def test_a_plain_function_runs_in_a_thread(fake_clock: FakeClock) -> None:
    threads: list[int] = []

    def handle(_: Message) -> None:
        threads.append(threading.get_ident())

    ran = await consume(fake_clock, records(("a", b"1"), ("a", b"2")), handle)
    assert (ran.report.counts.acked, ran.position) == (2, 2)
    assert threading.get_ident() not in threads


async def test_a_plain_function_may_return_an_awaitable(fake_clock: FakeClock) -> None:
    handled: list[object] = []

    async def handle(message: Message) -> Skip:
        handled.append(message.value)
        return Skip()

    ran = await consume(fake_clock, records(("a", b"1")), lambda message: handle(message))
    assert (handled, ran.report.counts.skipped, ran.position) == ([b"1"], 1, 1)


async def test_a_thread_that_raises_stop_iteration_is_a_failed_try(fake_clock: FakeClock) -> None:
    """In Python 3.11 futures refuse `StopIteration`, so its waiter would wait forever."""

    def handle(message: Message) -> None:
        if message.attempt == 1:
            raise StopIteration

    ran = await consume(fake_clock, records(("a", b"1")), handle)
    assert (ran.report.counts.acked, ran.report.counts.naks) == (1, 1)


# -- bad behaviour ---------------------------------------------------------------------------------


class OwnBase(BaseException):
    """An exception that is not an `Exception`."""


def raiser(error: BaseException) -> Callable[[], object]:
    def do() -> object:
        raise error

    return do


def cancel_myself() -> object:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return None


@pytest.mark.parametrize(
    "misbehave",
    [
        raiser(ValueError("bad")),
        raiser(OwnBase()),
        raiser(GeneratorExit()),
        raiser(asyncio.CancelledError()),
        raiser(StopAsyncIteration()),
        raiser(RecursionError()),
        raiser(ExceptionGroup("both", [ValueError(), KeyError()])),
        lambda: 42,
        lambda: Ack,
        lambda: [Ack()],
        lambda: fine,
        object,
    ],
)
async def test_a_bad_handler_harms_only_its_own_message(
    fake_clock: FakeClock, misbehave: Callable[[], object]
) -> None:
    """O-T16, consumer/C:F5: invalid results, and exceptions of every kind. The message is given up
    after its attempts; its key and the others continue.
    """
    handled: list[bytes] = []

    async def handle(message: Message) -> object:
        if message.value == b"bad":
            return misbehave()
        await asyncio.sleep(0.01)
        handled.append(message.value)
        return None

    given = records(("a", b"1"), ("b", b"bad"), ("b", b"2"), ("a", b"3"))
    ran = await consume(fake_clock, given, handle, concurrency=2)
    assert sorted(handled) == [b"1", b"2", b"3"]
    assert (ran.report.counts.acked, ran.report.counts.terminated, ran.position) == (3, 1, 4)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("in_thread", [False, True])
async def test_an_exit_in_a_handler_is_raised_after_the_drain(
    fake_clock: FakeClock, error: BaseException, in_thread: bool
) -> None:
    """Other running handlers end and are committed; the handler's own message is redelivered."""
    log = MemoryLog(records(("a", b"slow"), ("b", b"exit"), ("b", b"later")))
    handled: list[bytes] = []

    def leave(message: Message) -> None:
        raise error

    async def handle(message: Message) -> None:
        if message.value == b"exit":
            await as_handler(leave)(message) if in_thread else leave(message)
        await asyncio.sleep(2.0)
        handled.append(message.value)

    consumer = Consumer(MemorySource(log, clock=fake_clock), clock=fake_clock)
    with pytest.raises(type(error)):
        await consumer.run(handle)
    assert handled == [b"slow"]
    assert [position.offset for _, position in log.commits] == [1]


@pytest.mark.parametrize("key", [["a"], {"a": 1}, float("nan"), bytearray(b"k"), memoryview(b"k")])
async def test_a_key_that_is_none_is_poison_for_its_record_alone(
    fake_clock: FakeClock, key: object
) -> None:
    """consumer/C:O3: unhashable keys are refused; `bytearray` and `memoryview` are bytes."""
    handled: list[object] = []
    together = {"now": 0, "most": 0}

    async def handle(message: Message) -> None:
        together["now"] += 1
        together["most"] = max(together.values())
        await asyncio.sleep(0.01)
        together["now"] -= 1
        handled.append(message.value)

    given = records((b"k", b"1"), (key, b"2"), (b"k", b"3"))
    ran = await consume(fake_clock, given, handle)
    is_bytes = isinstance(key, (bytearray, memoryview))
    assert handled == ([b"1", b"2", b"3"] if is_bytes else [b"1", b"3"])
    assert (ran.report.counts.terminated, ran.position) == (0 if is_bytes else 1, 3)
    assert together["most"] == 1


class Raises:
    """A function of a record that raises for one record."""

    def __init__(self, error: BaseException, otherwise: object) -> None:
        self._error = error
        self._otherwise = otherwise

    def __call__(self, record: Record) -> Any:
        if record.value == b"bad":
            raise self._error
        return self._otherwise


@pytest.mark.parametrize("error", [KeyError("k"), OwnBase(), asyncio.CancelledError()])
@pytest.mark.parametrize("argument", ["key", "size_of"])
async def test_a_function_of_a_record_that_raises_is_poison_for_its_record_alone(
    fake_clock: FakeClock, error: BaseException, argument: str
) -> None:
    """consumer/C:F5."""
    handled: list[object] = []

    async def handle(message: Message) -> None:
        handled.append(message.value)

    given = records(("a", b"1"), ("a", b"bad"), ("a", b"3"))
    function: Any = Raises(error, 1)
    options = (
        {"in_flight": InFlight(size_of=function)} if argument == "size_of" else {"key": function}
    )
    ran = await consume(fake_clock, given, handle, **options)
    assert (handled, ran.report.counts.terminated, ran.position) == ([b"1", b"3"], 1, 3)


@pytest.mark.parametrize("size", [-1, 1.5, "1", None])
async def test_a_size_that_is_none_is_poison_for_its_record_alone(
    fake_clock: FakeClock, size: object
) -> None:
    """The byte limit stays exact: a record without a usable size counts by its value."""
    handled: list[object] = []

    async def handle(message: Message) -> None:
        handled.append(message.value)

    def size_of(record: SourceRecord) -> Any:
        return size if record.offset == 1 else 10

    log = MemoryLog(records(("a", b"1"), ("a", b"22"), ("a", b"3")))
    source = MemorySource(log, ends=True, clock=fake_clock)
    consumer = Consumer(
        source, clock=fake_clock, in_flight=InFlight(size_of=size_of), poison="skip"
    )
    async with consumer:
        report = await consumer.run(handle)
        inside = consumer.stats().in_flight
    assert (handled, report.counts.terminated) == ([b"1", b"3"], 1)
    assert (inside.messages, inside.bytes) == (0, 0)


async def test_a_consumer_whose_task_is_cancelled_does_not_end_as_if_all_were_done(
    fake_clock: FakeClock,
) -> None:
    log = MemoryLog(records(("a", b"1")))

    async def handle(message: Message) -> None:
        for task in asyncio.all_tasks():
            if task.get_name() == "consumer poller":
                task.cancel()
        await asyncio.sleep(1.0)

    with pytest.raises(TaskCancelled, match="'consumer poller' was cancelled"):
        await Consumer(MemorySource(log, clock=fake_clock), clock=fake_clock).run(handle)
    assert [position.offset for _, position in log.commits] == [1]


# -- cancellations ---------------------------------------------------------------------------------


def counts_of_this_task() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def leave_a_task_group_behind() -> None:
    """Leave `task.cancelling()` above zero, on Python versions whose groups do not reset it."""

    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise ValueError

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
    except* ValueError:
        pass


async def let_a_timeout_pass() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(1.0)


async def cancel_this_task() -> None:
    """Request a cancellation that is delivered at the next await, after this handler."""
    cancel_myself()


async def cancel_this_task_twice() -> None:
    cancel_myself()
    cancel_myself()


@pytest.mark.parametrize(
    "first",
    [leave_a_task_group_behind, let_a_timeout_pass, cancel_this_task, cancel_this_task_twice],
)
async def test_no_cancellation_of_a_handler_reaches_the_next_message(
    fake_clock: FakeClock, first: Callable[[], Any]
) -> None:
    """One worker handles both messages; a leftover would break the second one's task group or be
    raised at its first await.
    """
    found: list[int] = []

    async def handle(message: Message) -> None:
        if message.value == b"first":
            await first()
            return
        found.append(counts_of_this_task())
        await asyncio.sleep(0)
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(as_handler(raises)(message))  # type: ignore[arg-type]
        found.append(len(asyncio.all_tasks()))

    async def raises(message: Message) -> None:
        raise ValueError(message)

    ran = await consume(
        fake_clock, records(("a", b"first"), ("a", b"second")), handle, concurrency=1
    )
    assert found[:1] == [0]
    assert (ran.report.counts.acked, ran.report.counts.naks) == (2, 0)


async def cut_by_itself(slot: Slot, error: BaseException) -> Slot:
    """Run a turn in a worker that is cut just before its handler returns."""
    task = asyncio.current_task()
    assert task is not None
    slot.begin(task)  # type: ignore[arg-type]  # a worker's task returns nothing
    slot.running = []
    slot.cut(error)
    slot.running = None
    return slot


async def test_a_cut_that_arrives_with_the_end_of_a_turn_hits_no_later_one(
    fake_clock: FakeClock,
) -> None:
    """`Task.cancel` is delivered at the next await, which may be in the next handler."""
    error = StoppedError("cut")
    slot = await cut_by_itself(Slot(), error)
    assert slot.is_cut
    assert slot.take_cut() is error
    assert counts_of_this_task() == 0
    await slot.settle_down()
    await fake_clock.sleep(1.0)  # nothing more is delivered
    assert not slot.is_cut


@pytest.mark.parametrize("moment", ["with its last wake-up", "in its last step"])
async def test_a_cut_at_the_end_of_a_handler_fails_that_message_and_no_other(
    fake_clock: FakeClock, moment: str
) -> None:
    """One worker handles both messages. The first one is cut when its awaited event is already set,
    or while it runs and does not wait again.
    """
    done = asyncio.Event()
    error = ConnectionError("cut")
    failures: list[tuple[bytes, BaseException]] = []

    def cut() -> None:
        (slot,) = consumer._open().workers.slots
        slot.cut(error)

    async def handle(message: Message) -> None:
        if (failed := message.attempts.error) is not None:
            failures.append((message.value, failed))
        elif message.value == b"first":
            await done.wait()
            if moment == "in its last step":
                cut()
        await asyncio.sleep(0)
        await asyncio.sleep(1.0)

    log = MemoryLog(records(("a", b"first"), ("b", b"second")))
    source = MemorySource(log, ends=True, clock=fake_clock)
    async with Consumer(source, clock=fake_clock, concurrency=1, retry=PROMPT) as consumer:
        run = asyncio.get_running_loop().create_task(consumer.run(handle))
        await fake_clock.run_until_idle()
        done.set()
        if moment == "with its last wake-up":
            cut()
        report = await run
    assert failures == [(b"first", error)]
    assert (report.counts.acked, report.counts.naks) == (2, 1)


async def test_a_cancellation_while_a_worker_settles_down_leaves_nothing(
    fake_clock: FakeClock,
) -> None:
    slot, task = Slot(), asyncio.current_task()
    assert task is not None
    slot.task = task
    asyncio.get_running_loop().call_soon(task.cancel)
    await slot.settle_down()
    assert task.cancelling() == 0


async def test_a_cut_between_two_turns_has_no_effect(fake_clock: FakeClock) -> None:
    slot = Slot()
    slot.begin(asyncio.current_task())  # type: ignore[arg-type]
    slot.cut(StoppedError("late"))
    await fake_clock.sleep(0.1)
    assert (slot.is_cut, slot.take_cut(), counts_of_this_task()) == (False, None, 0)


def test_a_handler_that_was_cut_and_answers_nothing_has_failed() -> None:
    """Most handlers that swallow a cancellation return `None`; an explicit result counts."""
    error = StoppedError("cut")
    assert getattr(result_of_cut(error, None), "error", None) is error
    assert result_of_cut(error, Ack()) == Ack()
    assert result_of_cut(None, None) is None


async def test_a_worker_that_is_cancelled_from_outside_is_replaced(fake_clock: FakeClock) -> None:
    """A program may cancel all tasks: an idle worker is replaced, and a running handler has
    failed.
    """
    log = MemoryLog(records(("a", b"1")))
    handled: list[object] = []
    seen: list[asyncio.Task[Any]] = []

    async def handle(message: Message) -> None:
        task = asyncio.current_task()
        assert task is not None
        seen.append(task)
        if message.attempt == 1 and message.value == b"2":
            task.cancel()
            await asyncio.sleep(1.0)
        handled.append(message.value)

    source = MemorySource(log, clock=fake_clock)
    async with Consumer(source, clock=fake_clock, concurrency=1, retry=PROMPT) as consumer:
        running = asyncio.get_running_loop().create_task(consumer.run(handle))
        await fake_clock.wait_for(lambda: handled)
        await fake_clock.run_until_idle()
        seen[0].cancel()  # it is idle
        log.append(Record("orders", 0, 1, "a", b"2"))
        consumer.pause()
        consumer.resume()  # it fetches again
        await fake_clock.wait_for(lambda: len(handled) == 2)
        consumer.stop()
        report = await running
    assert seen[0] is not seen[1]
    assert (handled, report.counts.acked, report.counts.naks) == ([b"1", b"2"], 2, 1)


async def test_a_stopped_destination_makes_no_poison(fake_clock: FakeClock) -> None:
    """If the handler's own batcher stops, it is not the message's fault: no attempt is counted."""

    async def handle(message: Message) -> None:
        if message.attempt < 10:
            raise StoppedError("the batcher is stopping")

    ran = await consume(fake_clock, records(("a", b"1")), handle)
    assert (ran.report.counts.acked, ran.report.counts.naks) == (1, 9)


def raises_a_result(_: object) -> None:
    result: Any = Nak()
    raise result


async def raises_a_class(_: object) -> None:
    result: Any = Terminate
    raise result


def _pipe(source: MemorySource, transform: Any, **options: Any) -> Any:
    return flow.pipe(source, Batcher(MemorySink[Any]()), transform, **options).run()


RAISING: dict[str, Callable[..., Any]] = {
    "run": lambda source, wrong, **options: Consumer(source, **options).run(wrong),
    "run_batch": lambda source, wrong, **options: Consumer(source, **options).run_batch(wrong),
    "a step": lambda source, wrong, **options: Consumer(source, steps=[wrong], **options).run(fine),
    "a step of a batch": lambda source, wrong, **options: Consumer(
        source, steps=[wrong], **options
    ).run_batch(fine_batch),
    "flow.pipe": lambda source, wrong, **options: _pipe(source, wrong, **options),
    "flow.transaction": lambda source, wrong, **options: flow.transaction(
        source, KeptSink(KeptRows()), wrong, **options
    ).run(),
}


@pytest.mark.parametrize("kind", RAISING)
@pytest.mark.parametrize("wrong", [raises_a_result, raises_a_class])
async def test_a_result_that_is_raised_is_poison_that_says_to_return_it(
    kind: str,
    wrong: Callable[[Any], object],
    fake_clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Python itself only says that it is no exception."""
    letters: MemorySink[Any] = MemorySink()
    source = MemorySource(MemoryLog(records(("ann", 1))), ends=True)
    await RAISING[kind](source, wrong, poison=Poison(dead_letters=letters), drain=1.0)
    (letter,) = letters.items
    assert "return a result, such as Nak()" in letter.message
    assert letter.error_type == "ResultTypeError"
    assert letter.attempts == 1
