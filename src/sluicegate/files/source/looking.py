"""One scan of the directory: new files, and changes to known files. Blocks.

1. A file that is not finished has to exist, and so have all its directories. A finished file may be
   removed. As long as it exists, it must be as it was at its end.
2. A file that could not be read is tried again when its status in the file system changes. A source
   that ends does not try again; it reports the file at its end.
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

_VANISHED = "it no longer exists, and was not read to its end"
_CHANGED = (
    "it was written to after it had been read to its end; the added rows are not read. Put them "
    "into a new file"
)


@dataclass(slots=True)
class SeenFiles:
    """The results of one scan."""

    new: list[Recorded] = field(default_factory=list[Recorded])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    """Paths that could not be inspected, with reasons."""
    looks: dict[str, Look] = field(default_factory=dict[str, Look])
    """The status of known files that exist."""
    troubles: dict[str, str] = field(default_factory=dict[str, str])
    """Known files that cannot be read, with reasons."""


def look_at(options: FileOptions, root: Path, entries: Iterable[FileEntry]) -> SeenFiles:
    """Scan once. Raises `ConfigError` for a file of unknown format, and `MissingExtra`."""
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
