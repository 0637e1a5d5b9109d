"""Memory of a consumer per record, in addition to the records themselves."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..harness import BYTES_PER_ITEM, Case, Ceiling, Contender

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..harness import Turn

HELD = {
    "key that was handled once": "key",
    "record settled behind one that hangs": "settled",
    "message that waits behind another of its key": "waiting",
}
PATIENCE = 120.0


def _turn(what: str, count: int) -> Turn:
    command = [sys.executable, "-m", "benchmarks.programs.consumed", what, str(count)]
    folder = Path(__file__).resolve().parents[2]

    def turn() -> float:
        done = subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True, timeout=PATIENCE
        )
        return float(done.stdout)

    return turn


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    yield [Contender(name, _turn(what, count), ours=True) for name, what in HELD.items()]


KEY, SETTLED, WAITING = HELD
CASE = Case(
    name="consumer-held",
    title="Memory of a consumer besides the records themselves",
    prepare=prepare,
    items=200_000,
    quick_items=1_000,
    unit=BYTES_PER_ITEM,
    peers=(),
    targets=(Ceiling(KEY, 1.0), Ceiling(SETTLED, 2.0), Ceiling(WAITING, 200.0)),
)
