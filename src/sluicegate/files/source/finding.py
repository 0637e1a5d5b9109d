"""Finds the files that match a path or a pattern. Blocks.

1. A directory stands for all files in it, at any depth; a pattern for the files that match, where
   `**` stands for any directories. Paths are relative to the directory, or to the part of the
   pattern before its first wildcard, so that a tree can be moved together with its positions.
2. Names that begin with `.` or `_`, or have a suffix of unfinished files, are skipped, as is all
   content of such directories. A path to one file reads that file, whatever its name.
3. A path that cannot be inspected is reported by name, and never taken for an empty directory.
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

UNFINISHED = (".tmp", ".temp", ".part", ".partial")
"""Suffixes of files that are still being written."""


class FoundFile(NamedTuple):
    """The files and problems that were found."""

    paths: list[str]
    """Relative paths with `/`, sorted."""
    refused: dict[str, str]
    """Paths that could not be inspected, with reasons."""


class FileSet:
    """The files below one directory that match a pattern, or all of them."""

    def __init__(self, path: str) -> None:
        folder, pattern = _split(path)
        self._root = folder
        self._pattern = pattern
        self._text = path

    @property
    def root(self) -> Path:
        """The directory to which paths are relative."""
        return Path(self._root) if self._pattern or not self._is_file() else Path(self._root).parent

    def _is_file(self) -> bool:
        return Path(self._root).is_file()

    def find(self) -> FoundFile:
        """Find the files."""
        if not self._pattern and self._is_file():
            return FoundFile([Path(self._root).name], {})
        refused: dict[str, str] = {}
        paths = [
            "/".join(parts)
            for parts in _walk(self._root, (), frozenset(), refused)
            if not self._pattern or _matches(parts, self._pattern)
        ]
        return FoundFile(paths, refused)

    def __str__(self) -> str:
        return self._text


def _split(path: str) -> tuple[str, tuple[str, ...]]:
    """Split a path into a fixed directory and a pattern."""
    parts = Path(path).parts
    wild = next((at for at, part in enumerate(parts) if any(c in part for c in "*?[")), None)
    if wild is None or Path(path).exists():
        return path, ()
    return str(Path(*parts[:wild])), parts[wild:]


def _walk(
    folder: str, above: tuple[str, ...], within: frozenset[tuple[int, int]], refused: dict[str, str]
) -> Iterator[tuple[str, ...]]:
    """Yield the path parts of all files below, in order; each directory is entered once."""
    try:
        status = Path(folder).stat()
        with os.scandir(folder) as opened:
            entries = sorted(opened, key=lambda entry: entry.name)
    except OSError as error:
        refused["/".join(above) or folder] = error.strerror or str(error)
        return
    here = (status.st_dev, status.st_ino)
    if here in within:  # a symbolic link to a directory above
        return
    for entry in entries:
        parts = (*above, entry.name)
        if _is_left_out(entry.name):
            continue
        if entry.is_dir():
            yield from _walk(entry.path, parts, within | {here}, refused)
        elif entry.is_file():
            yield parts
        elif entry.is_symlink():
            refused["/".join(parts)] = "a symbolic link to nothing"


def _is_left_out(name: str) -> bool:
    return name.startswith((".", "_")) or name.endswith(UNFINISHED)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[at:], pattern[1:]) for at in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
