"""What a message costs the consumer, beside the usual recipe and a bare loop, by Python. A process
for each of them lives for all rounds.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from ..consuming import WORKLOADS
from ..harness import NS_PER_ITEM, Case, placed
from ..stopwatch import Clock
from ..workers import SOURCES, Worker
from .interpreters import interpreters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..harness import Contender
    from ..stopwatch import Took

ITEMS = 100_000
PYTHONS = ("3.11.", "3.12.")
"""Those that the goals are for."""


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    share = min(1.0, count / ITEMS)
    with contextlib.ExitStack() as opened:
        workers = {
            f"Python {version}": opened.enter_context(
                Worker(SOURCES, executable=executable, program="consume")
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
)
