"""Jobs that a turn schedules without returning them, or returns for another event: they would be
lost or complete the wrong event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import log_of
from jobs.jobs_help import PROMPT, pass_on, running

from sluicegate import Ack, Batcher, ConfigError, Consumer, Nak
from sluicegate.consumer import MemorySource
from sluicegate.consumer.jobs import BatchItems, EventContext, Incomplete, ItemBatcher, JobScheduler
from sluicegate.testing import ScriptedSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate.testing import FakeClock


class Jobs:
    """A scheduler and a batcher whose callbacks record the events that they complete."""

    def __init__(self, kind: str) -> None:
        self.completed: list[Any] = []
        self.jobs: JobScheduler[str, Any] = JobScheduler(pass_on, self.finalise)
        self.items = ItemBatcher(self.execute, max_batch_size=1)
        self.begin = self.schedule if kind == "job" else self.add

    def schedule(self, context: EventContext) -> Incomplete:
        """Schedule a job."""
        return self.jobs.schedule(context, "k", context.key)

    def add(self, context: EventContext) -> Incomplete:
        """Add a group of items."""
        return self.items.add(BatchItems(context, "k", self.written).add(context.key))

    async def execute(self, items: list[Any]) -> None:
        """Do nothing."""

    async def finalise(self, context: EventContext, key: str, value: Any, error: Any) -> None:
        """Record a job."""
        self.completed.append(value)

    async def written(self, context: EventContext, group: BatchItems) -> None:
        """Record a group."""
        self.completed.append(context.key)

    async def failure(self, clock: FakeClock, turn: Callable[[EventContext], object]) -> str:
        """The error that ends the run of two events."""

        async def handle(context: EventContext) -> object:
            return turn(context)

        source = MemorySource(log_of("a", "b"), clock=clock)
        options: dict[str, Any] = {"ordering": "partition", "poison": "exit", "retry": PROMPT}
        async with Consumer(source, clock=clock, **options) as consumer:
            with pytest.raises(ConfigError) as raised:
                await consumer.run_events(handle, jobs=[self.jobs, self.items])
        return str(raised.value)


@pytest.fixture(params=["job", "items"])
def jobs(request: pytest.FixtureRequest) -> Jobs:
    return Jobs(request.param)


@pytest.mark.parametrize("result", [None, Ack(), Incomplete()])
async def test_a_job_that_is_not_returned(jobs: Jobs, fake_clock: FakeClock, result: Any) -> None:
    """consumer/G32: the event fails instead of completing without its job."""

    def turn(context: EventContext) -> object:
        jobs.begin(context)
        return result

    told = await jobs.failure(fake_clock, turn)
    assert "return the result of schedule() or add(), otherwise it never runs" in told


async def test_two_jobs_of_a_turn(jobs: Jobs, fake_clock: FakeClock) -> None:
    """Only one of them could be returned."""

    def turn(context: EventContext) -> object:
        jobs.begin(context)
        return jobs.begin(context)

    assert "in addition to another job" in await jobs.failure(fake_clock, turn)
    assert jobs.completed == []


async def test_a_job_of_another_event(jobs: Jobs, fake_clock: FakeClock) -> None:
    """It would complete the other event, and never its own."""
    first: list[EventContext] = []

    def turn(context: EventContext) -> object:
        first.append(context)
        return jobs.begin(first[0])

    assert "outside its turn" in await jobs.failure(fake_clock, turn)
    assert jobs.completed == ["a"]


async def test_a_job_of_another_turn(jobs: Jobs, fake_clock: FakeClock) -> None:
    """The result of an earlier turn does not begin its job again."""
    first: list[Incomplete] = []

    def turn(context: EventContext) -> object:
        if not first:
            first.append(jobs.begin(context))
        return first[0]

    assert "was scheduled in another turn" in await jobs.failure(fake_clock, turn)
    assert jobs.completed == ["a"]


async def test_a_failed_turn_drops_its_job(jobs: Jobs, fake_clock: FakeClock) -> None:
    """The next attempt begins a new one."""
    tries: list[str] = []

    async def handle(context: EventContext) -> object:
        tries.append(context.key)
        job = jobs.begin(context)
        return Nak() if len(tries) == 1 else job

    source = MemorySource(log_of("a"), clock=fake_clock)
    async with running(source, fake_clock, handle, jobs.jobs, jobs.items):
        await fake_clock.advance(5.0)
    assert jobs.completed == ["a"]
    assert tries == ["a", "a"]


async def test_items_forwarded_outside_a_turn(fake_clock: FakeClock) -> None:
    """They would be dropped at the beginning of the next turn, or never be sent."""
    contexts: list[EventContext] = []
    errors: list[str] = []
    sink = ScriptedSink[Any]()

    async def process(key: str, context: EventContext) -> None:
        try:
            context.forward("from the job")
        except ConfigError as error:
            errors.append(str(error))

    async def finalise(context: EventContext, *_: object) -> None:
        context.forward("from the finaliser")

    scheduler = JobScheduler(process, finalise)

    async def handle(context: EventContext) -> Incomplete:
        contexts.append(context)
        return scheduler.schedule(context, "k", context)

    source = MemorySource(log_of("a"), ends=True, clock=fake_clock)
    async with (
        Batcher(sink, clock=fake_clock) as batcher,
        Consumer(source, clock=fake_clock, ordering="partition") as consumer,
    ):
        await consumer.run_events(handle, jobs=[scheduler], forward_to=batcher)
    assert "forward() was called outside the turn" in errors[0]
    with pytest.raises(ConfigError, match="outside the turn"):
        contexts[0].forward("late")
    assert sink.applied == ["from the finaliser"]


async def test_a_group_that_is_added_again(fake_clock: FakeClock) -> None:
    """Its items would be executed twice, and items added to it later never."""
    jobs, groups = Jobs("items"), list[BatchItems]()

    def turn(context: EventContext) -> object:
        groups.append(BatchItems(context, "k", jobs.written).add(1))
        if len(groups) > 1:
            with pytest.raises(ConfigError, match="create a new group"):
                groups[0].add(2)
            return jobs.items.add(groups[0])
        return jobs.items.add(groups[-1])

    assert "was already added to a batcher" in await jobs.failure(fake_clock, turn)
