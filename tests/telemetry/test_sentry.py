"""Exceptions of user code in Sentry: with their traceback, once per kind, without item values in
Sluicegate's texts.
"""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import pytest

pytest.importorskip("sentry_sdk")
import sentry_sdk
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from sluicegate import (
    Batcher,
    DeadLetter,
    Limits,
    Observer,
    Outcome,
    PermanentError,
    Retry,
    SluicegateError,
    WriteResult,
    stack,
)
from sluicegate.errors import BatcherBroken
from sluicegate.files import FileSink
from sluicegate.sinks import Router

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sentry_sdk.envelope import Envelope

    from sluicegate import Batch
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import FakeClock

SECRET = "4929-1234-5678"
LIMITS = Limits(max_items=2, workers=1)


class Collecting(Transport):
    """A transport that stores the events."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        """Store an envelope's event."""
        if (event := envelope.get_event()) is not None:
            self.events.append(event)


@pytest.fixture(scope="module")
def transport() -> Iterator[Collecting]:
    transport = Collecting()
    sentry_sdk.init(
        dsn="http://key@localhost/1",
        transport=transport,
        default_integrations=False,  # not those of all packages installed here
        integrations=[LoggingIntegration()],
    )
    yield transport
    sentry_sdk.init(default_integrations=False)


@pytest.fixture
def sentry(transport: Collecting) -> Collecting:
    transport.events.clear()
    return transport


def look_up(item: Any, *_: object) -> Any:
    found: dict[Any, Any] = {}
    return found[item]


def first(items: Any) -> Any:
    return look_up(items[0])


def in_sink(items: Any) -> None:
    first(items)


async def in_async_sink(items: Any) -> None:
    first(items)


async def in_thread_of_sink(items: Any) -> None:
    await asyncio.to_thread(first, items)


async def in_task_group(items: Any) -> None:
    async def look() -> None:
        first(items)

    async with asyncio.TaskGroup() as group:
        group.create_task(look())


async def fine(items: Any) -> None:
    """Accept all items."""


async def refusing(items: Any) -> None:
    raise PermanentError("no")


def unreadable(error: BaseException) -> None:
    look_up(SECRET)


class Looking(Observer):
    """An observer that raises."""

    def on_flushed(self, batch: Batch[Any], seconds: float, errors: Any) -> None:
        look_up(SECRET)


class Answering:
    """A sink that returns its errors."""

    async def write(self, batch: Batch[Any]) -> WriteResult:
        try:
            first(list(batch))
        except KeyError as error:
            return WriteResult.failed(batch, dict.fromkeys(range(len(batch)), error))
        raise AssertionError("unreachable")


class Unclosable:
    """A sink that raises when it is closed."""

    async def __aenter__(self) -> Self:
        return self

    async def write(self, batch: Batch[Any]) -> None:
        """Accept all items."""

    async def __aexit__(self, *_: object) -> None:
        look_up(SECRET)


CASES: dict[str, tuple[Callable[[Path], Batcher[str]], str, str]] = {
    "sink": (lambda _: Batcher(in_async_sink, limits=LIMITS), "first", "batcher"),
    "sink in a thread": (lambda _: Batcher(in_sink, limits=LIMITS), "first", "batcher"),
    "thread of a sink": (lambda _: Batcher(in_thread_of_sink, limits=LIMITS), "first", "batcher"),
    "task group": (lambda _: Batcher(in_task_group, limits=LIMITS), "first", "batcher"),
    "answer": (lambda _: Batcher(Answering(), limits=LIMITS), "first", "batcher"),
    "retried": (
        lambda _: Batcher(stack(in_async_sink, Retry(unlisted_attempts=1)), limits=LIMITS),
        "first",
        "batcher",
    ),
    "key": (lambda _: Batcher(fine, key=look_up, limits=LIMITS), "look_up", "batcher"),
    "tenant": (lambda _: Batcher(fine, tenant=look_up, limits=LIMITS), "look_up", "batcher"),
    "size_of": (
        lambda _: Batcher(fine, size_of=look_up, limits=Limits(max_items=2, max_bytes=99)),
        "look_up",
        "batcher",
    ),
    "encode": (
        lambda folder: Batcher(FileSink(folder / "x", encode=look_up), limits=LIMITS),
        "look_up",
        "batcher",
    ),
    "route": (lambda _: Batcher(Router(look_up, {"a": fine}), limits=LIMITS), "look_up", "batcher"),
    "classify": (
        lambda _: Batcher(stack(refusing, Retry(classify=unreadable)), limits=LIMITS),
        "unreadable",
        "batcher",
    ),
    "dead letters": (
        lambda _: Batcher(stack(refusing, DeadLetter(in_async_sink)), limits=LIMITS),
        "first",
        "batcher",
    ),
    "on_failure": (
        lambda _: Batcher(refusing, on_failure=lambda items, _: look_up(SECRET), limits=LIMITS),
        "look_up",
        "batcher",
    ),
    "observer": (
        lambda _: Batcher(fine, observers=[Looking()], limits=LIMITS),
        "look_up",
        "observer",
    ),
    "closing": (lambda _: Batcher(Unclosable(), limits=LIMITS), "look_up", "batcher"),
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
async def test_an_exception_of_user_code_is_one_event_with_its_traceback(
    real_clock: LoopClock, sentry: Collecting, tmp_path: Path, case: str
) -> None:
    """Five items in three batches: one exception, whose text has only its type and place. No task
    keeps an exception that is never retrieved.
    """
    make, function, logger = CASES[case]
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    with suppress(BatcherBroken, KeyError):
        async with make(tmp_path) as batcher:
            for _ in range(5):
                with suppress(SluicegateError):  # raised to the producer by the item's function
                    await batcher.add(SECRET)
            await batcher.flush()
    gc.collect()
    assert unhandled == []
    raised = [event for event in sentry.events if "exception" in event]
    texts = [
        event["logentry"].get("formatted") or event["logentry"]["message"]
        for event in sentry.events
    ]
    assert [event["logger"] for event in raised] == [f"sluicegate.{logger}"], texts
    values = raised[0]["exception"]["values"]
    assert "KeyError" in [value["type"] for value in values]
    frames = {
        frame["function"]
        for value in values
        if value["type"] == "KeyError"
        for frame in value["stacktrace"]["frames"]
    }
    assert function in frames
    assert all(SECRET not in text for text in texts), texts


async def test_a_write_that_ends_after_the_shutdown_is_heard_of(
    fake_clock: FakeClock, sentry: Collecting
) -> None:
    """It ignored its cancellation, its items were given up, and then it raised."""

    async def stubborn(items: Batch[str]) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1e6)
        await asyncio.sleep(60)
        first(items)

    async with Batcher(stubborn, limits=LIMITS) as batcher:
        await batcher.add_many([SECRET] * 2)
        await fake_clock.sleep(1)
        report = await batcher.shutdown(deadline=5)
    assert report.tally.of(Outcome.UNKNOWN) == 2
    assert not any("exception" in event for event in sentry.events)
    await fake_clock.sleep(60)
    (raised,) = [event["exception"]["values"] for event in sentry.events if "exception" in event]
    assert "KeyError" in [value["type"] for value in raised]
    assert batcher.tally() == report.tally


async def test_two_kinds_are_two_events(real_clock: LoopClock, sentry: Collecting) -> None:
    """Once per kind (type and place), not once per item or batch."""

    async def write(items: Batch[int]) -> None:
        if items[0] % 4 == 0:
            raise KeyError(items[0])
        raise ZeroDivisionError

    async with Batcher(write, limits=LIMITS) as batcher:
        await batcher.add_many(range(40))
    raised = [event["exception"]["values"][-1] for event in sentry.events if "exception" in event]
    assert sorted(value["type"] for value in raised) == ["KeyError", "ZeroDivisionError"]


async def test_groups_of_other_errors_are_other_kinds(
    real_clock: LoopClock, sentry: Collecting
) -> None:
    """A task group raises all of its groups in one place."""

    async def write(items: Batch[int]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(look(items[0]))

    async def look(item: int) -> None:
        if item % 4 == 0:
            raise KeyError(item)
        raise ZeroDivisionError

    async with Batcher(write, limits=LIMITS) as batcher:
        await batcher.add_many(range(40))
        await batcher.flush()
    raised = [event["exception"]["values"] for event in sentry.events if "exception" in event]
    assert len(raised) == 2
    assert {value["type"] for values in raised for value in values} >= {
        "KeyError",
        "ZeroDivisionError",
    }


async def test_a_server_error_is_no_exception_event(
    real_clock: LoopClock, sentry: Collecting
) -> None:
    """An error listed by a sink comes from the destination: the log lines suffice."""
    async with Batcher(refusing, limits=LIMITS) as batcher:
        await batcher.add_many(["a"] * 4)
    assert sentry.events
    assert not any("exception" in event for event in sentry.events)
