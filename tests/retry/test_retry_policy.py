"""The errors that end the work, and the number of attempts.

White box: the loop of calls that only clients inside the package make.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from sluicegate import (
    Backoff,
    ErrorClass,
    PermanentError,
    RetryPolicy,
    TransientError,
    UnavailableError,
)
from sluicegate._core.errors import classify
from sluicegate._core.retry_policy import RetryState, run_with_retries

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock

POLICY = RetryPolicy(attempts=3, unlisted_attempts=2)


def test_waits_double_up_to_the_longest() -> None:
    backoff = Backoff(base=0.1, longest=5.0, jitter="none")
    assert [backoff(tries) for tries in (1, 2, 3, 7, 5_000)] == [0.1, 0.2, 0.4, 5.0, 5.0]


async def test_durations_are_seconds_or_a_timedelta(fake_clock: FakeClock) -> None:
    """batcher/B47: including those of a policy that no other class has checked."""
    minute = timedelta(minutes=1)
    policy = RetryPolicy(
        max_seconds=minute,
        give_up_after=minute,
        max_retry_after=minute,
        backoff=Backoff(base=timedelta(milliseconds=100), longest=minute, jitter="none"),
    )
    assert [policy.backoff(tries) for tries in (1, 2, 5_000)] == [0.1, 0.2, 60.0]
    state = RetryState(policy, classify)
    error = UnavailableError("starting")
    assert [state.wait_after(error) for _ in range(9)][-2:] == [12.8, 25.6]
    assert state.wait_after(error) is None


@pytest.mark.parametrize("kind", [ErrorClass.PERMANENT, ErrorClass.STOPPED])
def test_a_final_error_ends_the_work_at_once(kind: ErrorClass) -> None:
    assert POLICY.is_over(kind, 0)


@pytest.mark.parametrize("kind", [ErrorClass.THROTTLE, ErrorClass.UNAVAILABLE, ErrorClass.REFUSED])
def test_an_uncounted_error_never_ends_the_work(kind: ErrorClass) -> None:
    assert not POLICY.is_over(kind, 1_000)


def test_other_errors_end_it_when_the_attempts_are_used_up() -> None:
    kinds = (ErrorClass.TRANSIENT, ErrorClass.UNKNOWN, ErrorClass.UNLISTED)
    assert [POLICY.is_over(kind, 2) for kind in kinds] == [False, False, True]
    assert [POLICY.is_over(kind, 3) for kind in kinds] == [True, True, True]


def test_an_unknown_outcome_is_not_tried_again_unless_told_so() -> None:
    assert RetryPolicy(resend_unknown=False).is_over(ErrorClass.UNKNOWN, 1)


def test_waits_are_limited_in_total() -> None:
    policy = RetryPolicy(give_up_after=0.5, backoff=Backoff(base=0.1, longest=5.0, jitter="none"))
    state = RetryState(policy, classify)
    error = UnavailableError("starting")
    assert [state.wait_after(error) for _ in range(3)] == [0.1, 0.2, None]
    assert state.failed == 3


async def test_no_attempt_starts_after_the_longest_time(fake_clock: FakeClock) -> None:
    """Outages do not count."""
    policy = RetryPolicy(
        attempts=99, max_seconds=60.0, backoff=Backoff(base=10.0, longest=10.0, jitter="none")
    )
    tried: list[float] = []

    async def work() -> None:
        tried.append(fake_clock.now() - began)
        await asyncio.sleep(1.0)
        raise UnavailableError("starting") if len(tried) in {1, 4} else TransientError("busy")

    began = fake_clock.now()
    with pytest.raises(TransientError, match="busy"):
        await run_with_retries(work, RetryState(policy, classify))
    assert tried == [11.0 * attempt for attempt in range(8)]


async def test_work_runs_until_it_succeeds(fake_clock: FakeClock) -> None:
    began = fake_clock.now()
    errors: list[Exception] = [TransientError("once"), UnavailableError("twice")]

    async def work() -> int:
        if errors:
            raise errors.pop(0)
        return 7

    assert await run_with_retries(work, RetryState(RetryPolicy(), classify)) == 7
    assert fake_clock.now() - began == pytest.approx(0.3)


async def test_the_last_error_is_raised(fake_clock: FakeClock) -> None:
    async def work() -> None:
        raise PermanentError("bad")

    with pytest.raises(PermanentError, match="bad"):
        await run_with_retries(work, RetryState(RetryPolicy(), classify))
