"""What a source of files raises when files could not be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Mapping

SHOWN = 5
"""The most files that a message names."""


class UnreadFiles(PenstockError):
    """A source of files has ended, and some files were not read to their ends.

    Everything else was delivered, and of these files what precedes the damage. `files` has each path
    with the reason.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        super().__init__(f"not read to the end: {named(files)}")
        self.files = dict(files)

    def __reduce__(self) -> tuple[type[UnreadFiles], tuple[dict[str, str]]]:
        return type(self), (self.files,)


class BrokenFile(Exception):
    """A file cannot be read further, for the reason that is the message."""


def named(files: Mapping[str, str]) -> str:
    """Paths with their reasons, the first ones of many."""
    told = [f"{path} ({reason})" for path, reason in sorted(files.items())[:SHOWN]]
    more = len(files) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more else "")
