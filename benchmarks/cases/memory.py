"""What a full ledger holds: the peak of a process whose batcher is filled with items of 1 KiB while
its sink stands still.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..harness import MIB, Above, Case, Contender
from ..programs.memory import SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..harness import Turn

ITEMS = 100 * 1024
NOTHING, ADD, SUBMIT, QUEUE = (
    "empty batcher",
    "ledger of 100 MiB, by add",
    "ledger of 100 MiB, by submit",
    "asyncio.Queue of as much",
)
ALLOWED = 1.3
PATIENCE = 120.0


def _peak(what: str, items: int) -> Turn:
    command = [sys.executable, "-m", "benchmarks.programs.memory", what, str(items)]
    folder = Path(__file__).resolve().parents[2]

    def turn() -> float:
        done = subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True, timeout=PATIENCE
        )
        return float(done.stdout)

    return turn


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    yield (
        Contender(NOTHING, _peak("nothing", count), ours=True),
        Contender(ADD, _peak("add", count), ours=True),
        Contender(SUBMIT, _peak("submit", count), ours=True),
        Contender(QUEUE, _peak("queue", count)),
    )


CASE = Case(
    name="memory",
    title="Most memory that a process held, items of 1 KiB",
    prepare=prepare,
    items=ITEMS,
    quick_items=1_000,
    unit=MIB,
    peers=(),
    targets=(
        Above(ADD, NOTHING, ALLOWED * ITEMS * SIZE / 2**20),
        Above(SUBMIT, NOTHING, ALLOWED * ITEMS * SIZE / 2**20),
    ),
)
