"""The command line of the demo, `python -m examples.demo` in the checkout's folder."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from .demo import INTERRUPTED, demo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DESCRIPTION = (
    "Write 336,776 real flights, with some spoiled ones among them, through a full stack "
    "into PostgreSQL; kill the server half-way; "
    "prove by SQL that every flight is stored exactly once, and every spoiled one is among the "
    "dead letters and nowhere else. Further scenes show order per aircraft, tenants, a queue in "
    "PostgreSQL, NATS JetStream, Kafka and Spark."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo with `arguments` (default: the process's own); return the exit code."""
    parser = argparse.ArgumentParser(prog="demo", description=_DESCRIPTION)
    _options(parser)
    return demo(parser.parse_args(arguments))


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dsn",
        help="use this database, in a separate schema, instead of an embedded one; it is "
        "never killed",
    )
    parser.add_argument("--rows", type=_count(1), help="use only the first ROWS flights")
    parser.add_argument("--no-chaos", action="store_true", help="do not kill the server")
    parser.add_argument(
        "--batch-size",
        type=_count(1),
        default=500,
        metavar="ITEMS",
        help="items per batch (default: 500)",
    )
    parser.add_argument(
        "--workers",
        type=_count(1, 64),
        default=2,
        help="concurrent batches in flight, at most 64 (default: 2)",
    )
    parser.add_argument(
        "--producers",
        type=_count(1, 1000),
        default=4,
        help="concurrent producer tasks, at most 1000 (default: 4)",
    )
    parser.add_argument(
        "--poison",
        type=_count(0),
        default=2000,
        metavar="N",
        help="spoil a copy of one flight in N; 0 spoils none (default: 2000)",
    )
    _scene_options(parser)
    parser.add_argument(
        "--plain", action="store_true", help="print progress as plain lines, also on a terminal"
    )


def _scene_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-queue",
        action="store_true",
        help="skip the scene on a queue in PostgreSQL, in which three workers are killed",
    )
    parser.add_argument(
        "--no-nats",
        action="store_true",
        help="skip the scene on NATS JetStream, in which a consumer is killed",
    )
    scene = parser.add_mutually_exclusive_group()
    scene.add_argument(
        "--kafka",
        action="store_true",
        help="require the scene on Kafka, in which a consumer is killed; it needs Java 17 and "
        "Maven (default: play it if Kafka can be started)",
    )
    scene.add_argument("--no-kafka", action="store_true", help="skip that scene")
    scene = parser.add_mutually_exclusive_group()
    scene.add_argument(
        "--spark",
        action="store_true",
        help="require the last scene, a Spark pipeline in which an executor is killed; it needs "
        "PySpark and Java (default: play it if both are installed)",
    )
    scene.add_argument("--no-spark", action="store_true", help="skip that scene")


def _count(least: int, most: int | None = None) -> Callable[[str], int]:
    rule = f"of at least {least}" if most is None else f"from {least} to {most}"

    def count(text: str) -> int:
        value = int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else -1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number {rule}")
        return value

    return count


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # before any work that needs a clean shutdown
        sys.exit(INTERRUPTED)
