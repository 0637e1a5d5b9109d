"""An adaptive batcher under ten loads, compared with fixed limits, on virtual time.

Usage: python -m benchmarks.adaptive_scenarios [--plots FOLDER]

Prints a table; with `--plots`, which needs matplotlib, also draws each run of the adaptive batcher.
Every run gives the same figures and plots.
"""

import argparse
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import sluicegate
from benchmarks.simulation import Destination, Scenario, Simulated, simulate

SIZE, WORKERS = 200, 32
LIMITS = sluicegate.Limits(max_items=SIZE, workers=WORKERS, max_pending_items=8000)
USUAL = Destination(seconds=0.05, per_item=0.00025)  # a full batch takes 0.1 s
ORDINARY, TOO_MUCH = (
    3_000.0,
    50_000.0,
)  # items per second: 1.5 concurrent writes, and more than any destination handles


@dataclass(frozen=True)
class Case:
    title: str
    scenario: Scenario


def case(
    title: str, *destination: tuple[float, Destination], traffic: Any = ORDINARY, **rest: Any
) -> Case:
    rates = ((0.0, traffic),) if isinstance(traffic, float) else traffic
    phases = destination or ((0.0, USUAL),)
    return Case(
        title,
        Scenario(
            destination=phases,
            traffic=rates,
            limits=LIMITS,
            adaptive=sluicegate.batcher.Adaptive(),
            seconds=40.0,
            **rest,
        ),
    )


CASES = {
    "steady": case("Steady traffic"),
    "knee": case(
        "Each write beyond ten slows it by a tenth; saturating traffic",
        (0.0, replace(USUAL, knee=10)),
        traffic=TOO_MUCH,
    ),
    "halved": case(
        "10,000 items/s, half of that from 20 s on; saturating traffic",
        (0.0, replace(USUAL, items_per_second=10_000)),
        (20.0, replace(USUAL, items_per_second=5_000)),
        traffic=TOO_MUCH,
    ),
    "queue": case(
        "Eight concurrent writes, two from 15 s to 25 s; saturating traffic",
        (0.0, replace(USUAL, servers=8)),
        (15.0, replace(USUAL, servers=2)),
        (25.0, replace(USUAL, servers=8)),
        traffic=TOO_MUCH,
    ),
    "throttled": case(
        "Throttles above eight concurrent writes; saturating traffic",
        (0.0, replace(USUAL, most_writes=8)),
        traffic=TOO_MUCH,
    ),
    "timeouts": case(
        "From 10 s to 25 s each item takes 40 times as long: full batches time out",
        (0.0, USUAL),
        (10.0, replace(USUAL, per_item=0.01)),
        (25.0, USUAL),
    ),
    "too-large": case(
        "Refuses batches of more than 50 items",
        (0.0, replace(USUAL, most_items=50)),
        traffic=1_500.0,
        decorators=(sluicegate.sinks.Isolate(),),
    ),
    "tenfold": case(
        "Ten times the traffic, every other 10 s",
        traffic=((0.0, 600.0), (10.0, 6_000.0), (20.0, 600.0), (30.0, 6_000.0)),
    ),
    "idle": case(
        "No traffic from 15 s to 25 s", traffic=((0.0, 6_000.0), (15.0, 0.0), (25.0, 6_000.0))
    ),
    "one-error": case(
        "All writes within 0.1 s fail for reasons unrelated to load",
        (0.0, USUAL),
        (20.0, replace(USUAL, error=sluicegate.PermanentError("a bad row"))),
        (20.1, USUAL),
    ),
}


@cache
def run(name: str, *, adaptive: bool) -> Simulated:
    """Run one case, or the same case with fixed limits."""
    scenario = CASES[name].scenario
    return simulate(scenario if adaptive else replace(scenario, adaptive=None))


def row(name: str, kind: str, seen: Simulated) -> str:
    written = sum(sample.written for sample in seen.samples) / len(seen.samples)
    at_once = sum(sample.writing for sample in seen.samples) / len(seen.samples)
    failed = seen.writes.total() - seen.writes["ok"]
    given_up = seen.tally.unknown + seen.tally.rejected
    return (
        f"{name:<10} {kind:<9} {written:>9,.0f} {at_once:>9.1f} {seen.writes['ok']:>9,} "
        f"{failed:>9,} {given_up:>9,}"
    )


def main(plots: Path | None = None) -> None:
    print(f"{'':<20} {'items/s':>9} {'at once':>9} {'writes':>9} {'failed':>9} {'given up':>9}")
    for name, shown in CASES.items():
        print(row(name, "adaptive", run(name, adaptive=True)))
        print(row("", "fixed", run(name, adaptive=False)))
        if plots is not None:
            run(name, adaptive=True).plot(plots / f"{name}.svg", shown.title)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the runs there")
    main(parser.parse_args().plots)
