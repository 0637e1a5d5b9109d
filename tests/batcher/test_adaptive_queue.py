"""The control of workers in front of a queueing station with `servers` that each handle one write
at a time.

By Little's law, as many writes as servers use the full capacity, and each further one only waits.
The control sees only round trips, and must settle near that number for every seed.

White box: the control of workers without a batcher.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from sluicegate.batcher.adaptive import WorkersControl

SERVICE = 0.1
SEEDS = range(1, 4)


@dataclass
class Seen:
    """A write that has ended."""

    at: float
    workers: int
    ok: bool


def exponential(variation: float) -> Callable[[random.Random], float]:
    """A service time of 0.1 s plus an exponential excess."""
    return lambda chance: SERVICE * (1 + (chance.expovariate(1 / variation) if variation else 0.0))


def run(
    servers: Callable[[float], int],
    *,
    seed: int,
    seconds: float = 40.0,
    service: Callable[[random.Random], float] | None = None,
    most: int = 64,
    timeout: float | None = None,
    silent: float = 0.0,
) -> list[Seen]:
    """Keep as many writes in flight as the control allows."""
    chance = random.Random(seed)
    service = service or exponential(0.05)
    control = WorkersControl(start=1, least=1, most=most)
    free: list[float] = []
    under_way: list[tuple[float, int, float, bool]] = []
    seen: list[Seen] = []
    now, number = 0.0, 0
    while now < seconds:
        while len(under_way) < control.now:
            while len(free) > servers(now):
                heapq.heappop(free)
            while len(free) < servers(now):
                heapq.heappush(free, now)
            ends = max(now, free[0]) + service(chance)
            heapq.heapreplace(free, ends)
            number += 1
            heapq.heappush(
                under_way,
                (
                    min(ends, now + (timeout or ends)),
                    number,
                    now,
                    timeout is None or ends - now <= timeout,
                ),
            )
        in_flight = len(under_way)
        now, _, began, ok = heapq.heappop(under_way)
        control.heard(
            now, began, 100, in_flight, fine=ok and chance.random() >= silent, too_much=not ok
        )
        seen.append(Seen(now, control.now, ok))
    return seen


def workers(seen: list[Seen], start: float, end: float) -> float:
    return statistics.fmean(one.workers for one in seen if start <= one.at < end)


def per_second(seen: list[Seen], start: float, end: float) -> float:
    return sum(one.ok for one in seen if start <= one.at < end) / (end - start)


@pytest.mark.parametrize("variation", [0.05, 0.3])
@pytest.mark.parametrize("servers", [4, 8, 16])
def test_workers_settle_near_the_number_of_servers(servers: int, variation: float) -> None:
    """batcher/4a.11, 4b.13: between that number and twice it, with nearly all of the capacity used."""
    for seed in SEEDS:
        seen = run(lambda _: servers, seed=seed, service=exponential(variation))
        assert servers <= workers(seen, 10.0, 40.0) <= 2.1 * servers, seed
        assert per_second(seen, 10.0, 40.0) >= 0.95 * servers / (SERVICE * (1 + variation)), seed


@pytest.mark.parametrize("servers", [1, 2])
def test_before_one_or_two_servers_a_few_writes_wait(servers: int) -> None:
    """One more worker is twice as many, so the range is wider."""
    for seed in SEEDS:
        seen = run(lambda _: servers, seed=seed, service=exponential(0.3))
        assert servers <= workers(seen, 10.0, 40.0) <= servers + 6, seed
        assert per_second(seen, 10.0, 40.0) >= 0.94 * servers / (SERVICE * 1.3), seed


def test_a_drop_of_capacity_and_its_return_are_followed() -> None:
    """batcher/4a.11: sixteen servers, four, sixteen again."""
    for seed in SEEDS:
        seen = run(lambda now: 4 if 30.0 <= now < 60.0 else 16, seed=seed, seconds=90.0)
        assert 4 <= workers(seen, 45.0, 60.0) <= 18, seed
        assert per_second(seen, 40.0, 60.0) >= 0.95 * 4 / (SERVICE * 1.05), seed
        assert 16 <= workers(seen, 70.0, 90.0) <= 34, seed
        assert per_second(seen, 70.0, 90.0) >= 0.95 * 16 / (SERVICE * 1.05), seed


@pytest.mark.parametrize("variation", [0.0, 0.3])
def test_before_a_destination_that_slows_down_the_best_number_is_kept(variation: float) -> None:
    """batcher/4a.11: beyond six writes at once, each takes longer by the square of their number, so
    that eight write a quarter less than six. Most of the time is spent near six.
    """
    chance = random.Random(1)
    control = WorkersControl(start=1, least=1, most=32)
    under_way: list[tuple[float, int, float]] = []
    now, number, ended = 0.0, 0, 0
    while now < 60.0:
        while len(under_way) < control.now:
            number += 1
            crowd = max(1.0, (len(under_way) + 1) / 6) ** 2
            takes = SERVICE * crowd * chance.uniform(1 - variation, 1 + variation)
            heapq.heappush(under_way, (now + takes, number, now))
        in_flight = len(under_way)
        now, _, began = heapq.heappop(under_way)
        ended += now >= 10.0
        control.heard(now, began, 100, in_flight, fine=True, too_much=False)
    assert ended / 50.0 >= 0.86 * 6 / SERVICE


VARYING: dict[str, Callable[[random.Random], float]] = {
    "one in twenty takes ten times as long": lambda chance: (
        1.0 if chance.random() < 0.05 else SERVICE
    ),
    "lognormal": lambda chance: SERVICE * chance.lognormvariate(0, 1),
    "every other takes ten times as long": lambda chance: 1.0 if chance.random() < 0.5 else SERVICE,
}


@pytest.mark.parametrize("service", VARYING.values(), ids=VARYING)
def test_round_trips_that_vary_by_much_do_not_starve_the_destination(
    service: Callable[[random.Random], float],
) -> None:
    """Here twice the best of a few means is chance and no reason to halve: at least seven tenths of
    the capacity are used.
    """
    mean = statistics.fmean(service(random.Random(seed)) for seed in range(20_000))
    used = [
        per_second(run(lambda _: 16, seed=seed, service=service), 10.0, 40.0) * mean / 16
        for seed in SEEDS
    ]
    assert statistics.fmean(used) >= 0.7


def test_errors_that_say_nothing_do_not_hold_up_the_others() -> None:
    """decisions 0.3: one write in five fails because of its rows; the other four count."""
    for seed in SEEDS:
        seen = run(lambda _: 16, seed=seed, silent=0.2)
        assert 16 <= workers(seen, 10.0, 40.0) <= 34, seed
    assert {one.workers for one in run(lambda _: 16, seed=1, silent=1.0)} == {1}


def test_fewer_writes_time_out_than_with_fixed_workers() -> None:
    """batcher/4a.11: with 32 workers and two servers, writes wait longer than the timeout; under
    control hardly any do, for any seed.
    """
    for seed in SEEDS:
        seen = run(lambda _: 2, seed=seed, timeout=1.0, service=exponential(0.3), most=32)
        assert sum(not one.ok for one in seen) < 0.05 * len(seen), seed
