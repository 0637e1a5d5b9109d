"""The errors of a source of files that could not be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.errors import SluicegateError

if TYPE_CHECKING:
    from collections.abc import Mapping

SHOWN = 5
"""The most files that a message names."""


class UnreadFiles(SluicegateError):
    """A source of files has ended, and some files could not be read to their ends.

    The rows before the damage and all other files were delivered. `files` has each path with the
    reason.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        super().__init__(f"not read to the end: {named(files)}")
        self.files = dict(files)

    def __reduce__(self) -> tuple[type[UnreadFiles], tuple[dict[str, str]]]:
        return type(self), (self.files,)


class BrokenFile(Exception):
    """A file cannot be read further; the message is the reason."""


def named(files: Mapping[str, str]) -> str:
    """Format paths with their reasons, up to a limit."""
    told = [f"{path} ({reason})" for path, reason in sorted(files.items())[:SHOWN]]
    more = len(files) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more else "")
