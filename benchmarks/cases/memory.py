"""The memory of a full ledger: the peak of a process with a batcher full of items of 1 KiB and a
blocked sink; and the memory of items, keys and tenants in addition to the items themselves.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..harness import BYTES_PER_ITEM, MIB, Above, Case, Contender
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


HELD = {
    "item, by add": "add",
    "item and its receipt, by submit": "submit",
    "key, beside its item": "key",
    "tenant, beside its item": "tenant",
    "key whose items have ended": "past-key",
    "tenant whose items have ended": "past-tenant",
    "item, in the skeleton": "skeleton",
    "item, in asyncio.Queue": "queue",
}
THEIRS = {"skeleton", "queue"}


def _printed_by(program: str, what: str, items: int) -> Turn:
    command = [sys.executable, "-m", f"benchmarks.programs.{program}", what, str(items)]
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
        Contender(NOTHING, _printed_by("memory", "nothing", count), ours=True),
        Contender(ADD, _printed_by("memory", "add", count), ours=True),
        Contender(SUBMIT, _printed_by("memory", "submit", count), ours=True),
        Contender(QUEUE, _printed_by("memory", "queue", count)),
    )


@contextlib.contextmanager
def prepare_held(count: int) -> Iterator[Sequence[Contender]]:
    yield [
        Contender(name, _printed_by("held", what, count), ours=what not in THEIRS)
        for name, what in HELD.items()
    ]


CASE = Case(
    name="memory",
    title="Peak memory of a process, items of 1 KiB",
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
HELD_CASE = Case(
    name="held",
    title="Memory besides the items themselves",
    prepare=prepare_held,
    items=10_000,
    quick_items=1_000,
    unit=BYTES_PER_ITEM,
    peers=(),
)
