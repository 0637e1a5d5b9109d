"""Run the cases, print their tables, and write the figures into the docs."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from . import flame, goals
from .arguments import positive
from .cases import CASES
from .harness import CaseUnavailableError, measure
from .machine import describe
from .pages import write_goals, write_page, write_plot
from .tables import aligned, for_terminal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .goals.judging import GoalTable
    from .harness import Results

ROUNDS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected cases; return the exit status. A missed target is printed, and has no other
    effect.
    """
    options = _parser().parse_args(arguments)
    tables = _chosen_tables(options)
    names = [*(options.case or ()), *(name for table in tables for name in table.cases)]
    chosen = [case for case in CASES if not names or case.name in names]
    machine = describe()
    print(machine, flush=True)
    found: dict[str, Results] = {}
    for case in chosen:
        items = options.items or (case.quick_items if options.quick else case.items)
        rounds = options.rounds or (1 if options.quick else ROUNDS)
        print(f"\n{case.name}: {items:,} items, {rounds} rounds ...", flush=True)
        try:
            results = measure(case, items=items, rounds=rounds)
        except CaseUnavailableError as reason:
            print(f"left out: {reason}")
            continue
        print(for_terminal(results), flush=True)
        found[case.name] = results
        if _writes_docs(options):
            if case.is_drawn:
                write_plot(results)
            write_page(results, machine)
    for table in goals.TABLES:
        if found.keys() >= table.cases:
            _judge(table, {name: found[name] for name in sorted(table.cases)}, machine, options)
    if not names or flame.NAME in names:
        _draw_flame_graph(options)
    return 0


def _chosen_tables(options: argparse.Namespace) -> list[GoalTable]:
    if options.goals is None:
        return []
    return [table for table in goals.TABLES if not options.goals or table.name in options.goals]


def _judge(
    table: GoalTable, found: Mapping[str, Results], machine: str, options: argparse.Namespace
) -> None:
    print(f"\ngoals, {table.name}:")
    print("\n".join(aligned(table.rows(found))), flush=True)
    if _writes_docs(options):
        write_goals(table, found, machine)


def _draw_flame_graph(options: argparse.Namespace) -> None:
    print(f"\n{flame.NAME}: the hot path under a profiler ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        target = flame.TARGET if _writes_docs(options) else Path(folder, flame.TARGET.name)
        try:
            print(flame.draw(target, flame.QUICK_ITEMS if options.quick else flame.ITEMS))
        except CaseUnavailableError as reason:
            print(f"left out: {reason}")


def _writes_docs(options: argparse.Namespace) -> bool:
    if options.write_docs is not None:
        return bool(options.write_docs)
    return not (options.quick or options.items or options.rounds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Compare Sluicegate with its peers, in turns."
    )
    parser.add_argument(
        "--case",
        action="append",
        choices=[*(case.name for case in CASES), flame.NAME],
        help="only this one; may be repeated",
    )
    parser.add_argument(
        "--goals",
        nargs="*",
        choices=[table.name for table in goals.TABLES],
        help="the cases of these goals; default: of all goals",
    )
    parser.add_argument(
        "--rounds", type=positive(int), help=f"timed rounds after one warm-up (default {ROUNDS})"
    )
    parser.add_argument(
        "--items", type=positive(int), help="items per round (default: the case's own)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one short round as a smoke test; its figures are meaningless",
    )
    parser.add_argument(
        "--write-docs",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="write the figures and plots into the pages (default: only if neither --quick, --rounds nor "
        "--items is given)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
