"""Tests of a handler: send messages, run it on virtual time, check the results."""

from typing import Any

from sluicegate import TransientError
from sluicegate.testing import ConsumerHarness, FakeClock

BOOKED: list[int] = []


async def book(message: Any) -> None:
    """The handler under test: the ledger is locked at the first attempt of order 7."""
    if message.value["order"] == 7 and message.attempt == 1:
        raise TransientError("the ledger is locked")
    BOOKED.append(message.value["order"])


async def test_orders_are_booked_in_order(fake_clock: FakeClock) -> None:
    harness = ConsumerHarness()
    harness.send({"order": 7}, key="ada", id="first")
    harness.send({"order": 8}, key="ada", id="second")
    ran = await harness.run(book)
    assert ran.settled == {"ada": ["first", "second"]}


async def test_a_locked_ledger_is_tried_again(fake_clock: FakeClock) -> None:
    harness = ConsumerHarness()
    harness.send({"order": 7}, key="ada", id="seven")
    harness.send({"order": 9}, key="grace", id="nine")
    ran = await harness.run(book)
    assert [(call.ids, call.attempt) for call in ran.calls] == [
        (("seven",), 1),
        (("nine",), 1),
        (("seven",), 2),
    ]
    assert (ran.counts.acked, ran.counts.naks, ran.unsettled) == (2, 1, [])
