"""Adaptive control without a clock: the batch size, the workers, and attempts that change
neither.

White box: the control itself, attempt by attempt.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate import (
    ConfigError,
    ErrorClass,
    Limits,
    PermanentError,
    ThrottledError,
    TransientError,
    UnavailableError,
)
from sluicegate.batcher import Adaptive, Reason
from sluicegate.batcher.adaptive import (
    HOLD,
    TRIES,
    AdaptiveControl,
    Ceiling,
    ItemsControl,
    Load,
    Setting,
    Try,
    WorkersControl,
)
from sluicegate.batcher.gathering.pack import Sealed
from sluicegate.batcher.governor import Governor, load_of
from sluicegate.errors import CircuitOpenError, TimedOutError, TooLargeError
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import Iterable

PATIENCE = 5.0


def items_after(start: int, tries: Iterable[Try], *, least: int = 1, most: int = 1000) -> int:
    control = ItemsControl(start=start, least=least, most=most, patience=PATIENCE)
    for one in tries:
        control.heard(
            one.ended,
            one.ended - one.seconds,
            one.items,
            fine=one.load is Load.FINE,
            too_much=one.load is Load.TOO_MUCH,
            too_large=one.load is Load.TOO_LARGE,
        )
    return control.now


def ten(items: int, *, seconds: float = 0.1, one: Load = Load.FINE, at: float = 0.0) -> list[Try]:
    """Ten attempts of one size, the last of them as `one`."""
    fine = [
        Try(ended=at + number + seconds, seconds=seconds, items=items)
        for number in range(TRIES - 1)
    ]
    return [*fine, Try(ended=at + 9 + seconds, seconds=seconds, items=items, load=one)]


@pytest.mark.parametrize(
    ("items", "seconds", "load", "after"),
    [
        (100, 0.1, Load.TOO_MUCH, 50),
        (100, 0.1, Load.TOO_LARGE, 50),
        (100, 0.1, Load.SILENT, 100),
        (100, 0.1, Load.FINE, 125),
        (91, 2.4, Load.FINE, 125),
        (90, 0.1, Load.FINE, 100),  # not more than nine tenths full
        (100, 2.5, Load.FINE, 100),  # half the patience
        (30, 0.1, Load.FINE, 100),  # not less than three tenths full
        (29, 0.1, Load.FINE, 75),
    ],
)
def test_the_size_after_ten_tries(items: int, seconds: float, load: Load, after: int) -> None:
    """B-T29, batcher/B45: each row of the table, at its edge."""
    assert items_after(100, ten(items, seconds=seconds, one=load)) == after


def test_ten_is_ten() -> None:
    """B-T29."""
    assert TRIES == 10


@pytest.mark.parametrize("load", Load)
def test_nine_tries_change_nothing(load: Load) -> None:
    """B-T29: fewer than ten records leave the size as it is."""
    assert items_after(100, ten(100, one=load)[1:]) == 100


@pytest.mark.parametrize(
    ("start", "items", "load", "after"),
    [
        (100, 100, Load.FINE, 110),
        (12, 12, Load.TOO_MUCH, 10),
        (11, 2, Load.FINE, 10),
        (110, 110, Load.FINE, 110),
        (10, 10, Load.TOO_LARGE, 10),
    ],
)
def test_the_size_is_clamped(start: int, items: int, load: Load, after: int) -> None:
    """B-T29: the least and the most."""
    assert items_after(start, ten(items, one=load), least=10, most=110) == after


@pytest.mark.parametrize("start", [1, 2, 3])
def test_a_small_size_grows_and_shrinks_by_one(start: int) -> None:
    """B-T29, batcher/1.2-13: a quarter of 3 rounds to 0, so every step is at least 1."""
    assert items_after(start, ten(start)) == start + 1
    assert items_after(start, ten(0)) == max(1, start - 1)


def test_a_size_that_was_too_large_is_approached_and_not_tried_again_at_once() -> None:
    """B-T29: after a batch that was too large, the size grows back to just below it; after a
    throttle, all the way.
    """
    for load, after in ((Load.TOO_LARGE, 99), (Load.TOO_MUCH, 100)):
        control = ItemsControl(start=100, least=1, most=100, patience=PATIENCE)
        for one in ten(100, one=load):
            control.heard(
                one.ended,
                one.ended,
                100,
                fine=False,
                too_much=load is Load.TOO_MUCH,
                too_large=load is Load.TOO_LARGE,
            )
        for number in range(10 * TRIES):
            control.heard(
                100.0 + number,
                100.0 + number,
                control.now,
                fine=True,
                too_much=False,
                too_large=False,
            )
        assert control.now == after


def test_tries_that_began_before_the_size_was_halved_do_not_halve_it_again() -> None:
    """B-T29: a hundred concurrent writes that time out count as one signal."""
    flood = [
        Try(ended=5.0 + number / 100, seconds=5.0, items=100, load=Load.TOO_MUCH)
        for number in range(100)
    ]
    assert items_after(100, flood) == 50


def test_a_ceiling_holds_and_holds_longer_when_it_is_hit_again() -> None:
    ceiling = Ceiling(100)
    holds: list[int] = []
    for _ in range(8):
        ceiling.objected(50)
        held = 0
        while ceiling.now == 49:
            ceiling.passes()
            held += 1
        assert ceiling.now == 100
        holds.append(held)
    assert holds == [20, 40, 80, 160, 320, 640, 640, 640]
    for _ in range(HOLD):
        ceiling.passes()
    ceiling.objected(50)
    ceiling.objected(40)  # during a hold the size is lower, for the same time
    assert ceiling.now == 39
    for _ in range(HOLD):
        ceiling.passes()
    assert ceiling.now == 100


class Steady:
    """Feeds a control one round trip after another, with one decision per round trip."""

    def __init__(self, control: WorkersControl, items: int = 100) -> None:
        self.control = control
        self.time = 0.0
        self.items = items

    def trips(self, *seconds: float, load: Load = Load.FINE, in_flight: int | None = None) -> int:
        for length in seconds:
            self.time += length + 10.0  # so that each is a separate decision
            busy = self.control.now if in_flight is None else in_flight
            self.control.heard(
                self.time,
                self.time - length,
                self.items,
                busy,
                fine=load is Load.FINE,
                too_much=load is Load.TOO_MUCH,
            )
        return self.control.now


def grown(to: int, most: int = 64) -> Steady:
    """A control that has grown to this many workers in round trips of one second."""
    steady = Steady(WorkersControl(start=1, least=1, most=most))
    assert steady.trips(*[1.0] * to) == to
    return steady


def test_workers_grow_by_one_in_a_round_trip_up_to_the_limit() -> None:
    """batcher/4a.11: the first round trip is the reference for the next."""
    steady = grown(5)
    assert steady.trips(1.0) == 6
    assert grown(8, most=8).trips(1.0, 1.0) == 8


def test_workers_that_are_not_all_busy_do_not_grow() -> None:
    assert grown(5).trips(1.0, 1.0, in_flight=4) == 5


def test_a_throttle_takes_a_tenth_at_least_one_and_never_the_last() -> None:
    assert grown(20).trips(1.0, load=Load.TOO_MUCH) == 18
    assert grown(3).trips(1.0, load=Load.TOO_MUCH) == 2
    assert grown(2).trips(1.0, 1.0, 1.0, load=Load.TOO_MUCH) == 1


def test_what_was_objected_to_is_not_tried_again_at_once() -> None:
    steady = grown(20)
    steady.trips(1.0, load=Load.TOO_MUCH)
    assert steady.trips(*[1.0] * (HOLD - 1)) == 19
    assert steady.trips(1.0, 1.0) == 21


def test_a_slower_round_trip_takes_a_tenth_and_a_little_slower_one_waits() -> None:
    assert grown(20).trips(1.05) == 20
    assert grown(20).trips(1.2) == 18


def test_variation_is_not_slowness() -> None:
    """2.5 standard deviations: if round trips always vary by half, one that takes 1.5 times as long
    is not slow.
    """
    steady = grown(20)
    steady.trips(*[0.7, 1.3] * 20)
    before = steady.control.now
    assert steady.trips(1.5) >= before


def test_half_as_long_again_as_at_best_halves() -> None:
    """A gradual slowdown is detected too, and the best round trip is measured again afterwards."""
    steady = grown(20)
    assert steady.trips(*[1.0 + number / 100 for number in range(50)], in_flight=0) == 20
    assert steady.trips(*[1.6] * 20, in_flight=0) == 10
    assert steady.trips(*[1.6] * 20, in_flight=0) == 10


def test_variation_is_not_half_as_long_again() -> None:
    """The best of several varying means is low by chance; an excess within the variation does not
    halve.
    """
    steady = grown(20)
    for _ in range(30):
        assert steady.trips(0.2, 2.4, in_flight=0) >= 18


@pytest.mark.parametrize(("silent", "after"), [(0, 22), (2, 22), (3, 21), (5, 21)])
def test_errors_that_say_nothing_freeze(silent: int, after: int) -> None:
    """decisions 0.3: no decision is made if at least half of its attempts ended like this;
    otherwise the others decide.
    """
    control = grown(20).control
    for number in range(7):  # decisions are due at the first and at the last one: five in between
        ended = 1000.0 + number / 6
        control.heard(
            ended, ended - 1.0, 100, control.now, fine=not 1 <= number <= silent, too_much=False
        )
    assert control.now == after


def test_round_trips_of_errors_that_say_nothing_are_not_taken_in() -> None:
    steady = grown(20)
    assert steady.trips(9.0, 0.1, load=Load.SILENT) == 20
    assert steady.trips(1.0) == 21


def test_throttles_of_one_round_trip_take_a_tenth_once() -> None:
    """batcher/4a.11: throttled writes return at once, so many begin and end within one round trip;
    they count as one signal.
    """
    control = grown(20).control
    for number in range(100):
        control.heard(
            1000.0 + number / 101, 1000.0 + number / 101, 100, 20, fine=False, too_much=True
        )
    assert control.now == 18
    control.heard(1001.2, 1001.2, 100, 20, fine=False, too_much=True)
    assert control.now == 16


def test_a_larger_batch_is_not_a_slower_destination() -> None:
    """Each doubling of the size has its own reference round trips."""
    steady = grown(20)
    steady.items = 1000
    assert steady.trips(7.0) == 20  # no reference yet
    assert steady.trips(7.0) == 21
    steady.items = 100
    assert steady.trips(1.0) == 22


def test_what_began_before_a_step_down_is_not_held_against_it() -> None:
    control = grown(20).control
    for number in range(20):
        control.heard(900.0 + number / 1000, 895.0, 100, 20, fine=False, too_much=True)
    assert control.now == 18


def control_of(limits: Limits, **rules: int) -> AdaptiveControl:
    return AdaptiveControl(Adaptive(**rules), limits, patience=PATIENCE)


def test_it_begins_with_one_worker_and_full_batches() -> None:
    limits = Limits(max_items=500, workers=8)
    assert control_of(limits).setting == Setting(1, 500)
    assert control_of(limits, start_items=50, start_workers=4).setting == Setting(4, 50)
    assert control_of(Limits(max_items=4)).setting == Setting(1, 4)


def test_idle_tries_change_nothing_unless_they_failed_for_load() -> None:
    """batcher/4a.11, 4c: low traffic neither grows nor shrinks the settings; the next burst begins
    with those of the last one.
    """
    control = control_of(Limits(max_items=500, workers=8))
    for load in (Load.FINE, Load.SILENT):
        for number in range(100):
            assert control.heard(
                Try(ended=number + 0.1, seconds=0.1, items=1, idle=True, load=load)
            ) == Setting(1, 500)
    for number in range(TRIES):
        control.heard(
            Try(ended=2000.0 + number, seconds=0.1, items=500, idle=True, load=Load.TOO_MUCH)
        )
    assert control.setting == Setting(1, 250)


def test_too_large_says_nothing_about_the_workers() -> None:
    control = control_of(Limits(max_items=500, workers=8), start_workers=8)
    for one in ten(500, one=Load.TOO_LARGE):
        control.heard(one)
    assert control.setting == Setting(8, 250)


@settings(deadline=None)
@given(st.integers(), st.integers(1, 64), st.integers(1, 2000), st.integers(1, 50))
def test_no_sequence_leaves_the_bounds(
    seed: int, workers: int, max_items: int, min_items: int
) -> None:
    """B-T29: clamped for any sequence; equal sequences give equal settings."""
    limits = Limits(
        max_items=max_items, workers=workers, max_pending_items=(workers + 1) * max_items
    )

    def run() -> list[Setting]:
        chance, now = random.Random(seed), 0.0
        control = control_of(limits, min_items=min_items)
        answers: list[Setting] = []
        for _ in range(100):
            now += chance.random()
            answers.append(
                control.heard(
                    Try(
                        ended=now,
                        seconds=chance.random() * 10,
                        items=chance.randint(0, max_items),
                        load=chance.choice(list(Load)),
                        in_flight=chance.randint(1, workers),
                        idle=chance.random() < 0.1,
                    )
                )
            )
        return answers

    answers = run()
    assert all(1 <= setting.workers <= workers for setting in answers)
    assert all(min(min_items, max_items) <= setting.max_items <= max_items for setting in answers)
    assert answers == run()


def busy() -> UnavailableError:
    """An error like HTTP 503 with `Retry-After`."""
    error = UnavailableError("shedding load")
    error.retry_after = 2.0
    return error


@pytest.mark.parametrize(
    ("error", "load"),
    [
        (ThrottledError("429"), Load.TOO_MUCH),
        (TimedOutError("cut off"), Load.TOO_MUCH),
        (TimeoutError(), Load.TOO_MUCH),
        (TooLargeError("413"), Load.TOO_LARGE),
        (PermanentError("a bad row"), Load.SILENT),
        (TransientError("a deadlock"), Load.SILENT),
        (ConnectionRefusedError(), Load.SILENT),
        (UnavailableError("nobody there"), Load.SILENT),
        (busy(), Load.TOO_MUCH),
        (CircuitOpenError("not tried", retry_after=1.0), Load.SILENT),
        (ValueError("a bug"), Load.SILENT),
    ],
)
def test_what_an_error_says_about_load(error: Exception, load: Load) -> None:
    """decisions 0.3, adaptive size: timeouts, throttles and too-large errors count; errors
    unrelated to load do not.
    """
    assert load_of(error) is load
    wrapped = RuntimeError("a client's own")
    wrapped.__cause__ = error
    if not isinstance(error, ThrottledError):
        assert load_of(wrapped) is load


def sealed(*, of_tenant: bool = False, full: bool = True) -> Sealed[int]:
    reason = Reason.SIZE if full else Reason.TIME
    return Sealed([1], reason, 0, 0.0, 0.0, {}, owner=object() if of_tenant else None)


def governed(*, rests: bool, told: bool, errors: list[BaseException]) -> Setting | None:
    """The settings after one attempt that follows a pause, and ten more without a pause, of one
    item each.
    """
    governor = Governor(Adaptive(), Limits(max_items=100, workers=8), MemorySink())
    for number in range(1 + TRIES):
        one = governor.begins(1, sealed(), float(number))
        governor.heard(one, errors)
        governor.ends(one, number + 1.0, rests=rests, told=told)
    return governor.setting


def test_which_tries_are_told() -> None:
    """batcher/4b.10: an attempt that only waited does not count, and neither does a shutdown."""
    throttled: list[BaseException] = [ThrottledError("slow down")]
    assert governed(rests=False, told=True, errors=[]) == Setting(2, 75)
    assert governed(rests=True, told=True, errors=[]) == Setting(1, 100)
    assert governed(rests=True, told=True, errors=throttled) == Setting(1, 50)
    assert governed(rests=False, told=False, errors=throttled) == Setting(1, 100)


def test_what_a_tenant_tells() -> None:
    """batcher/4b.6: throttles and sparse batches of a tenant affect only that tenant; its timeouts
    and full batches count for all.
    """
    for error, full, after in (
        (ThrottledError("slow down"), True, Setting(1, 100)),
        (TimedOutError("cut off"), True, Setting(1, 50)),
        (None, True, Setting(2, 75)),
        (None, False, Setting(2, 100)),
    ):
        governor = Governor(Adaptive(), Limits(max_items=100, workers=8), MemorySink())
        for number in range(1 + TRIES):
            one = governor.begins(1, sealed(of_tenant=True, full=full), float(number))
            governor.heard(one, [] if error is None else [error])
            governor.ends(one, number + 1.0, rests=False, told=True)
        assert governor.setting == after, error


def test_the_sink_says_what_its_errors_mean() -> None:
    assert load_of(KeyError("53300"), lambda _: ErrorClass.THROTTLE) is Load.TOO_MUCH


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"min_items": 0}, "min_items=0"),
        ({"start_workers": 0}, "start_workers=0"),
        ({"min_workers": 4, "start_workers": 2}, "at least min_workers=4"),
        ({"min_items": 40, "start_items": 20}, "at least min_items=40"),
    ],
)
def test_bad_rules_are_refused(rules: dict[str, int], said: str) -> None:
    """batcher/B46."""
    with pytest.raises(ConfigError, match=said):
        Adaptive(**rules)


@pytest.mark.parametrize("rules", [{"start_items": 501}, {"min_workers": 3}, {"start_workers": 3}])
def test_rules_above_the_limits_are_refused(rules: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="must not be above the limit"):
        Adaptive(**rules).check_against(Limits(max_items=500, workers=2))
