"""The attempts of a failing message: their number, their times, and their end."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, Recorder, finite, log_of

from sluicegate import (
    Backoff,
    ConfigError,
    Nak,
    PermanentError,
    RetryPolicy,
    ThrottledError,
    TransientError,
    UnavailableError,
)
from sluicegate.consumer import Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate import Message
    from sluicegate.testing import FakeClock


class Fixed(Random):
    """Always draws the same share of an interval, 0 or 1."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def uniform(self, a: float, b: float) -> float:
        return a + self.share * (b - a)


class Failing:
    """Fails with these errors, one per attempt, then always with the last one."""

    def __init__(self, clock: FakeClock, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.tries: list[tuple[float, int]] = []
        self._clock = clock

    async def __call__(self, message: Message) -> None:
        self.tries.append((round(self._clock.now(), 6), message.attempt))
        raise self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]

    @property
    def times(self) -> list[float]:
        return [time for time, _ in self.tries]


def waits(times: Sequence[float]) -> list[float]:
    return [round(later - time, 6) for time, later in pairwise(times)]


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, [0.0] * 5), (1.0, [0.1, 0.2, 0.4, 0.5, 0.5])],
)
async def test_the_delays_double_up_to_the_longest(
    fake_clock: FakeClock, share: float, expected: list[float]
) -> None:
    """consumer/O23, O-T19, consumer/C:F1: base * 2 ** (n - 1), up to the maximum, with full
    jitter.
    """
    backoff = Backoff(base=0.1, longest=0.5, rng=Fixed(share))
    handler = Failing(fake_clock, TransientError("down"))
    retry = RetryPolicy(attempts=6, backoff=backoff)
    report = await finite(log_of("a"), fake_clock, retry=retry).run(handler)
    assert waits(handler.times) == expected
    assert [attempt for _, attempt in handler.tries] == [1, 2, 3, 4, 5, 6]
    assert report.counts.naks == 6
    assert report.blocked[0].attempts == 6
    assert isinstance(report.blocked[0].error, TransientError)


@pytest.mark.parametrize(
    ("error", "tries"),
    [(TransientError("x"), 5), (ValueError("unlisted"), 3), (PermanentError("x"), 1)],
)
async def test_the_class_of_the_error_decides_about_the_attempts(
    fake_clock: FakeClock, error: BaseException, tries: int
) -> None:
    """consumer/O23, O-T19, consumer/C:F1: the attempts depend on the class of the exception."""
    report = await finite(log_of("a"), fake_clock).run(handler := Failing(fake_clock, error))
    assert len(handler.tries) == tries
    assert report.blocked[0].error is error


@pytest.mark.parametrize("on_nak", ["block", "redeliver"])
async def test_later_messages_of_the_key_wait_or_pass(fake_clock: FakeClock, on_nak: Any) -> None:
    """O-T19: with `redeliver` they may pass the failed message; its own end is the same."""
    log, handled = log_of("a", "a", "b"), []

    async def handle(message: Message) -> Nak | None:
        handled.append(message.offset)
        return Nak(1.0) if message.offset == 0 else None

    retry = RetryPolicy(attempts=3)
    consumer = finite(log, fake_clock, on_nak=on_nak, retry=retry, poison="skip")
    report = await consumer.run(handle)
    assert handled == ([0, 2, 0, 0, 1] if on_nak == "block" else [0, 2, 1, 0, 0])
    assert report.counts.terminated == 1
    assert log.positions[P0] == Position(3)


async def test_an_outage_uses_up_no_attempt(fake_clock: FakeClock) -> None:
    """consumer/C:F1: refused, throttled and unreachable destinations are not the message's fault."""
    errors = [UnavailableError("down")] * 20 + [TransientError("x")]
    handler = Failing(fake_clock, *errors)
    await finite(log_of("a"), fake_clock, retry=RetryPolicy(attempts=2)).run(handler)
    assert len(handler.tries) == 22


@pytest.mark.parametrize("delay", [7, timedelta(seconds=7)])
async def test_a_nak_may_have_a_delay_of_its_own(
    fake_clock: FakeClock, delay: float | timedelta
) -> None:
    """consumer/O20, batcher/B47: in seconds or as a `timedelta`."""
    times: list[float] = []

    async def handle(message: Message) -> Nak | None:
        times.append(fake_clock.now())
        return Nak(delay) if message.attempt == 1 else None

    await finite(log_of("a"), fake_clock).run(handle)
    assert waits(times) == [7.0]


@pytest.mark.parametrize("delay", [-1.0, float("inf"), "7", True])
def test_a_bad_delay_is_refused(delay: Any) -> None:
    """B-T30: when the result is created, so its message counts a failed attempt."""
    with pytest.raises(ConfigError, match=r"delay=.*: must be at least 0 seconds"):
        Nak(delay)


@pytest.mark.parametrize("limit", [10.0, timedelta(seconds=10)])
async def test_an_outage_ends_after_give_up_after(
    fake_clock: FakeClock, limit: float | timedelta
) -> None:
    """batcher/B47: in seconds or as a `timedelta`; a wait that would exceed the limit is not
    started.
    """
    retry = RetryPolicy(give_up_after=limit, backoff=Backoff(base=4.0, longest=4.0, jitter="none"))
    handler = Failing(fake_clock, UnavailableError("down"))
    report = await finite(log_of("a"), fake_clock, retry=retry).run(handler)
    assert handler.times == [0.0, 4.0, 8.0]
    assert len(report.blocked) == 1


@pytest.mark.parametrize("arguments", [{"base": -1.0}, {"longest": "30"}])
def test_a_bad_backoff_is_refused(arguments: dict[str, Any]) -> None:
    """B-T30: when it is created."""
    with pytest.raises(
        ConfigError,
        match=r"(base=-1\.0: must be at least 0|longest='30': must be more than 0) seconds",
    ):
        Backoff(**arguments, jitter="none")


async def test_max_seconds_does_not_count_outages(fake_clock: FakeClock) -> None:
    """Two failures with an outage of 40 s between them count as 8 s."""
    bad, down = TransientError("x"), UnavailableError("down")
    retry = RetryPolicy(
        attempts=99, max_seconds=10.0, backoff=Backoff(base=4.0, longest=4.0, jitter="none")
    )
    handler = Failing(fake_clock, bad, *[down] * 10, bad, bad, bad)
    await finite(log_of("a"), fake_clock, retry=retry).run(handler)
    assert handler.times == [4.0 * each for each in range(13)]


async def test_a_wait_that_the_destination_requested_is_kept(fake_clock: FakeClock) -> None:
    errors = ThrottledError("slow down", retry_after=7.0), TransientError("x")
    handler = Failing(fake_clock, *errors)
    retry = RetryPolicy(attempts=1)
    await finite(log_of("a"), fake_clock, retry=retry).run(handler)
    assert waits(handler.times) == [7.0]


async def test_attempts_begin_again_in_another_process(fake_clock: FakeClock) -> None:
    """O-T19, consumer/C:F1: the position in a log contains no attempts."""
    log = log_of("a")
    await finite(log, fake_clock).run(Failing(fake_clock, TransientError("x")))
    again = Recorder()
    await finite(log, fake_clock).run(again)
    assert [message.attempt for message in again.handled] == [1]
