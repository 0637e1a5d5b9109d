"""Correct code that looks like a mistake causes no message; and properties that messages must not
break.

White box: the checks of one item.
"""

from __future__ import annotations

import inspect
import logging
import time
import warnings
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import sluicegate
from sluicegate import (
    Batch,
    Batcher,
    BlockingBatcher,
    ConfigError,
    DeadLetter,
    Limits,
    Retry,
    Timeout,
    stack,
)
from sluicegate._core.checks import shown
from sluicegate._core.stacking import FunctionSink
from sluicegate.batcher import Adaptive, Tenants
from sluicegate.batcher.item_mistakes import check_item, several
from sluicegate.errors import SluicegateWarning
from sluicegate.files import FileSink, FileSource
from sluicegate.http import ElasticsearchSink, HttpSink
from sluicegate.kafka import ConfluentKafkaSource, KafkaSource
from sluicegate.nats import JetStreamSource
from sluicegate.postgres import PostgresQueueSource, PostgresSink, PostgresStreamSource
from sluicegate.retry import RetryBudget
from sluicegate.sinks import Isolate, MemorySink, RateLimit, Router, Split

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import FakeClock

PUBLIC = [
    *(getattr(sluicegate, name) for name in sluicegate.__all__),
    Adaptive, ElasticsearchSink, FileSink, HttpSink, Isolate, MemorySink, PostgresSink, RateLimit,
    RetryBudget, Router, Split, Tenants,
    ConfluentKafkaSource, FileSource, JetStreamSource, KafkaSource, PostgresQueueSource,
    PostgresStreamSource,
]  # fmt: skip
CHECKED = [
    "Adaptive", "Backoff", "Batcher", "BlockingBatcher", "CircuitBreaker", "ConfluentKafkaSource",
    "DeadLetter", "ElasticsearchSink", "FanOut", "FileSink", "FileSource", "HttpSink", "Isolate",
    "Limits", "MemorySink", "PostgresQueueSource", "PostgresSink", "PostgresStreamSource", "RateLimit", "Retry", "RetryBudget", "Router", "Split", "Tenants", "Timeout",
]  # fmt: skip


@dataclass
class Order:
    number: int


class Point(NamedTuple):
    x: int
    y: int


# -- items -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "item",
    [
        [1, "a", None],
        ["a", "b"],
        [{"a": 1}],
        [{"a": 1}, {"b": 1}],
        [{}, {}],
        [7, {"a": 1}, {"a": 2}],
        [(1, 2), (3, 4)],
        [],
        ({"a": 1}, {"a": 2}),
        {"a": [{"b": 1}, {"b": 2}]},
        "text",
        range(3),
        Order(1),
        None,
    ],
    ids=repr,
)
def test_an_item_that_may_be_a_row_is_taken_in_silence(item: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_item(item)


@pytest.mark.parametrize(
    "stream",
    [iter_ := (n for n in range(2)), map(str, [1]), zip([1], [2], strict=True), {}.values()],
)
async def test_a_stream_is_refused_and_the_batcher_goes_on(
    fake_clock: FakeClock, stream: object
) -> None:
    sink: MemorySink[Any] = MemorySink()
    async with Batcher(sink) as batcher:
        for call in (batcher.add, batcher.submit, lambda item: batcher.add_many([item])):
            with pytest.raises(TypeError, match=r"^an item must not be a "):
                await call(stream)
        with pytest.raises(TypeError, match=r"^an item must not be a "):
            batcher.try_add(stream)
        assert batcher.tally().accepted == batcher.tally().inside == 0
        await batcher.add("good")
    assert sink.items == ["good"]


def test_a_stream_is_refused_in_a_thread_and_the_batcher_goes_on() -> None:
    sink: MemorySink[Any] = MemorySink()
    with BlockingBatcher(sink) as batcher:
        for call in (batcher.add, batcher.try_add, batcher.submit):
            with pytest.raises(TypeError, match=r"^an item must not be a generator"):
                call(n for n in range(2))
            assert batcher.flush()
        batcher.add("good")
    assert sink.items == ["good"]
    assert batcher.tally().accepted == 1


def test_lists_of_items_of_every_kind_are_taken() -> None:
    for items in ([1], (1,), {1}, {1: 2}.keys(), iter([1]), (n for n in [1]), range(1)):
        assert several(items) is items


# -- seconds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [99, 100.0, 3600.0, timedelta(hours=1)])
def test_a_delay_that_is_meant_is_no_mistake(given: Any) -> None:
    """Nor if the limits are copied."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        limits = replace(Limits(max_delay=given), workers=2)
    assert limits.delay in {99.0, 100.0, 3600.0}


@pytest.mark.parametrize("name", ["max_delay", "flush_timeout"])
def test_milliseconds_are_warned_of_with_both_ways_to_go_on(name: str) -> None:
    given: dict[str, Any] = {name: 30_000}
    with pytest.warns(SluicegateWarning) as caught:
        Limits(**given)
    assert caught[0].filename == __file__
    assert str(caught[0].message) == (
        f"{name}=30000 is 30000 seconds; if you mean milliseconds, write {name}=30, otherwise "
        f"{name}=timedelta(seconds=30000)"
    )


# -- sinks and decorators --------------------------------------------------------------------------


def test_one_try_around_dead_letters_is_no_mistake() -> None:
    letters = DeadLetter(MemorySink())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stack(MemorySink(), letters, Retry(attempts=1))
        stack(MemorySink(), Retry(), letters)
        stack(MemorySink(), Retry(), letters, Timeout(1000.0))


async def test_a_blocked_loop_is_told_of_once(
    real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A write that ends in time is not reported."""

    async def write(batch: Batch[float]) -> None:
        time.sleep(batch[0])  # noqa: ASYNC251  # that is the mistake

    caplog.set_level(logging.WARNING)
    async with Batcher(stack(write, Timeout(0.01)), limits=Limits(max_items=1)) as batcher:
        for seconds in (0.0, 0.03, 0.03):
            assert (await batcher.deliver(seconds)).is_success
    assert [record.name for record in caplog.records] == ["sluicegate.timeout"]
    assert "the event loop was blocked" in caplog.text


def test_callables_of_every_kind_are_sinks() -> None:
    class Called:
        def __call__(self, batch: Batch[int]) -> None: ...

    functions: list[Any] = [
        print, [].append, Called(), lambda batch, more=1: None, lambda *all: None,
    ]  # fmt: skip
    for function in functions:
        assert isinstance(stack(function), FunctionSink)


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHECKED)
def test_an_unknown_argument_is_refused_by_name(name: str) -> None:
    """For sinks and decorators even before a missing argument. The signature is unchanged."""
    kind: Any = next(each for each in PUBLIC if getattr(each, "__name__", "") == name)
    needed = [print] if name in {"Batcher", "BlockingBatcher"} else []
    with pytest.raises(ConfigError, match=rf"^colour=\.\.\.: {name} has no such argument; "):
        kind(*needed, colour=1)
    with pytest.raises(ConfigError, match=rf"^colour=\.\.\.: {name} has no such argument; ") as hid:
        kind(*needed, colour="secret")
    assert "secret" not in str(hid.value)
    assert "args" not in inspect.signature(kind).parameters


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("postgresql://us:secret@h/db?password=secret", "'postgresql://...'"),
        (["https://us:secret@h", 1], "['https://...', 1]"),
        (print, "<built-in function print>"),
        ("x" * 1000, f"'{'x' * 99}...{'x' * 99}'"),
    ],
)
def test_a_value_is_shown_without_secrets_and_in_few_words(value: object, text: str) -> None:
    assert shown(value) == text
