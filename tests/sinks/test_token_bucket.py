"""The parts of a rate limit without a clock.

White box: the parts of the limit.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate._core.clock import Signal
from sluicegate.sinks.meter import Meter, TokenBucket, Turn


def test_a_bucket_lets_through_what_it_holds_and_then_what_comes() -> None:
    bucket = TokenBucket(rate=10.0, burst=20.0, now=0.0)
    assert bucket.due(20.0, 0.0) == 0.0
    bucket.take(20.0)
    assert bucket.due(5.0, 0.0) == 0.5
    assert bucket.due(5.0, 0.5) == 0.5
    bucket.take(5.0)
    assert bucket.due(20.0, 100.0) == 100.0
    bucket.take(20.0)
    assert bucket.due(1.0, 100.0) == 100.1


def test_an_amount_larger_than_the_bucket_passes_when_it_is_full_and_leaves_a_debt() -> None:
    bucket = TokenBucket(rate=10.0, burst=20.0, now=0.0)
    assert bucket.due(100.0, 0.0) == 0.0
    bucket.take(100.0)
    assert bucket.due(1.0, 0.0) == pytest.approx(8.1)
    assert bucket.due(100.0, 0.0) == 10.0


@given(
    st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(1, 300)), min_size=1, max_size=40),
    st.sampled_from([0.3, 1.0, 7.0, 1000.0]),
    st.sampled_from([0.0, 1.0, 50.0]),
)
def test_no_stretch_of_time_sees_more_than_the_rate_and_one_burst(
    calls: list[tuple[float, int]], rate: float, burst: float
) -> None:
    """Every amount passes, and in any T seconds at most rate x T + max(burst, largest)."""
    bucket, now, passed = TokenBucket(rate, burst, 0.0), 0.0, list[tuple[float, int]]()
    for wait, amount in calls:
        now = max(now + wait, bucket.due(amount, now + wait))
        assert bucket.due(amount, now) <= now + 1e-6
        bucket.take(amount)
        passed.append((now, amount))
    most = max(burst, max(amount for _, amount in calls))
    for first, (start, _) in enumerate(passed):
        total = 0
        for when, amount in passed[first:]:
            total += amount
            assert total <= rate * (when - start) + most + 1e-6 * total


def test_a_pause_empties_the_bucket() -> None:
    bucket = TokenBucket(rate=10.0, burst=20.0, now=0.0)
    bucket.pause(5.0, 0.0)
    assert bucket.due(10.0, 1.0) == 6.0
    assert bucket.due(10.0, 6.0) == 6.0


def test_a_new_rate_counts_from_now_on() -> None:
    bucket = TokenBucket(rate=1.0, burst=10.0, now=0.0)
    bucket.take(10.0)
    bucket.set_rate(10.0, 5.0)
    assert bucket.due(10.0, 5.0) == 5.5


def meter(per_second: float = 10.0, burst: float = 10.0) -> Meter:
    return Meter(per_second, burst, 0.0)


def turn(of: Meter, amount: float) -> Turn:
    made = Turn(amount, Signal())
    of.join(made)
    return made


def test_turns_pass_in_order_however_small_the_later_ones_are() -> None:
    target = meter()
    first, large, small = turn(target, 10.0), turn(target, 8.0), turn(target, 1.0)
    assert target.due(small, 0.0) == float("inf")
    target.take(first)
    assert [target.due(t, 0.0) for t in (large, small)] == [0.8, float("inf")]
    target.take(large)
    target.leave(large)
    assert target.due(small, 0.8) == pytest.approx(0.9)


def test_throttling_halves_the_rate_once_per_event_and_it_comes_back_in_steps() -> None:
    target = meter()
    target.throttle(5.0, 0.0)
    target.throttle(6.0, 1.0)
    assert target.share == 0.5
    waiting = turn(target, 5.0)
    assert target.due(waiting, 1.0) == 7.0
    assert target.look_again_at(waiting, 1.0) == 7.0
    assert target.due(waiting, 6.0) == 7.0
    for now, share in ((7.0, 0.6), (7.9, 0.6), (8.0, 0.7), (30.0, 1.0)):
        target.due(waiting, now)
        assert target.share == pytest.approx(share)
    for event in range(9):
        target.throttle(40.0 + event / 100, 40.0 + event / 100)
    assert target.share == 1 / 16


def test_a_slowed_target_is_asked_again_when_its_rate_comes_back() -> None:
    target = meter(burst=100.0)
    target.throttle(1.0, 0.0)
    waiting = turn(target, 100.0)
    assert target.due(waiting, 1.0) == 21.0
    assert target.look_again_at(waiting, 1.0) == 2.0
    assert target.due(waiting, 2.0) == pytest.approx(2.0 + 95.0 / 6.0)


def test_a_step_that_rounding_makes_a_hair_too_short_is_one_all_the_same() -> None:
    """Otherwise a waiter would be woken again at once, forever."""
    target, end = meter(burst=1_000.0), 1.3436424411240122
    target.throttle(end, 0.0)
    waiting = turn(target, 1_000.0)
    assert end + 1.0 - end < 1.0
    assert target.look_again_at(waiting, end + 1.0) > end + 1.5
