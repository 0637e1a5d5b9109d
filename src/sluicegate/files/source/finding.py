"""Finds the files that match a path or a pattern. Blocks.

1. A directory stands for all files in it, at any depth; a pattern for the files that match, where
   `**` stands for any directories. Paths are relative to the directory, or to the part of the
   pattern before its first wildcard, so that a tree can be moved together with its positions.
2. Names that begin with `.` or `_`, or have a suffix of unfinished files, are skipped, as is all
   content of such directories. A path to one file reads that file, whatever its name.
3. A path that cannot be inspected is reported by name, and never taken for an empty directory.
4. A file is recorded when it is found, before any row is read: its size and its modification time.
   Any difference is a change, because a position is meaningless for other content.
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..._core.errors import ConfigError
from ..._core.extras import need

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


UNFINISHED = (".tmp", ".temp", ".part", ".partial")
"""Suffixes of files that are still being written."""
Format = Literal["ndjson", "csv", "parquet"]
Compression = Literal["gzip", "zstd"]
_COMPRESSED: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_FORMATS: dict[str, Format] = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".csv": "csv",
    ".parquet": "parquet",
}


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


# -- formats ---------------------------------------------------------------------------------------


class Form(NamedTuple):
    """The format and the compression of a file."""

    format: Format
    compression: Compression | None = None


def form_of(path: str, wanted: Format | None) -> Form:
    """Determine the form of a file by its name and the requested format.

    Raises `ConfigError` if the name has no known suffix, and `MissingExtra` if a required package
    is not installed.
    """
    ending = path[path.rfind(".") :].lower() if "." in path else ""
    compression = _COMPRESSED.get(ending)
    bare = path[: -len(ending)] if compression else path
    told = _FORMATS.get(bare[bare.rfind(".") :].lower()) if "." in bare else None
    chosen = wanted or told
    if chosen is None:
        raise ConfigError(
            f"{path}: its name has no suffix of a known format. Pass format= for all files, or a pattern such as "
            '"*.ndjson" for some'
        )
    if chosen == "parquet":
        need_pyarrow()
        return Form("parquet")
    if compression == "zstd":
        need("zstandard", "files", f"{path!r}, which is compressed with zstd,")
    return Form(chosen, compression)


def need_pyarrow() -> None:
    """Raise `MissingExtra` without pyarrow."""
    need("pyarrow", "parquet", 'a FileSource with format="parquet"')


# -- recorded files --------------------------------------------------------------------------------


class Recorded(NamedTuple):
    """A file as it was when it was found."""

    path: str
    """Relative path with `/`."""
    size: int
    modified: int
    """Nanoseconds since the epoch."""


def record(root: Path, path: str) -> Recorded:
    """Record a file. Raises `OSError`."""
    with (root / path).open("rb") as file:  # a file that cannot be opened is not recorded
        status = os.fstat(file.fileno())
    return Recorded(path, status.st_size, status.st_mtime_ns)


def difference(recorded: Recorded, status: os.stat_result) -> str | None:
    """Describe how a file differs from the recorded one; `None` if it does not."""
    if status.st_size != recorded.size:
        return f"it has {status.st_size} bytes now, and had {recorded.size} when it was found"
    if status.st_mtime_ns != recorded.modified:
        return "it was written to since it was found"
    return None
