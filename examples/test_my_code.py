"""Tests of code that batches: virtual time, a scripted destination, no sleeps."""

from sluicegate import Batcher, Limits, Retry, TransientError, stack
from sluicegate.testing import FakeClock, ScriptedSink, fail


async def test_an_event_survives_a_hiccup(fake_clock: FakeClock) -> None:
    sink: ScriptedSink[str] = ScriptedSink([fail(TransientError("deadlock"))])
    async with Batcher(stack(sink, Retry()), limits=Limits(max_delay=60.0)) as batcher:
        await batcher.add("event")
        await fake_clock.advance(59.9)
        assert sink.calls == []
        await fake_clock.advance(60.0)
        assert sink.applied == ["event"]
        assert len(sink.calls) == 2
