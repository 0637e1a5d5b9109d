"""Suggestions of files for a path that does not exist."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_MOST = 5
_BESIDE = (".lock", ".replayed")


def why_missing(path: Path) -> str:
    """Return why there is no file at `path`, and the names of similar files."""
    if path.is_dir():
        return _with_files("a folder, not a file", _names(path))
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    names = _names(path.parent)
    close = get_close_matches(path.name, names, _MOST)
    alike = [name for name in names if path.suffix and name.endswith(path.suffix)]
    return _with_files("there is no such file", [*dict.fromkeys((*close, *alike))])


def _names(folder: Path) -> list[str]:
    try:
        names = sorted(each.name for each in folder.iterdir() if each.is_file())
    except OSError:  # this user may not list the folder
        return []
    return [name for name in names if not name.endswith(_BESIDE)]


def _with_files(why: str, names: list[str]) -> str:
    if not names:
        return why
    return f"{why}; there are {', '.join(names[:_MOST])}{', ...' if len(names) > _MOST else ''}"
