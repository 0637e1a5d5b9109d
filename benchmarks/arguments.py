"""Types of command-line arguments."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

N = TypeVar("N", int, float)


def positive(kind: Callable[[str], N]) -> Callable[[str], N]:
    """Parse a number above 0."""

    def parse(text: str) -> N:
        number = kind(text)
        if number <= 0:
            raise argparse.ArgumentTypeError(f"must be above 0, not {number}")
        return number

    parse.__name__ = "number"
    return parse
