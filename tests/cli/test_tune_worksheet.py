"""The limits that `sluicegate tune` computes from measured writes, and the presets.

White box: the worksheet, without a command.
"""

from __future__ import annotations

from typing import Any

from tests.examples.example import DOCS, load

from sluicegate import Limits
from sluicegate.cli.sizing import Measured, as_code, headline, nearly_best, worksheet

# -- the arithmetic --------------------------------------------------------------------------------


def measured(**seconds: float) -> list[Measured]:
    return [Measured(int(size.removeprefix("of_")), (each,)) for size, each in seconds.items()]


def test_the_example_of_the_worksheet() -> None:
    """batcher/B51, B50: a knee at 500, 1,000 items a second and 50 ms give size 400, the delay
    equal to the budget, and two seconds of peak load in the ledger, plus size x (1 + workers).
    """
    limits = worksheet(Measured(500, (0.3,)), rate=1000, latency=0.05)
    assert limits == Limits(
        max_items=400, max_delay=0.05, workers=1, max_pending_items=2000 + 400 * 2
    )


def test_a_budget_longer_than_a_batch_takes_to_fill_is_the_delay_too() -> None:
    """decisions 0.3, sizing worksheet. A peak beyond one worker needs more workers."""
    limits = worksheet(Measured(500, (0.3,)), rate=4000, latency=1.0)
    assert limits == Limits(
        max_items=400, max_delay=1.0, workers=3, max_pending_items=8000 + 400 * 4
    )


def test_without_rate_and_latency_the_defaults_stand() -> None:
    assert worksheet(Measured(10, (0.01,)), rate=None, latency=None) == Limits(max_items=8)
    assert worksheet(Measured(1, (0.01,)), rate=None, latency=None) == Limits(max_items=1)


def test_the_knee_is_the_smallest_size_with_nine_tenths_of_the_best() -> None:
    """batcher/B51."""
    flat = measured(of_1=0.1, of_10=0.1, of_95=0.1, of_100=0.1, of_1000=1.01)
    assert nearly_best(flat).size == 95
    assert headline(flat, nearly_best(flat), None) == "the knee is at 95 items"
    assert headline(flat, nearly_best(flat), 10_000) == "the knee is at 95 items"


def test_a_curve_that_still_rises_has_no_knee() -> None:
    """Its course beyond was not measured and is not claimed."""
    rising = measured(of_1=0.1, of_10=0.1)
    best = nearly_best(rising)
    assert headline(rising, best, None) == (
        "no knee: still rising at 10 items: try larger sizes with --sizes 10,30,100"
    )
    assert headline(rising, best, 100) == (
        "no knee: 10 items are the largest size that was accepted"
    )


def test_the_median_counts() -> None:
    assert Measured(100, (0.1, 0.1, 9.0)).write == 0.1
    assert Measured(100, (0.1, 0.1, 9.0)).per_second == 1000


def test_the_code_is_the_limits() -> None:
    limits = Limits(max_items=4000, max_delay=0.05, workers=2, max_pending_items=20_000)
    found: dict[str, Any] = {}
    exec(as_code(limits), {"Limits": Limits}, found)  # the printed command is meant to be run
    assert found["limits"] == limits


# -- the presets -----------------------------------------------------------------------------------


TEN = {
    "AUDIT_LOG": (500, 1.0, 2048),
    "AUDIT_LOG_BY_COPY": (5000, 1.0, 8192),
    "METRICS_BY_UDP": (50, 0.1, 256),
    "CLICKSTREAM": (10_000, 0.005, 32_768),
    "WEBHOOKS": (100, 0.2, 1024),
    "PUSH_NOTIFICATIONS": (100, 1.0, 1024),
    "SEARCH_INDEX": (1000, 5.0, 4096),
    "TRACE_SPANS": (512, 5.0, 2048),
    "EMAIL_DIGEST": (1000, 3600.0, 65_536),
    "DATABASE_CHANGES": (5000, 0.1, 16_384),
}


def test_the_ten_presets() -> None:
    """batcher/B51, B50: size, delay and queue depth of ten kinds of work; the depth is translated
    to the ledger.
    """
    program = load("presets")
    presets = {name: value for name, value in vars(program).items() if isinstance(value, Limits)}
    assert presets == {
        name: Limits(max_items=size, max_delay=delay, max_pending_items=depth + size * (1 + 1))
        for name, (size, delay, depth) in TEN.items()
    }
    assert (
        "<!-- program: examples/presets.py -->"
        in (DOCS / "how-to" / "size-a-batcher.md").read_text()
    )
