"""Errors of seeded runs say how to repeat the run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def run_by(command: str) -> Iterator[None]:
    """Add a note to any raised error, with the statement that repeats the run in a Python started
    in the project's folder.
    """
    try:
        yield
    except BaseException as error:
        error.add_note(f"run it again: python -c '{command}'")
        raise
