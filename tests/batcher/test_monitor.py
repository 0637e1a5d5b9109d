"""An outage is visible: in the log, in `stats()`, to observers and in the metrics.

White box: the states of one destination, without a batcher.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import tenacity
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from sluicegate import (
    Batch,
    Batcher,
    CircuitBreaker,
    Limits,
    Observer,
    PermanentError,
    RefusedError,
    Retry,
    ThrottledError,
    TransientError,
    UnavailableError,
    stack,
)
from sluicegate._core.delivery.host import Condition, DestinationState
from sluicegate.batcher.monitor import EVERY, Conditions
from sluicegate.batcher.report import DestinationStats
from sluicegate.telemetry import PrometheusObserver
from sluicegate.testing import ScriptedSink, fail, ok

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate.testing import FakeClock

LIMITS = Limits(max_items=10, max_delay=0.1, workers=2)
DOWN = UnavailableError("connection refused")
REFUSED = RefusedError(
    "permission denied for table events", repair='grant INSERT on "events" to "app"'
)


class Seen(Observer):
    def __init__(self) -> None:
        self.states: list[tuple[str, str]] = []
        self.retries: list[tuple[str, int]] = []

    def on_destination(self, name: str, state: str, reason: str) -> None:
        self.states.append((state, reason))

    def on_retry(self, batch: Batch[Any], error_class: str, items: int, delay: float) -> None:
        assert delay >= 0
        self.retries.append((error_class, items))


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """The lines of the monitor with their levels."""
    return [
        (record.levelno, record.getMessage())
        for record in caplog.records
        if "the destination" in record.getMessage()
    ]


def down_until(clock: FakeClock, when: float, error: Exception) -> Callable[[Batch[int]], Any]:
    async def write(batch: Batch[int]) -> None:
        if clock.now() < when:
            raise error

    return write


@pytest.mark.parametrize(
    ("error", "level", "told", "state"),
    [
        (DOWN, logging.WARNING, "the destination has been unavailable since", "unavailable"),
        (REFUSED, logging.ERROR, "the destination has refused every write since", "refused"),
        (
            ThrottledError("slow down", retry_after=200.0),
            logging.WARNING,
            "the destination has been throttling since",
            "throttled",
        ),
    ],
)
async def test_an_outage_is_told_of_at_once_each_minute_and_when_it_ends(
    fake_clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    level: int,
    told: str,
    state: str,
) -> None:
    """One line at its beginning, with the cause and the number of waiting items, one line per
    minute, and one at its end with the duration.
    """
    caplog.set_level(logging.INFO, "sluicegate")
    seen = Seen()
    sink = stack(down_until(fake_clock, 150.0, error), Retry(backoff=tenacity.wait_fixed(1.0)))
    async with Batcher(sink, limits=LIMITS, observers=[seen], name="audit") as batcher:
        await batcher.add_many(range(10))
        await fake_clock.advance(1.0)
        assert len(lines(caplog)) == 1
        await batcher.add_many(range(15))
        await fake_clock.advance(99.0)
        stats = batcher.stats()
        assert stats.destination.state == state
        assert stats.destination.seconds == pytest.approx(100.0)
        assert type(error).__name__ in stats.destination.reason
        assert stats.last_error is not None
        assert stats.last_error.error_type == type(error).__name__
        assert await batcher.flush()
        assert batcher.stats().destination == DestinationStats()
    found = lines(caplog)
    assert [one for one, _ in found] == [level] * (
        1 + int(found[-1][1].split(" after ")[1].split()[0].split(".")[0]) // 60
    ) + [logging.INFO]
    assert all(message.startswith("batcher 'audit': ") for _, message in found)
    assert told in found[0][1]
    assert "10 items and 0 producers wait" in found[0][1]
    assert "(60 s)" in found[1][1]
    assert "25 items" in found[1][1]
    assert "available again after" in found[-1][1]
    assert [one for one, _ in seen.states] == [state, "available"]
    assert {kind for kind, _ in seen.retries} == {{"throttled": "throttle"}.get(state, state)}


async def test_a_refusal_names_its_repair_and_no_item(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    sink = stack(down_until(fake_clock, 10.0, REFUSED), Retry())
    async with Batcher(sink, limits=LIMITS) as batcher:
        await batcher.add_many(range(10))
        await fake_clock.advance(1.0)
        assert batcher.stats().destination.repair == 'grant INSERT on "events" to "app"'
        assert await batcher.flush()
    (line,) = [message for level, message in lines(caplog) if level == logging.ERROR]
    assert line.count('to repair: grant INSERT on "events" to "app"') == 1


async def test_a_circuit_is_told_of_when_it_opens_and_when_it_closes(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluicegate")
    sink = stack(
        ScriptedSink[int]([fail(TransientError("broken"))] * 3),
        CircuitBreaker(failure_rate=None, consecutive=2, open_for=100.0, longest_open=200.0),
        Retry(backoff=tenacity.wait_fixed(1.0)),
    )
    async with Batcher(sink, limits=LIMITS) as batcher:
        await batcher.add_many(range(10))
        await fake_clock.advance(10.0)
        assert batcher.stats().destination.state == "circuit_open"
        assert await batcher.flush()
    assert [level for level, _ in lines(caplog)] == [logging.WARNING] * (len(lines(caplog)) - 1) + [
        logging.INFO
    ]
    assert "the open circuit breaker has kept writes" in lines(caplog)[0][1]


def test_throttling_that_comes_and_goes_is_told_of_once_a_minute() -> None:
    conditions = Conditions()
    throttled = Condition(DestinationState.THROTTLED, "429")
    told = [now for now in range(300) if _flicker(conditions, throttled, float(now))]
    assert told == [0, 60, 120, 180, 240]


def test_a_trouble_that_comes_back_at_once_is_told_of_again_only_if_it_lasts() -> None:
    """For example an item that is refused alone ten times in a second."""
    conditions = Conditions()
    refused = Condition(DestinationState.REFUSED, "403")
    told = [now for now in range(10) if _flicker(conditions, refused, now * 0.1, 0.05)]
    assert told == [0]
    conditions.begins("retry", refused, 2.0)
    assert conditions.next_reminder == 7.0
    assert [trouble.since for trouble in conditions.remind(7.0)] == [2.0]
    assert conditions.next_reminder == 67.0
    assert conditions.ends("retry", 30.0) is not None
    assert conditions.begins("retry", refused, 40.0) is not None


def test_a_told_trouble_that_changes_its_kind_is_told_of_to_its_end() -> None:
    conditions = Conditions()
    conditions.begins("retry", Condition(DestinationState.REFUSED, "403"), 0.0)
    conditions.ends("retry", 1.0)
    assert (
        conditions.begins("retry", Condition(DestinationState.UNAVAILABLE, "gone"), 2.0) is not None
    )
    assert conditions.begins("retry", Condition(DestinationState.REFUSED, "403"), 3.0) is not None
    assert conditions.ends("retry", 4.0) is not None


def _flicker(conditions: Conditions, condition: Condition, now: float, lasts: float = 0.5) -> bool:
    begun = conditions.begins("retry", condition, now)
    reminded = conditions.remind(now)
    conditions.ends("retry", now + lasts)
    return bool(begun or reminded)


def test_the_worst_of_several_destinations_is_shown() -> None:
    conditions = Conditions()
    conditions.begins("a", Condition(DestinationState.THROTTLED, "429"), 0.0)
    conditions.begins("b", Condition(DestinationState.REFUSED, "403", "log in"), 10.0)
    conditions.begins("c", Condition(DestinationState.UNAVAILABLE, "gone"), 20.0)
    assert conditions.state.value == "refused"
    assert conditions.next_reminder == EVERY
    conditions.ends("b", 30.0)
    assert conditions.state.value == "unavailable"
    conditions.ends("c", 40.0)
    conditions.ends("a", 45.0)
    assert not conditions.troubles
    expected = {
        DestinationState.THROTTLED: 15.0,
        DestinationState.REFUSED: 20.0,
        DestinationState.UNAVAILABLE: 10.0,
    }
    assert conditions.seconds(50.0) == expected


async def test_the_metrics_show_the_state_and_the_retries(fake_clock: FakeClock) -> None:
    registry = CollectorRegistry()
    sink = stack(
        ScriptedSink[int]([fail(REFUSED), fail(DOWN), fail(TransientError("once")), ok()]),
        Retry(backoff=tenacity.wait_fixed(10.0)),
    )
    async with Batcher(
        sink, limits=LIMITS, observers=[PrometheusObserver(registry)], name="audit"
    ) as batcher:
        await batcher.add(1)
        await fake_clock.advance(1.0)
        assert (
            'batcher_destination_state{name="audit",state="refused"} 1.0'
            in generate_latest(registry).decode()
        )
        assert await batcher.flush()
        shown = generate_latest(registry).decode()
        assert 'batcher_destination_state{name="audit",state="refused"} 0.0' in shown
        assert 'batcher_destination_state{name="audit",state="available"} 1.0' in shown
        for kind, count in {
            "refused": 1,
            "unavailable": 1,
            "transient": 1,
            "throttle": 0,
            "unknown": 0,
        }.items():
            assert f'batcher_retries_total{{class="{kind}",name="audit"}} {count}.0' in shown
        assert batcher.stats().retries == 3


async def test_the_last_error_is_known_also_where_nothing_is_tried_again(
    fake_clock: FakeClock,
) -> None:
    async with Batcher(
        ScriptedSink[int]([fail(PermanentError("bad row"))]), limits=LIMITS
    ) as batcher:
        assert batcher.stats().last_error is None
        await batcher.add(1)
        await batcher.flush()
        await fake_clock.advance(5.0)
        last = batcher.stats().last_error
        assert last is not None
        assert (last.error_type, last.error_class, last.message) == (
            "PermanentError",
            "permanent",
            "PermanentError: bad row",
        )
        assert last.age >= 5.0


async def test_two_batchers_on_one_sink_both_hear_of_its_outage(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """One of them probes; the other one waits and also reports the outage."""
    caplog.set_level(logging.INFO, "sluicegate")
    sink = stack(down_until(fake_clock, 30.0, DOWN), Retry())
    async with (
        Batcher(sink, limits=LIMITS, name="one") as one,
        Batcher(sink, limits=LIMITS, name="two") as two,
    ):
        await one.add(1)
        await fake_clock.advance(5.0)
        await two.add(2)
        await fake_clock.advance(5.0)
        assert two.stats().destination.state == one.stats().destination.state == "unavailable"
        assert await one.flush()
        assert await two.flush()
        assert two.stats().destination.state == one.stats().destination.state == "available"
    assert sorted(message[:14] for level, message in lines(caplog) if level == logging.INFO) == [
        "batcher 'one':",
        "batcher 'two':",
    ]
