"""The number of messages that a partition requests. White box: the puller's requests.

Proven here: consumer/C:C7 (a request beyond what may be pending waits its whole time for nothing).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.nats.jetstream.puller import PullWindow


@pytest.mark.parametrize(
    ("received", "held", "credit", "wanted"),
    [
        (0, 0, 0, 100),
        (0, 0, 100, 0),
        (75, 75, 0, 25),
        (75, 75, 1, 0),  # less than a quarter is missing
        (50, 50, 20, 30),
        (99, 99, 0, 1),  # nothing is in flight
        (100, 100, 0, 0),
        (0, 900, 0, 100),
        (0, 990, 0, 10),  # no more may be pending
        (0, 1000, 0, 0),
    ],
)
def test_a_request_fills_the_prefetch_within_what_may_be_pending(
    received: int, held: int, credit: int, wanted: int
) -> None:
    window = PullWindow(100, 1000)
    window.ask(credit)
    assert window.wanted(received, held) == wanted


@pytest.mark.parametrize("unlimited", [0, -1])
def test_without_a_limit_as_many_as_are_fetched_ahead_may_be_asked_for(unlimited: int) -> None:
    assert PullWindow(100, unlimited).wanted(0, 1_000_000) == 100


def test_what_is_away_is_asked_for_beside_the_prefetch() -> None:
    window = PullWindow(100, 1000)
    assert window.wanted(0, 0, 10) == 110
    window.ask(110)
    assert window.wanted(0, 0, 10) == 0


@pytest.mark.parametrize(("held", "wanted"), [(110, 10), (995, 5), (1000, 1), (1010, 1)])
def test_what_is_away_is_asked_for_when_new_messages_came_before_it(held: int, wanted: int) -> None:
    """Otherwise everything would wait for it forever."""
    window = PullWindow(100, 1000)
    assert window.wanted(held, held, 10) == wanted
    window.ask(wanted)
    assert window.wanted(held, held, 10) == 0


def test_the_server_may_bound_one_request() -> None:
    window = PullWindow(100, 1000)
    window.limit(20)
    assert window.wanted(0, 0) == 20
    window.limit(0)
    assert window.wanted(0, 0) == 1
    assert window.wanted(200, 200, 10) == 1


def test_a_share_of_the_prefetch_can_change() -> None:
    window = PullWindow(100, 1000)
    window.share(8)
    assert window.wanted(0, 0) == 8
    assert window.wanted(6, 6) == 2


def test_credit_is_what_was_asked_for_and_has_not_arrived() -> None:
    window = PullWindow(10, 0)
    window.ask(4)
    window.ask(3)
    window.receive()
    assert window.credit == 6
    window.end(2)
    assert window.credit == 4
    window.end(9)
    assert window.credit == 0
    window.receive()
    assert window.credit == 0, "a message of a request that was taken for dead"
    window.ask(4)
    window.reset()
    assert window.credit == 0


@given(
    prefetch=st.integers(1, 50),
    max_pending=st.integers(1, 50),
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))),
)
def test_credit_is_bounded_however_messages_come_and_go(
    prefetch: int, max_pending: int, steps: list[tuple[int, int, int]]
) -> None:
    """consumer/C:C7: a request is in flight whenever no message is here."""
    window, received, held = PullWindow(prefetch, max_pending), 0, 0
    for arriving, taken, settled in steps:
        window.ask(window.wanted(received, held))
        assert window.credit + received <= prefetch
        assert window.credit + held <= max_pending
        assert window.credit or received or held
        arrived = min(arriving, window.credit)
        for _ in range(arrived):
            window.receive()
        received, held = received + arrived, held + arrived
        received -= min(taken, received)
        held -= min(settled, held - received)
