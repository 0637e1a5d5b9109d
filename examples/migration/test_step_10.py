"""Tests of step 10: virtual time, a scripted table, no sleeps."""

from collections.abc import AsyncIterator

import pytest
from examples.migration.step_10_add_tests import Event, protected, serve

from sluicegate import PermanentError, TransientError, UnavailableError
from sluicegate.sinks import MemorySink
from sluicegate.testing import FakeClock, ScriptedSink, fail, partial

pytestmark = pytest.mark.usefixtures("fake_clock")
EVENTS: list[Event] = [(0, "login"), (1, None), (2, "logout")]


async def requests() -> AsyncIterator[Event]:
    for event in EVENTS:
        yield event


async def test_a_deadlock_is_tried_again() -> None:
    table: ScriptedSink[Event] = ScriptedSink([fail(TransientError("deadlock"))])
    await serve(protected(table, MemorySink()), requests())
    assert table.applied == EVENTS
    assert len(table.calls) == 2


async def test_a_refused_event_is_kept_with_its_reason() -> None:
    table: ScriptedSink[Event] = ScriptedSink([partial({1: PermanentError("no action")})])
    refusals: MemorySink[tuple[str, str]] = MemorySink()
    await serve(protected(table, refusals), requests())
    assert table.applied == [(0, "login"), (2, "logout")]
    assert refusals.items == [("[1, null]", "no action")]


async def test_an_outage_refuses_nothing(fake_clock: FakeClock) -> None:
    table: ScriptedSink[Event] = ScriptedSink([fail(UnavailableError("nobody there"))] * 8)
    refusals: MemorySink[tuple[str, str]] = MemorySink()

    async def and_then_it_is_back() -> AsyncIterator[Event]:
        async for event in requests():
            yield event
        await fake_clock.advance(60.0)

    await serve(protected(table, refusals), and_then_it_is_back())
    assert table.applied == EVENTS
    assert refusals.items == []
