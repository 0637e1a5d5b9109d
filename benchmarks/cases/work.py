"""Every workload under every installed Python. Each has one process for all rounds."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from ..harness import NS_PER_ITEM, Case, Unit, placed
from ..stopwatch import Clock
from ..workers import SOURCES, Worker, WorkloadRefusedError
from ..workloads import BARE, IMPORT, IMPORTS, WORKLOADS
from .interpreters import interpreters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..harness import Contender
    from ..stopwatch import Took

FULL = 200_000
"""Items at which every workload has its full number."""
ITEMS = FULL // 4
TURNS = 5
MS_EACH = Unit("ms", 1e3)
STARTS = (BARE, IMPORT)


def line_of(version: str) -> str:
    """Return the name of an interpreter's column."""
    return f"Python {version}"


@contextlib.contextmanager
def _workers() -> Iterator[Mapping[str, Worker]]:
    """Start a worker for each column."""
    with contextlib.ExitStack() as opened:
        yield {
            line_of(version): opened.enter_context(Worker(SOURCES, executable=executable))
            for version, executable in interpreters().items()
        }


def _prepare(
    count: int, names: Sequence[str], full: int
) -> contextlib.AbstractContextManager[Sequence[Contender]]:
    @contextlib.contextmanager
    def opened() -> Iterator[Sequence[Contender]]:
        share = min(1.0, count / full)
        with _workers() as workers:
            yield [
                placed(
                    line,
                    name,
                    partial(_take, worker, name, share),
                    ours=WORKLOADS[name].ours,
                    items=WORKLOADS[name].count(share),
                )
                for name in names
                for line, worker in workers.items()
                if _can(worker, name)
            ]

    return opened()


def _can(worker: Worker, name: str) -> bool:
    """Return whether this version of the library has everything that the workload needs."""
    try:
        worker.turn(name, 0.0)
    except WorkloadRefusedError:
        return False
    return True


def _take(worker: Worker, name: str, share: float) -> Took:
    took, _ = worker.turn(name, share)
    return took


WORK_CASE = Case(
    name="work",
    title="Pieces of work, by Python",
    prepare=partial(_prepare, names=[n for n in WORKLOADS if n not in STARTS], full=FULL),
    items=ITEMS,
    quick_items=500,
    turns=TURNS,
    is_drawn=False,
    unit=NS_PER_ITEM,
    by=Clock.PROCESSOR,
    peers=(),
    along="work",
)
IMPORTS_CASE = Case(
    name="imports",
    title="Starting an interpreter, and importing sluicegate",
    prepare=partial(_prepare, names=STARTS, full=IMPORTS),
    items=IMPORTS,
    quick_items=1,
    unit=MS_EACH,
    by=Clock.PROCESSOR,
    peers=(),
    along="work",
)
CASES = (WORK_CASE, IMPORTS_CASE)
