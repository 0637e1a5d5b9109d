"""One turn of one way in, for an interpreter of any version: `python -m benchmarks.programs.feed
WAY ITEMS` prints its processor seconds.
"""

from __future__ import annotations

import sys
from time import process_time
from typing import TYPE_CHECKING

from ..feeds import DEPTH, add, add_many, ours, recipe, submit, try_add

if TYPE_CHECKING:
    from ..harness import Turn


def turn_of(way: str, items: range) -> Turn:
    """The turn of that name."""
    ways: dict[str, Turn] = {
        "add": ours(add, items, now=process_time),
        "try_add": ours(try_add, items, depth=max(DEPTH, len(items)), now=process_time),
        "add_many": add_many(items, now=process_time),
        "submit": ours(submit, items, now=process_time),
        "recipe": recipe(items, eager=False, now=process_time),
        "eager": recipe(items, eager=True, now=process_time),
    }
    return ways[way]


if __name__ == "__main__":
    turn = turn_of(sys.argv[1], range(int(sys.argv[2])))
    turn()  # a warm-up in the same process: the interpreter specialises what it runs
    print(turn())
