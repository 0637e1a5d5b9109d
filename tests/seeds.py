"""Runs from a seed say how to run them again."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def run_by(command: str) -> Iterator[None]:
    """Whatever is raised gets a note with the statement that raises it again, to be given to Python
    in the folder of the project.
    """
    try:
        yield
    except BaseException as error:
        error.add_note(f"run it again: python -c '{command}'")
        raise
