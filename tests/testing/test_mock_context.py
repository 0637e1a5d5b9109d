"""Handlers of events, tested without a consumer and with the harness."""

from __future__ import annotations

import pytest

from sluicegate.consumer.jobs import EventContext, Incomplete, JobScheduler, MemoryState
from sluicegate.testing import ConsumerHarness, FakeClock, MockContext


async def test_a_handler_and_its_finaliser_without_a_consumer(fake_clock: FakeClock) -> None:
    """consumer/G26: the value, the key, the store, and the completion of the event."""

    async def finish(context: EventContext) -> None:
        context.store.put("n", context.store.get("n", 0) + 1)

    async def handle(context: EventContext) -> Incomplete:
        assert (context.key, context.value, context.partition.topic) == ("k", 5, "events")
        context.job_complete(finish)
        return Incomplete()

    context = MockContext(5, key="k")
    assert isinstance(await handle(context), Incomplete)
    assert await context.complete() is None
    assert context.store.get("n") == 1
    with pytest.raises(AssertionError, match="job_complete was not called"):
        await context.complete()


async def test_the_harness_runs_events(fake_clock: FakeClock) -> None:
    """consumer/G26: with schedulers and state, like a consumer."""

    async def process(key: str, value: list[int]) -> None:
        await fake_clock.sleep(1.0)
        value.append(len(value))

    async def finalise(
        context: EventContext, key: str, value: list[int], error: BaseException | None
    ) -> None:
        context.store.put(key, len(value) + context.store.get(key, 0))

    jobs, state = JobScheduler(process, finalise), MemoryState(keep=True)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, [])

    harness = ConsumerHarness(ordering="partition", clock=fake_clock)
    for number in range(3):
        harness.send(number, key="a" if number else "b")
    run = await harness.run_events(handle, jobs=[jobs], state=state)
    assert run.settled == {"b": [0], "a": [1, 2]}
    assert len(run.calls) == 3
    (store,) = state.stores.values()
    assert [*store.range()] == [("a", 2), ("b", 1)]
