"""Functions without a result that return one, and jobs that fail without a finaliser: neither is
treated as success silently.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, log_of
from jobs.jobs_help import running

from sluicegate import Ack, Nak, Terminate, ToDeadLetter
from sluicegate.consumer import Manual, MemorySource, Position, ResultTypeError, Skip
from sluicegate.consumer.jobs import (
    BatchItem,
    BatchItems,
    EventContext,
    Incomplete,
    ItemBatcher,
    JobScheduler,
)

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock

REFUSALS = [
    Nak(),
    ToDeadLetter("bad"),
    Terminate("bad"),
    Manual(),
    Incomplete(),
    OSError("no row"),
    [None, Nak()],
    [OSError("no row")],
]


async def _errors_of_jobs(clock: FakeClock, returned: object) -> list[BaseException | None]:
    errors: list[BaseException | None] = []

    async def process(key: object, value: object) -> object:
        return returned

    async def finalise(_: EventContext, key: object, value: object, error: Any) -> None:
        errors.append(error)

    jobs: JobScheduler[object, object] = JobScheduler(process, finalise)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    async with running(MemorySource(log_of("a"), clock=clock), clock, handle, jobs):
        await clock.advance(1.0)
    return errors


async def _errors_of_items(clock: FakeClock, returned: object) -> list[BaseException | None]:
    errors: list[BaseException | None] = []

    async def execute(items: list[BatchItem]) -> object:
        return returned

    async def written(_: EventContext, group: BatchItems) -> None:
        errors.extend(item.error for item in group.items)

    batcher = ItemBatcher(execute, max_batch_size=10)

    async def handle(context: EventContext) -> Incomplete:
        return batcher.add(BatchItems(context, context.key, written).add(1))

    async with running(MemorySource(log_of("a"), clock=clock), clock, handle, batcher):
        await clock.advance(1.0)
    return errors


@pytest.mark.parametrize("returned", REFUSALS, ids=repr)
async def test_a_refusal_that_is_returned_is_an_error(
    fake_clock: FakeClock, returned: object
) -> None:
    """consumer/G34, G-T10: handlers return refusals, so a job or an executor that returns one
    intends a refusal.
    """
    for errors in (_errors_of_jobs, _errors_of_items):
        (error,) = await errors(fake_clock, returned)
        assert isinstance(error, ResultTypeError)
        assert "which has no effect" in str(error)


@pytest.mark.parametrize("returned", [None, Ack(), Skip(), 7, "text", [1, None], {"a": Nak()}])
async def test_anything_else_that_is_returned_is_ignored(
    fake_clock: FakeClock, returned: object
) -> None:
    for errors in (_errors_of_jobs, _errors_of_items):
        assert await errors(fake_clock, returned) == [None]


@pytest.mark.parametrize("error", [ConnectionError("no answer"), asyncio.CancelledError()])
async def test_a_job_that_fails_without_a_finaliser_is_logged(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """G-T4: its event completes anyway, and the log is the only trace of the error."""

    async def process(key: object, value: object) -> None:
        if key == "a":
            raise error

    jobs: JobScheduler[object, None] = JobScheduler(process)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    log = log_of("a", "b")
    async with running(MemorySource(log, clock=fake_clock), fake_clock, handle, jobs):
        await fake_clock.advance(1.0)
    assert log.positions[P0] == Position(2)
    (told,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "billing: the job of t/0" in told.getMessage()
    assert type(error).__name__ in told.getMessage()
