"""The order in which connections are lent. Numbers represent connections.

White box: the queue for connections, without a server.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from tests.properties import examples

from sluicegate.postgres.client.connections import Lending
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from asyncio import Task

LOANS = 1000


async def lent(lending: Lending[int], con: int) -> None:
    """Acquire a connection with a permit."""
    assert await lending.turn() is None
    lending.note_acquired(con)


async def asking(lending: Lending[int], count: int) -> list[Task[int | None]]:
    """Requests that wait in this order."""
    tasks = [asyncio.create_task(lending.turn()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_the_connection_returned_last_is_lent_first(fake_clock: FakeClock) -> None:
    lending = Lending[int](2, LOANS)
    await lent(lending, 1)
    await lent(lending, 2)
    assert lending.keep(1)
    assert lending.keep(2)
    assert [await lending.turn(), await lending.turn()] == [2, 1]


async def test_a_returned_connection_passes_to_the_first_waiter_and_to_no_later_request(
    fake_clock: FakeClock,
) -> None:
    """The returning writer requests the next connection at once, and is the last in the queue."""
    lending = Lending[int](1, LOANS)
    await lent(lending, 1)
    first, second = await asking(lending, 2)
    assert lending.keep(1)
    (greedy,) = await asking(lending, 1)
    assert await first == 1
    assert lending.keep(1)
    assert await second == 1
    assert not greedy.done()
    assert lending.keep(1)
    assert await greedy == 1


async def test_the_permit_of_a_connection_back_in_the_pool_passes_to_the_first_waiter(
    fake_clock: FakeClock,
) -> None:
    lending = Lending[int](1, 1)
    await lent(lending, 1)
    first, second = await asking(lending, 2)
    assert not lending.keep(1), "its loans are used up"
    lending.forget(1)
    lending.free()
    assert await first is None
    lending.note_acquired(2)
    await asyncio.sleep(0)
    assert not second.done()
    lending.free()
    assert await second is None


async def test_a_waiter_that_is_cancelled_takes_nothing(fake_clock: FakeClock) -> None:
    lending = Lending[int](1, LOANS)
    await lent(lending, 1)
    first, second = await asking(lending, 2)
    first.cancel()
    assert lending.keep(1), "before the cancelled one has left the queue"
    assert await second == 1
    assert first.cancelled()
    assert lending.keep(1)
    assert lending.idle == 1


async def test_a_waiter_that_is_cancelled_when_it_has_its_turn_passes_it_on(
    fake_clock: FakeClock,
) -> None:
    lending = Lending[int](1, LOANS)
    await lent(lending, 1)
    first, second, third = await asking(lending, 3)
    assert lending.keep(1)
    first.cancel()
    assert await second == 1
    lending.forget(1)
    lending.free()
    third.cancel()
    await asyncio.wait([first, third])
    assert lending.idle == 0
    assert await lending.turn() is None, "the permit is there, once"
    (waiting,) = await asking(lending, 1)
    assert not waiting.done()
    waiting.cancel()


async def test_only_connections_that_no_loan_needed_become_unused(fake_clock: FakeClock) -> None:
    lending = Lending[int](3, LOANS)
    for con in (1, 2, 3):
        await lent(lending, con)
    for con in (1, 2, 3):
        assert lending.keep(con)
    assert lending.unused() == [], "all have been lent since"
    assert await lending.turn() == 3
    assert lending.keep(3)
    assert lending.unused() == [1, 2]
    assert lending.unused() == [3]
    assert lending.idle == 0


async def test_an_expired_connection_is_not_kept(fake_clock: FakeClock) -> None:
    lending = Lending[int](2, LOANS)
    await lent(lending, 1)
    await lent(lending, 2)
    assert lending.keep(1)
    assert lending.expire() == [1]
    assert not lending.keep(2)
    lending.forget(2)
    lending.free()
    await lent(lending, 3)
    assert lending.keep(3)


@examples(60, long=300)
@given(st.data(), st.integers(1, 3), st.sampled_from([0, 1, 3, LOANS]))
def test_no_connection_is_lost_or_lent_twice_and_requests_are_served_in_order(
    data: st.DataObject, size: int, loans: int
) -> None:
    """Requests, returns, losses and cancellations in any order, several of them at once."""

    async def run() -> None:
        lending = Lending[int](size, loans)
        made = iter(range(1000))
        waiting: deque[Task[int | None]] = deque()
        held: list[int] = []
        step = st.sampled_from(["ask", "ask", "keep", "lose", "expire", "unused", "cancel", "run"])
        for _ in range(data.draw(st.integers(1, 40))):
            match data.draw(step):
                case "ask":
                    waiting.append(asyncio.create_task(lending.turn()))
                case "keep" if held:
                    con = held.pop(0)
                    if not lending.keep(con):
                        lending.forget(con)
                        lending.free()
                case "lose" if held:
                    lending.forget(held.pop())
                    lending.free()
                case "expire" | "unused" as name:
                    for con in getattr(lending, name)():
                        lending.forget(con)
                        lending.free()
                case "cancel" if waiting:
                    waiting[data.draw(st.integers(0, len(waiting) - 1))].cancel()
                case _:
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                    served = [task for task in waiting if task.done() and not task.cancelled()]
                    left = [task for task in waiting if not task.done()]
                    for task in served:
                        assert all(
                            other.done() for other in list(waiting)[: waiting.index(task)]
                        ), "served in order"
                        turn = task.result()
                        held.append(next(made) if turn is None else turn)
                        if turn is None:
                            lending.note_acquired(held[-1])
                    waiting = deque(left)
                    assert len(set(held)) == len(held), "lent once"
                    assert len(held) + lending.idle <= size
                    assert not (left and len(held) < size), "a waiter has nothing to wait for"
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for task in waiting:
            if not task.cancelled():
                turn = task.result()
                held.append(next(made) if turn is None else turn)
        for con in held:
            lending.forget(con)
            lending.free()
        for con in lending.expire():
            lending.forget(con)
            lending.free()
        for _ in range(size):
            assert await lending.turn() is None, "every permit is there"

    with FakeClock() as clock:
        clock.run(run())
