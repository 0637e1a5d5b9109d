"""Events by record type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import ConfigError, Message
from sluicegate.consumer.jobs import EventContext, EventRegister, Incomplete, JobScheduler
from sluicegate.testing import ConsumerHarness

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


@dataclass
class Placed:
    customer: str


@dataclass
class Paid:
    amount: int


async def test_events_are_handled_by_their_type(fake_clock: FakeClock) -> None:
    """G-T19: with a transformer, a default handler, and poison for unmatched types."""
    seen: list[object] = []

    async def process(key: str, value: object) -> None:
        seen.append(("job", key))

    jobs = JobScheduler(process)
    events = EventRegister(decode=lambda kind, value: kind(value))

    @events.register
    async def placed(order: Placed, context: EventContext) -> Incomplete:
        return jobs.schedule(context, order.customer, order)

    @events.register
    def paid(payment: Paid, context: EventContext) -> None:
        seen.append((payment, context.message.offset))

    assert events.types == ("Placed", "Paid")

    def harness() -> ConsumerHarness:
        made = ConsumerHarness(ordering="partition", clock=fake_clock, poison="skip")
        for kind, value in (("Placed", "ann"), ("Paid", 7), ("Sent", "box")):
            made.send(value, headers=[("type", kind.encode())])
        return made

    run = await harness().run_events(events, jobs=[jobs])
    assert seen == [("job", "ann"), (Paid(7), 1)] or seen == [(Paid(7), 1), ("job", "ann")]
    assert [letter.error_type for letter in run.dead_letters] == ["NoHandlerError"]

    others: list[Any] = []

    @events.register
    async def other(message: Message, context: EventContext) -> None:
        others.append((message.value, context.value))

    run = await harness().run_events(events, jobs=[jobs])
    assert others == [("box", "box")]
    assert run.dead_letters == []


def test_a_handler_without_a_context_is_refused() -> None:
    """G-T17: it could not complete an event later."""

    async def placed(order: Placed) -> None:
        del order

    with pytest.raises(ConfigError, match="a second parameter that is named context"):
        EventRegister().register(placed)
