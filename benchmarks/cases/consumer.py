"""The consumer's cost per message, compared with the usual recipe and a bare loop, by Python
version.

Each Python has one process for all rounds.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from ..consuming import BATCHES, NO_OP, OURS, RECIPE, WORKLOADS, YIELDING
from ..consuming import name_of as work_of
from ..harness import NS_PER_ITEM, Case, name_of, placed
from ..stopwatch import Clock
from ..workers import SOURCES, Worker
from .interpreters import interpreters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..harness import Contender, Results
    from ..stopwatch import Took

ITEMS = 100_000
PYTHONS = ("3.11.", "3.12.")
"""The Python versions of the goals."""


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    share = min(1.0, count / ITEMS)
    with contextlib.ExitStack() as opened:
        workers = {
            f"Python {version}": opened.enter_context(
                Worker(SOURCES, executable=executable, program="programs.consume")
            )
            for version, executable in interpreters().items()
            if version.startswith(PYTHONS)
        }
        yield [
            placed(
                line,
                name,
                partial(_take, worker, name, share),
                ours=workload.ours,
                items=workload.count(share),
            )
            for line, worker in workers.items()
            for name, workload in WORKLOADS.items()
        ]


def _take(worker: Worker, name: str, share: float) -> Took:
    took, _ = worker.turn(name, share)
    return took


def _ratios(results: Results) -> list[str]:
    """Format the speed relative to the recipe, for each kind of handler; for batches, to no-ops."""
    found: list[str] = []
    for work, theirs in ((NO_OP, NO_OP), (YIELDING, YIELDING), (BATCHES, NO_OP)):
        ratios = [
            results.ratio(
                name_of(line, work_of(OURS, work)), name_of(line, work_of(RECIPE, theirs))
            )
            for line in results.lines
        ]
        figures = [f"{each.median:.2f} x ({each.least:.2f} to {each.most:.2f})" for each in ratios]
        told = [f"{each} with {line}" for each, line in zip(figures, results.lines, strict=True)]
        found.append(f"{work}, against the recipe's {theirs}: {', '.join(told)}.")
    return found


CASE = Case(
    name="consumer",
    title="Handle messages in order per key, by Python",
    prepare=prepare,
    items=ITEMS,
    quick_items=500,
    unit=NS_PER_ITEM,
    by=Clock.PROCESSOR,
    peers=(),
    along="work",
    is_drawn=False,
    notes=_ratios,
)
