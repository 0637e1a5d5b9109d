"""Exceptions whose `str()` raises, and callbacks that raise a `BaseException`: neither stops a
batcher.

White box: how a function becomes a sink.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from sluicegate import (
    Backoff,
    Batch,
    Batcher,
    ItemFailed,
    Limits,
    Observer,
    Outcome,
    PermanentError,
    Retry,
    WriteResult,
    stack,
)
from sluicegate._core.stacking import as_sink
from sluicegate.batcher import log
from sluicegate.errors import BatcherBroken
from sluicegate.sinks import Split
from sluicegate.testing import FakeClock, ScriptedSink, fail

ONE = Limits(max_items=1)


class Unspeakable(Exception):
    """Raises from each of its methods."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    @property
    def sqlstate(self) -> str:
        raise RuntimeError("no state")


class UnspeakableSinkError(PermanentError):
    """The same as a subclass of a Sluicegate error."""

    summary: Any = property(lambda self: 1 / 0)

    def __str__(self) -> str:
        raise asyncio.CancelledError


class Beyond(BaseException):
    """Not caught by `except Exception`."""


BEYOND = [asyncio.CancelledError(), GeneratorExit(), Beyond()]


@pytest.mark.parametrize("error", [Unspeakable(), UnspeakableSinkError()], ids=["foreign", "ours"])
@pytest.mark.parametrize(
    "wrap",
    [lambda sink: sink, lambda sink: stack(sink, Retry(attempts=2, backoff=Backoff()))],
    ids=["bare", "retry"],
)
async def test_an_error_that_cannot_be_shown_fails_its_item_only(
    fake_clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    wrap: Callable[[Any], Any],
) -> None:
    """The next item continues, and the log has as much of the error as possible."""

    async def write(batch: Batch[int]) -> None:
        if batch[0] == 1:
            raise error

    async with Batcher(wrap(as_sink(write)), limits=ONE, name="audit") as batcher:
        receipt = await batcher.submit(1)
        with pytest.raises(ItemFailed, match="item ended rejected: "):
            await receipt
        assert await batcher.deliver(2) is Outcome.DELIVERED
    batcher.tally().verify()
    assert "batcher 'audit': 1 of 1 items failed" in caplog.text
    assert type(error).__name__ in caplog.text


async def test_a_batcher_that_such_an_error_broke_still_says_so(fake_clock: FakeClock) -> None:
    """In the error that producers receive."""
    async with Batcher(
        ScriptedSink[int]([fail(Unspeakable())]), limits=ONE, on_failure="crash"
    ) as batcher:
        with pytest.raises(ItemFailed):
            await batcher.deliver(1)
        with pytest.raises(BatcherBroken, match="whose repr raised RuntimeError"):
            await batcher.add(2)


async def test_a_log_line_holds_no_value_of_a_row(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A server's DETAIL quotes the row."""

    class Unique(Exception):
        sqlstate = "23505"
        constraint_name = "users_email_key"

    error = Unique("duplicate key\nDETAIL:  Key (email)=(ann@example.org) already exists.")
    async with Batcher(ScriptedSink[int]([fail(error)]), limits=ONE, on_failure="crash") as batcher:
        with pytest.raises(ItemFailed):
            await batcher.deliver(1)
    assert "constraint users_email_key" in caplog.text
    assert "ann@example.org" not in caplog.text
    assert "is broken and takes no more items" in caplog.text


def test_a_filter_that_raises_does_not_reach_the_batcher(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Logging does not catch a filter's exception."""

    def refuse(record: logging.LogRecord) -> bool:
        raise RuntimeError("a filter of the program")

    log.logger.addFilter(refuse)
    try:
        log.keys_failed("audit", 3)
    finally:
        log.logger.removeFilter(refuse)
    assert "RuntimeError" in capsys.readouterr().err


# -- exceptions that nothing lists -----------------------------------------------------------------


async def test_an_unlisted_exception_is_logged_once_per_kind_with_its_traceback(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is probably a bug; a thousand copies would bury the log."""

    async def write(batch: Batch[str]) -> None:
        if batch[0] == "key":
            raise KeyError("missing")
        if batch[0] == "zero":
            raise ZeroDivisionError
        raise PermanentError("refused")

    async with Batcher(write, limits=ONE) as batcher:
        await batcher.add_many(("key", "zero", "key", "fine", "key", "zero"))
    traced = [record for record in caplog.records if record.exc_info]
    assert [record.exc_info[0] for record in traced if record.exc_info] == [
        KeyError,
        ZeroDivisionError,
    ]
    assert all("probably a bug" in record.getMessage() for record in traced)
    assert sum("items failed" in record.getMessage() for record in caplog.records) == 6


async def test_an_unlisted_exception_is_logged_though_a_retry_gets_over_it(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise it would be visible nowhere."""
    sink = stack(ScriptedSink[int]([fail(KeyError("k"))]), Retry(backoff=Backoff()))
    async with Batcher(sink, limits=ONE) as batcher:
        assert await batcher.deliver(1) is Outcome.DELIVERED
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [KeyError]


async def test_an_exception_that_the_sink_lists_has_no_traceback(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The same applies to network errors, and to Sluicegate errors caused by an error of a client
    library.
    """

    class Listing(ScriptedSink[int]):
        def classify(self, error: BaseException) -> Any:
            from sluicegate import ErrorClass

            return ErrorClass.PERMANENT if isinstance(error, KeyError) else None

    def caused() -> PermanentError:
        error = PermanentError("refused")
        error.__cause__ = type("ClientError", (Exception,), {})("client")
        return error

    sink = Listing([fail(KeyError("k")), fail(ConnectionResetError()), fail(caused())])
    async with Batcher(stack(sink, Split(max_items=1)), limits=ONE) as batcher:
        await batcher.add_many(range(3))
    assert not [record for record in caplog.records if record.exc_info]


def test_the_kinds_that_are_remembered_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Classes created at run time would fill the memory and the log."""
    unlisted = log.Unlisted("audit", object())
    for number in range(log.MOST_KINDS + 50):
        unlisted.look_at([type(f"Error{number}", (Exception,), {})()])
    assert len(caplog.records) == log.MOST_KINDS
    assert "further kinds are not logged" in caplog.records[-1].getMessage()


# -- callbacks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", BEYOND, ids=repr)
async def test_what_a_failure_handler_raises_stops_the_batcher_and_reaches_nobody_else(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """Like an `Exception`: producers get the error, and the shutdown ends with a correct report."""
    given: list[Any] = []

    def handler(items: list[Any], cause: BaseException) -> None:
        given.append(items)
        raise error

    async def write(batch: Batch[int]) -> WriteResult:
        return WriteResult.failed(batch, {0: PermanentError("a"), 1: PermanentError("b")})

    batcher = Batcher(write, limits=Limits(max_items=3), on_failure=handler)
    async with batcher:
        receipts = [await batcher.submit(item) for item in range(3)]
        outcomes = [await receipt.settled() for receipt in receipts]
        assert outcomes == [Outcome.REJECTED, Outcome.REJECTED, Outcome.DELIVERED]
        await fake_clock.advance(0.0)
        with pytest.raises(BatcherBroken):
            await batcher.add(4)
    assert given == [[0], [1]], "the handler gets the other items too"
    assert batcher.report is not None
    batcher.report.verify()
    assert "is broken" in caplog.text


@pytest.mark.parametrize("error", BEYOND, ids=repr)
async def test_what_an_observer_raises_reaches_nobody(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """Any exception, from any callback."""

    class Hostile(Observer):
        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("on_"):
                return super().__getattribute__(name)

            def raises(*_: object) -> None:
                raise error

            return raises

        def __repr__(self) -> str:
            raise RuntimeError("no repr either")

    async def write(batch: Batch[int]) -> WriteResult:
        return WriteResult.failed(batch, {0: PermanentError("a")} if 1 in batch else {})

    limits = Limits(max_items=2, max_pending_items=6, max_delay=1.0)
    batcher = Batcher(write, limits=limits, observers=[Hostile()], overflow="drop_newest")
    async with batcher:
        receipts = [await batcher.submit(item) for item in range(9)]
        for receipt in receipts:
            await receipt.settled()
    assert batcher.report is not None
    batcher.report.verify()
    assert batcher.report.tally.accepted == 9
    assert batcher.report.tally.dropped > 0
    assert caplog.text.count("further errors of it are not logged") == 1
