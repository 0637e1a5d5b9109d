"""The command `penstock`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BAD_USE = 2

_DEMO_HELP = "a year of flights into a PostgreSQL that is killed on the way"
_DEMO = "Write 336,776 real flights through a batcher into PostgreSQL, kill the server half-way, prove every row by SQL."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: the process's); return the exit code."""
    parser = argparse.ArgumentParser(prog="penstock", description="Batching with every item accounted for.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _demo_options(commands.add_parser("demo", help=_DEMO_HELP, description=_DEMO))
    options = parser.parse_args(arguments)
    try:
        from ._demo import demo
    except ImportError as error:
        print(f'penstock demo needs more packages ({error}): pip install "penstock[demo]"', file=sys.stderr)
        return BAD_USE
    return demo(options)


def _demo_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dsn", help="use this database instead of an embedded one (which then cannot be killed)")
    parser.add_argument("--rows", type=_count, help="only the first ROWS flights")
    parser.add_argument("--no-chaos", action="store_true", help="leave the server alive")
    parser.add_argument("--batch-size", type=_count, default=500, metavar="ITEMS", help="items in a batch (default: 500)")
    parser.add_argument("--workers", type=_count, default=2, help="batches in flight at once (default: 2)")
    parser.add_argument("--producers", type=_count, default=4, help="tasks that add flights at once (default: 4)")
    parser.add_argument("--plain", action="store_true", help="plain lines of progress, also on a terminal")


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        message = f"{text!r} must be a whole number of at least 1"
        raise argparse.ArgumentTypeError(message)
    return value
