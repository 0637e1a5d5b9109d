"""The decision when time advances, as a pure function, and a model of timers compared with the real
loop. White box: the loop's decision.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.testing import FakeClock
from sluicegate.testing.virtual_loop import Act, Holders, TimeMove, decide

if TYPE_CHECKING:
    from collections.abc import Sequence

NOBODY, THREAD, EXTERNAL, SOCKET = (
    Holders(),
    Holders(threads=1),
    Holders(external=1),
    Holders(sockets=1),
)


@pytest.mark.parametrize(
    ("timer", "target", "holders", "expected"),
    [
        (None, None, NOBODY, (Act.HANG, 0.0)),
        (5.0, None, NOBODY, (Act.JUMP, 5.0)),
        (5.0, None, THREAD, (Act.WAIT, 0.0)),
        (5.0, None, EXTERNAL, (Act.WAIT, 0.0)),
        (None, None, SOCKET, (Act.WAIT, 0.0)),
        (5.0, 5.0, NOBODY, (Act.JUMP, 5.0)),
        (6.0, 5.0, NOBODY, (Act.REACH, 5.0)),
        (None, 5.0, SOCKET, (Act.REACH, 5.0)),
        (None, 5.0, EXTERNAL, (Act.REACH, 5.0)),
        (None, 5.0, THREAD, (Act.WAIT, 0.0)),
    ],
)
async def test_the_decision(
    fake_clock: FakeClock,
    timer: float | None,
    target: float | None,
    holders: Holders,
    expected: tuple[Act, float],
) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    move = None if target is None else TimeMove(target, waits_for_threads=True, done=done)
    assert decide(timer, move, holders) == expected


SET, CANCEL, ADVANCE = "set", "cancel", "advance"
spans = st.floats(0.0, 10.0, allow_nan=False)
steps = st.lists(
    st.one_of(
        st.tuples(st.just(SET), spans),
        st.tuples(st.just(CANCEL), st.integers(0, 30)),
        st.tuples(st.just(ADVANCE), spans),
    ),
    max_size=40,
)


def model(script: Sequence[tuple[str, float]]) -> list[tuple[float, int]]:
    """The time at which each timer fires, by a list that is sorted when needed. Equal times are
    ordered by number.
    """
    now, pending, fired = 0.0, dict[int, float](), list[tuple[float, int]]()
    for number, (kind, value) in enumerate([*script, (ADVANCE, 1000.0)]):
        if kind == SET:
            pending[number] = now + value
        elif kind == CANCEL:
            pending.pop(int(value), None)
        else:
            now += value
            due = sorted((when, which) for which, when in pending.items() if when <= now)
            fired += due
            for _, which in due:
                del pending[which]
    return fired


@given(script=steps)
def test_timers_fire_when_and_in_the_order_that_a_simple_model_says(
    script: list[tuple[str, float]],
) -> None:
    fired: list[tuple[float, int]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def fire(number: int) -> None:
            fired.append((clock.now(), number))

        handles: dict[int, asyncio.TimerHandle] = {}
        for number, (kind, value) in enumerate(script):
            if kind == SET:
                handles[number] = loop.call_later(value, fire, number)
            elif kind == CANCEL and int(value) in handles:
                handles[int(value)].cancel()
            elif kind == ADVANCE:
                await clock.advance(value)
        await clock.advance(1000.0)

    with FakeClock() as clock:
        clock.run(main())
    expected = model(script)
    assert [when for when, _ in fired] == [when for when, _ in expected]
    assert sorted(fired) == expected
