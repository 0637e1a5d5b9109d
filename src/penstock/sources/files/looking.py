"""One look at the directory: new files, and what has become of the known ones. Blocks.

1. A file that is not finished has to be there, and so has every directory on the way. One that is
   finished may go; while it is there, it has to be as it was at its end.
2. A file that could not be read is tried again when the file system tells something else of it,
   unless the source ends: that tells it at its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .forms import form_of
from .identity import Look, Recorded, record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .catalog import FileEntry
    from .options import FileOptions

_VANISHED = "it is not there any more, and was not read to its end"
_CHANGED = (
    "it was written to after it had been read to its end; what was added is not read. Put added rows "
    "into a new file"
)


@dataclass(slots=True)
class SeenFiles:
    """What a look has found."""

    new: list[Recorded] = field(default_factory=list[Recorded])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    """What could not be looked at, with reasons."""
    looks: dict[str, Look] = field(default_factory=dict[str, Look])
    """What the file system tells of known files that are there."""
    troubles: dict[str, str] = field(default_factory=dict[str, str])
    """Known files that cannot be read, with reasons."""


def look_at(options: FileOptions, root: Path, entries: Iterable[FileEntry]) -> SeenFiles:
    """Look once. Raises `ConfigError` for a file of no known format, and `MissingExtra`."""
    seen = SeenFiles()
    known = {entry.path: entry for entry in entries}
    found = options.files.find()
    seen.refused.update(found.refused)
    for path in found.paths:
        form_of(path, options.format)
        if path not in known:
            try:
                seen.new.append(record(root, path))
            except OSError as error:
                seen.refused[path] = error.strerror or str(error)
    for entry in known.values():
        if not entry.is_held:
            _look_at(options, root, entry, seen)
    return seen


def _look_at(options: FileOptions, root: Path, entry: FileEntry, seen: SeenFiles) -> None:
    try:
        look = Look.at((root / entry.path).stat())
    except FileNotFoundError:
        if not entry.is_finished:
            seen.troubles[entry.path] = _VANISHED
        return
    except OSError as error:
        seen.troubles[entry.path] = error.strerror or str(error)
        return
    seen.looks[entry.path] = look
    end = entry.place.end
    if end is not None:
        if (look.size, look.modified) != end:
            seen.troubles[entry.path] = _CHANGED
    elif entry.trouble is not None and (options.ends or look == entry.seen):
        seen.troubles[entry.path] = entry.trouble
