"""The arguments of `sluicegate tune`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (1, 10, 100, 1000, 10_000)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)")


def tune_options(parser: argparse.ArgumentParser, count: Callable[[str], int]) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "sink",
        metavar="MODULE:SINK",
        help="a sink, a stack, a function of a batch, or a function that returns one of these",
    )
    parser.add_argument(
        "--items",
        required=True,
        metavar="MODULE:FUNCTION",
        help="a function that returns an item for a number; the numbers do not repeat",
    )
    parser.add_argument(
        "--rate", type=_rate, metavar="N", help="usual items per second (default: unknown)"
    )
    parser.add_argument(
        "--peak", type=_rate, metavar="N", help="peak items per second (default: the rate)"
    )
    parser.add_argument(
        "--latency",
        type=_duration,
        metavar="TIME",
        help="longest time that an item may wait in the open batch (default: 200ms)",
    )
    parser.add_argument(
        "--absorb",
        type=_duration,
        default=2.0,
        metavar="TIME",
        help="longest pause of the destination to absorb (default: 2s)",
    )
    _measuring_options(parser, count)


def _measuring_options(parser: argparse.ArgumentParser, count: Callable[[str], int]) -> None:
    parser.add_argument(
        "--sizes",
        type=_counts(count),
        default=SIZES,
        metavar="N,N,...",
        help="batch sizes to measure (default: 1,10,100,1000,10000)",
    )
    parser.add_argument(
        "--workers",
        type=_counts(count),
        default=(),
        metavar="N,N,...",
        help="afterwards measure these numbers of concurrent writes too",
    )
    parser.add_argument(
        "--repeats",
        type=count,
        default=7,
        metavar="N",
        help="writes of each size, after a first one that is not counted (default: 7)",
    )
    parser.add_argument(
        "--item-bytes",
        type=count,
        metavar="N",
        help="memory of an item (default: measured on some items)",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw throughput and write time by batch size, as SVG or PNG",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document, and nothing else, on standard output",
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="do not ask before writing to the destination; needed without a terminal",
    )


def _rate(text: str) -> float:
    try:
        value = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e12:
        message = f"{text!r} must be a number of items per second, more than 0"
        raise argparse.ArgumentTypeError(message)
    return value


def _duration(text: str) -> float:
    found = _DURATION.fullmatch(text)
    value = 0.0 if found is None else float(found[1]) * _SECONDS[found[2]]
    if not 0 < value < 1e9:
        message = f"{text!r} must be a time with its unit such as 50ms, 2s or 1m, more than 0"
        raise argparse.ArgumentTypeError(message)
    return value


def _counts(count: Callable[[str], int]) -> Callable[[str], tuple[int, ...]]:
    def counts(text: str) -> tuple[int, ...]:
        return tuple(sorted({count(part.strip()) for part in text.split(",")}))

    return counts
