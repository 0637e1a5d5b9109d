"""How a user tests a handler of events that are completed later."""

from sluicegate.consumer.jobs import EventContext, Incomplete, JobScheduler, MemoryState
from sluicegate.testing import ConsumerHarness, FakeClock, MockContext

# -- the code under test ---------------------------------------------------------------------------


async def handle(context: EventContext) -> Incomplete:
    context.job_complete(book)
    return Incomplete()


async def book(context: EventContext) -> None:
    context.store.put(context.key, context.store.get(context.key, 0) + context.value)


async def test_a_payment_is_booked(fake_clock: FakeClock) -> None:
    context = MockContext(5, key="ann")
    assert isinstance(await handle(context), Incomplete)
    assert await context.complete() is None  # runs what job_complete was called with
    assert context.store.get("ann") == 5


async def transfer(_account: str, _amount: int) -> None:
    """A call to another system, in a job."""


async def transferred(
    context: EventContext, account: str, amount: int, _error: BaseException | None
) -> None:
    context.store.put(account, context.store.get(account, 0) + amount)


transfers = JobScheduler(transfer, transferred)


async def handle_transfer(context: EventContext) -> Incomplete:
    return transfers.schedule(context, context.key, context.value)


async def test_a_transfer_is_booked(fake_clock: FakeClock) -> None:
    harness = ConsumerHarness(ordering="partition")
    harness.send(5, key="ann")
    state = MemoryState(keep=True)
    run = await harness.run_events(handle_transfer, jobs=[transfers], state=state)
    assert run.settled == {"ann": [0]}
    (store,) = state.stores.values()
    assert store.get("ann") == 5
