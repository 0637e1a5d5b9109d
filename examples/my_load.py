"""The effect of your limits under your load, on virtual time. Usage: python my_load.py
[PICTURE.svg]
"""

import sys
from dataclasses import replace

import sluicegate
from sluicegate.testing import Destination, Scenario, simulate

# The cost of a write, from `sluicegate tune`: two of its rows give both numbers. The destination
# processes six writes concurrently; from 8 s to 12 s only two.
DESTINATION = Destination(seconds=0.02, per_item=0.0001, servers=6)

SCENARIO = Scenario(
    destination=((0.0, DESTINATION), (8.0, replace(DESTINATION, servers=2)), (12.0, DESTINATION)),
    traffic=((0.0, 3_000.0), (4.0, 25_000.0)),  # items per second
    limits=sluicegate.Limits(max_items=400, max_delay=0.1, workers=16, max_pending_items=50_000),
    adaptive=sluicegate.batcher.Adaptive(),
    seconds=16.0,
    timeout=0.4,
)


def main(picture: str | None = None) -> None:
    for name, scenario in {"adaptive": SCENARIO, "fixed": replace(SCENARIO, adaptive=None)}.items():
        seen = simulate(scenario)
        at_once = max(sample.writing for sample in seen.samples)
        print(
            f"{name}: at most {at_once} writes at once, {seen.resent:,} items sent again, "
            f"{seen.tally}"
        )
        if scenario.adaptive is not None and picture is not None:
            seen.plot(picture, "My load")


if __name__ == "__main__":
    main(*sys.argv[1:])
