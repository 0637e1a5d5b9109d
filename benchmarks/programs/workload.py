"""Workloads on request, in one process for any number of turns: `python -m
benchmarks.programs.workload`.

Each line of the standard input is a request, `{"name": ..., "share": ...}`; the response is one
line, `{"wall": ..., "processor": ..., "items": ...}` or `{"refused": ...}`. The first line of the
output names the measured library.
"""

from __future__ import annotations

import gc
import json
import sys
from typing import TYPE_CHECKING, Any

import sluicegate

from ..workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..stopwatch import TimedTurn
    from ..workloads import Workload


class Turns:
    """Turns that are prepared once and taken repeatedly."""

    def __init__(self, workloads: Mapping[str, Workload]) -> None:
        self._workloads = workloads
        self._prepared: dict[tuple[str, float], tuple[TimedTurn, int]] = {}

    def answer(self, name: str, share: float) -> dict[str, Any]:
        """Take a turn; return the response."""
        try:
            if (name, share) not in self._prepared:
                self._prepared[name, share] = self._workloads[name].turn(share)
            turn, items = self._prepared[name, share]
            gc.collect()
            took = turn()
        except Exception as error:  # such as a name that this revision lacks
            return {"refused": f"{type(error).__name__}: {error}"}
        return {"wall": took.wall, "processor": took.processor, "items": items}


def main(workloads: Mapping[str, Workload] = WORKLOADS) -> None:
    turns = Turns(workloads)
    print(json.dumps({"library": sluicegate.__file__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(turns.answer(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
