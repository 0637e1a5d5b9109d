"""Bad arguments: each error names the argument, its value and the rule, and nothing is started."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from helpers import Recording
from sluicegate import Batcher, Capabilities, ConfigError, Limits, stack

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


make: Any = Batcher  # wrong types are intended here


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_items": 0}, "max_items=0: must be a whole number of at least 1"),
        ({"max_items": 1.5}, "max_items=1.5"),
        ({"max_items": True}, "max_items=True"),
        ({"max_bytes": -1}, "max_bytes=-1"),
        (
            {"max_delay": -1},
            r"max_delay=-1: must be at least 0 seconds \(a number or a timedelta\)",
        ),
        ({"max_delay": -1.0}, "max_delay=-1.0"),
        ({"max_delay": "1s"}, "max_delay='1s'"),
        ({"max_delay": float("nan")}, "max_delay=nan"),
        ({"max_delay": timedelta(-1)}, "max_delay"),
        ({"workers": 0}, "workers=0"),
        ({"flush_timeout": 0}, "flush_timeout=0"),
        ({"max_pending_items": 0}, "max_pending_items=0"),
        (
            {"max_pending_items": 999},
            r"max_pending_items=999: must be at least \(workers \+ 1\) x max_items = 1000",
        ),
        (
            {"max_bytes": 100, "max_pending_bytes": 50},
            "max_pending_bytes=50: must be at least max_bytes = 100",
        ),
    ],
)
def test_a_bad_limit_is_named_with_its_value_and_rule(
    arguments: dict[str, Any], message: str
) -> None:
    """B-T30, batcher/B46, batcher/B47."""
    with pytest.raises(ConfigError, match=message):
        Limits(**arguments)


async def nobody_awaits(items: list[Any], error: BaseException) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sink": None}, "sink=None: must have `async def write"),
        ({"sink": Recording}, "is a class; pass an instance"),
        ({"limits": 500}, "limits=500: must be a Limits"),
        ({"name": ""}, "name='': must be a string that is not empty"),
        (
            {"overflow": "explode"},
            "overflow='explode': must be one of 'block', 'reject', 'drop_newest', 'drop_oldest'",
        ),
        ({"oversize": "split"}, "oversize='split'"),
        ({"size_of": 3, "limits": Limits(max_bytes=5)}, "size_of=3"),
        ({"size_of": len}, "has no effect without max_bytes"),
        ({"on_failure": "ignore"}, "on_failure='ignore'"),
        ({"on_failure": ["log"]}, r"on_failure=\['log'\]"),
        ({"on_failure": nobody_awaits}, "and not an async one"),
        ({"shutdown_deadline": -1}, "shutdown_deadline=-1"),
    ],
)
async def test_a_bad_argument_is_named_and_nothing_is_started(
    fake_clock: FakeClock, arguments: dict[str, Any], message: str
) -> None:
    """B-T30."""
    tasks, threads = len(asyncio.all_tasks()), threading.active_count()
    with pytest.raises(ConfigError, match=message):
        make(**{"sink": Recording(), **arguments})
    assert (len(asyncio.all_tasks()), threading.active_count()) == (tasks, threads)


def test_more_workers_than_the_sink_takes_are_refused() -> None:
    """design 3.2."""

    class Single(Recording):
        capabilities = Capabilities(max_concurrency=1)

    with pytest.raises(ConfigError, match="workers=2: the sink takes at most 1"):
        Batcher(Single(), limits=Limits(workers=2))


def test_a_decorator_that_was_not_called_is_named() -> None:
    """The most common mistake with stacks."""

    class NotCalled:
        pass

    with pytest.raises(
        ConfigError, match=r"decorators\[0\].*is a class; pass an instance: NotCalled\(\.\.\.\)"
    ):
        stack(Recording(), NotCalled)  # type: ignore[arg-type]  # the point of the test


async def test_a_bad_timeout_is_refused_at_the_call(fake_clock: FakeClock) -> None:
    """No item was accepted."""
    async with Batcher(Recording(), limits=Limits(max_items=1, max_pending_items=2)) as batcher:
        with pytest.raises(ConfigError, match="deadline=-1"):
            await batcher.shutdown(deadline=-1)
        with pytest.raises(ConfigError, match="timeout='soon'"):
            await batcher.flush(timeout="soon")  # type: ignore[arg-type]  # the point of the test


async def test_an_item_that_cannot_be_measured_is_refused_alone(fake_clock: FakeClock) -> None:
    """The producer gets the error; the item was not accepted."""
    async with Batcher(Recording(), limits=Limits(max_bytes=10)) as batcher:
        with pytest.raises(TypeError, match="items must be bytes-like to be measured, not dict"):
            await batcher.add({})
        await batcher.add(b"x")
    assert batcher.tally().accepted == 1


async def test_entering_twice_is_refused(fake_clock: FakeClock) -> None:
    """One object can be open once; share it."""
    async with Batcher(Recording()) as batcher:
        with pytest.raises(ConfigError, match="enter it once"):
            await batcher.__aenter__()


def test_a_batcher_needs_no_loop_until_it_is_entered() -> None:
    """It can be constructed at import time, inspected and printed."""
    batcher = Batcher(Recording(), name="audit")
    assert "Batcher(name='audit', state='new'" in repr(batcher)
    assert batcher.stats().state == "new"
    assert batcher.tally().accepted == 0
