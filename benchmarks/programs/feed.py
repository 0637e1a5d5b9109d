"""One turn of one way to add items, for any interpreter: `python -m benchmarks.programs.feed
WAY ITEMS` prints its processor seconds.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ..feeds import DEPTH, add, add_many, ours, recipe, submit, try_add

if TYPE_CHECKING:
    from ..stopwatch import TimedTurn


def turn_of(way: str, items: range) -> TimedTurn:
    """Return the turn with this name."""
    ways: dict[str, TimedTurn] = {
        "add": ours(add, items),
        "try_add": ours(try_add, items, depth=max(DEPTH, len(items))),
        "add_many": add_many(items),
        "submit": ours(submit, items),
        "recipe": recipe(items, eager=False),
        "eager": recipe(items, eager=True),
    }
    return ways[way]


if __name__ == "__main__":
    turn = turn_of(sys.argv[1], range(int(sys.argv[2])))
    turn()  # a warm-up in the same process: the interpreter specialises the code that it runs
    print(turn().processor)
