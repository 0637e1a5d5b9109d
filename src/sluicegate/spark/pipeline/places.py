"""The line of each key in a TOML text; `tomllib` reads the values.

1. The text is valid for `tomllib`, so nothing is checked here, and a value is skipped unless it has
   keys.
2. A key of a header or a dotted key has the line of its first mention. An element of an array has
   the line at which its value begins, and a table of an array of tables has that of its header.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .mistakes import Path

_TOKEN = re.compile(
    r"""
    (?P<skip>[ \t\r]+|\#[^\n]*)
  | (?P<newline>\n)
  | (?P<text>
        \"{3}(?:\\.|[^\\"]|"{1,2}(?!"))*"{3,5} | '{3}(?:[^']|'{1,2}(?!'))*'{3,5}
      | "(?:\\.|[^"\\\n])*" | '[^'\n]*')
  | (?P<mark>[\[\]{}=,.])
  | (?P<bare>[^\s\[\]{}=,.\#"']+)
    """,
    re.VERBOSE | re.DOTALL,
)
_ENDS = frozenset({"", "\n", ",", "]", "}"})


def locate(text: str) -> dict[Path, int]:
    """Find the line, from 1, of every key and of every value in an array."""
    return _Locator(text).lines


class _Locator:
    def __init__(self, text: str) -> None:
        self.lines: dict[Path, int] = {}
        self._tokens: list[tuple[str, int]] = []
        line = 1
        for match in _TOKEN.finditer(text):
            if match.lastgroup != "skip":
                self._tokens.append((match[0], line))
            line += match[0].count("\n")
        self._next = 0
        self._lengths: dict[Path, int] = {}
        self._document()

    @property
    def _token(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    @property
    def _line(self) -> int:
        return self._tokens[self._next][1]

    def _takes(self, token: str) -> bool:
        if self._token != token:
            return False
        self._next += 1
        return True

    def _document(self) -> None:
        table: Path = ()
        while self._token:
            if self._takes("\n"):
                continue
            if self._takes("["):
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Path:
        line, is_array = self._line, self._takes("[")
        *outer, last = self._key()
        path: Path = ()
        for name in outer:
            path = self._inside((*path, name), line)
        path = (*path, last)
        self.lines.setdefault(path, line)
        if is_array:
            self._lengths[path] = self._lengths.get(path, 0) + 1
            path = self._inside(path, line)
        while self._takes("]"):
            pass
        return path

    def _inside(self, path: Path, line: int) -> Path:
        """Return the table, or the last table of an array of tables."""
        self.lines.setdefault(path, line)
        if path not in self._lengths:
            return path
        path = (*path, self._lengths[path] - 1)
        self.lines.setdefault(path, line)
        return path

    def _key(self) -> list[str]:
        names: list[str] = []
        while not names or self._takes("."):
            token = self._token
            names.append(
                str(tomllib.loads(f"key = {token}")["key"]) if token[0] in "\"'" else token
            )
            self._next += 1
        return names

    def _pair(self, table: Path) -> None:
        path, line = table, self._line
        for name in self._key():
            path = (*path, name)
            self.lines.setdefault(path, line)
        self._takes("=")
        self._value(path)

    def _value(self, path: Path) -> None:
        if self._takes("["):
            self._array(path)
        elif self._takes("{"):
            while not self._takes("}"):
                if not self._takes(",") and not self._takes("\n"):
                    self._pair(path)
        else:
            while self._token not in _ENDS:
                self._next += 1

    def _array(self, path: Path) -> None:
        index = 0
        while not self._takes("]"):
            if self._takes(",") or self._takes("\n"):
                continue
            self.lines[*path, index] = self._line
            self._value((*path, index))
            index += 1
