"""A pipeline read from tables: dataclasses, references to the environment, and lines of the file.

1. A dataclass is read from a mapping or from an instance of itself, so a declaration in Python is
   checked by the same rules.
2. A value of a wrong type is a mistake. Its default, or an empty value, replaces it, so that
   reading continues. Later checks ignore paths that already have a mistake.
3. A field with the metadata `rest` takes all keys without a field of their own.
4. References to the environment are resolved late, and the values are never shown.
5. `tomllib` reads the values of a file, and `locate` the lines. A key of a header or a dotted key
   has the line of its first mention. An element of an array has the line at which its value begins,
   and a table of an array of tables has that of its header.
"""

from __future__ import annotations

import re
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from .declaration import Mistake, one_of, suggest

if TYPE_CHECKING:
    from .declaration import Path

T = TypeVar("T")
_WORDS: dict[object, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}
_REFERENCE = re.compile(r"\$(?:\$|\{([^}]*)\})")
_WHOLE = re.compile(r"env:(\w+)")
_AS_IT_IS = frozenset({"sql"})
_SHORTEST = 4
"""Length of the shortest hidden value; shorter ones are not secrets, and would match everywhere."""
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


def read(kind: type[T], value: object, mistakes: list[Mistake], path: Path = ()) -> T:
    """Build an instance of the dataclass `kind` even from a wrong `value`; add to `mistakes`."""
    return cast("T", _Reader(mistakes).table(kind, value, path))


class _Reader:
    def __init__(self, mistakes: list[Mistake]) -> None:
        self._mistakes = mistakes

    def table(self, kind: type[Any], value: object, path: Path) -> Any:
        own, rest = _fields(kind)
        given = _as_table(kind, value, rest)
        if given is None:
            self._say(path, f"must be a table, but is {_kind_of(value)}")
            given = {}
        unknown = [name for name in given if name not in own]
        if rest is None:
            for name in unknown:
                self._say((*path, name), f"is unknown here; {suggest(name, own)}")
        hints = _hints(kind)
        made = {
            name: self._field(hints[name], own[name], given, path)
            for name in own
            if name in given or _is_required(own[name])
        }
        if rest is not None:
            made[rest] = {name: given[name] for name in unknown}
        return kind(**made)

    def _field(self, hint: Any, described: Field[Any], given: Mapping[str, Any], path: Path) -> Any:
        name = described.name
        if name in given:
            return self.value(hint, given[name], (*path, name))
        self._say((*path, name), "is missing")
        return _empty(hint)

    def value(self, hint: Any, value: object, path: Path) -> Any:
        """Read `value` as the type `hint`; return an empty value of that type if it is wrong."""
        kinds = [kind for kind in _alternatives(hint) if kind is not type(None)]
        for kind in kinds:
            if _fits(kind, value):
                return self._inner(kind, value, path)
        if value is None and type(None) in _alternatives(hint):
            return None
        is_choice = isinstance(value, str) and get_origin(kinds[0]) is Literal
        self._say(
            path,
            f"must be {' or '.join(dict.fromkeys(map(_word, kinds)))}, but is "
            f"{repr(value) if is_choice else _kind_of(value)}",
        )
        return _empty(hint)

    def _inner(self, kind: Any, value: Any, path: Path) -> Any:
        if is_dataclass(kind):
            return self.table(cast("type[Any]", kind), value, path)
        inner = get_args(kind)
        if get_origin(kind) is Mapping:
            return {name: self.value(inner[1], each, (*path, name)) for name, each in value.items()}
        if get_origin(kind) is Sequence:
            return tuple(
                self.value(inner[0], each, (*path, place)) for place, each in enumerate(value)
            )
        return float(value) if kind is float else value

    def _say(self, path: Path, text: str) -> None:
        self._mistakes.append(Mistake(path, text))


def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _fields(kind: type[Any]) -> tuple[dict[str, Field[Any]], str | None]:
    known = [each for each in fields(kind) if each.init and not each.name.startswith("_")]
    rest = next((each.name for each in known if each.metadata.get("rest")), None)
    return {each.name: each for each in known if each.name != rest}, rest


def _as_table(kind: type[Any], value: object, rest: str | None) -> dict[str, Any] | None:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    if not isinstance(value, kind):
        return None
    own, _ = _fields(kind)
    found = {name: getattr(value, name) for name in own}
    given = {
        name: each for name, each in found.items() if each is not None or _is_required(own[name])
    }
    return given if rest is None else {**given, **getattr(value, rest)}


def _is_required(described: Field[Any]) -> bool:
    return described.default is MISSING and described.default_factory is MISSING


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)


def _fits(kind: Any, value: object) -> bool:
    origin = get_origin(kind)
    if kind is Any:
        return True
    if is_dataclass(kind):
        return isinstance(value, (Mapping, cast("type[Any]", kind)))
    if origin is Literal:
        return value in get_args(kind)
    if origin is Mapping:
        return isinstance(value, Mapping)
    if origin is Sequence:
        return isinstance(value, (list, tuple))
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _empty(hint: Any) -> Any:
    kinds = _alternatives(hint)
    if type(None) in kinds:
        return None
    kind = kinds[0]
    origin = get_origin(kind)
    if origin is Literal:
        return get_args(kind)[0]
    if is_dataclass(kind):
        return read(cast("type[Any]", kind), {}, [])
    return {Mapping: {}, Sequence: ()}.get(
        origin, "" if kind is str else None if origin else kind()
    )


def _word(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {one_of(repr(each) for each in get_args(kind))}"
    if get_origin(kind) is Sequence:
        return f"a list of {_word(get_args(kind)[0])}"
    if get_origin(kind) is Mapping or is_dataclass(kind):
        return "a table"
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def _kind_of(value: object) -> str:
    """Name the kind of a value, but never the value itself, which may be a secret."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, (list, tuple)):
        return "a list"
    return _WORDS.get(type(value), f"a {type(value).__name__}")


class Environment:
    """The variables that a pipeline refers to."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self._used: dict[str, str] = {}

    def resolve(self, value: T, mistakes: list[Mistake], path: Path = ()) -> T:
        """Resolve the references in all texts of `value`; add unset variables to `mistakes`."""
        return cast("T", self._resolve(value, mistakes, path))

    def _resolve(self, value: Any, mistakes: list[Mistake], path: Path) -> Any:
        if isinstance(value, str):
            return self._text(value, mistakes, path)
        if isinstance(value, Mapping):
            table = cast("Mapping[str, Any]", value)
            return {
                name: self._resolve(each, mistakes, (*path, name)) for name, each in table.items()
            }
        if isinstance(value, (list, tuple)):
            return tuple(
                self._resolve(each, mistakes, (*path, place))
                for place, each in enumerate(cast("list[Any]", value))
            )
        if not is_dataclass(value) or isinstance(value, type):
            return value
        made = {
            each.name: self._resolve(
                getattr(value, each.name),
                mistakes,
                path if each.metadata.get("rest") else (*path, each.name),
            )
            for each in fields(value)
            if each.init and each.name not in _AS_IT_IS and not each.name.startswith("_")
        }
        return replace(value, **made)

    def _text(self, text: str, mistakes: list[Mistake], path: Path) -> str:
        def follow(match: re.Match[str]) -> str:
            return "$" if match[0] == "$$" else self._variable(match[1], mistakes, path)

        whole = _WHOLE.fullmatch(text)
        return self._variable(whole[1], mistakes, path) if whole else _REFERENCE.sub(follow, text)

    def _variable(self, name: str, mistakes: list[Mistake], path: Path) -> str:
        found = self._variables.get(name)
        if found is None:
            mistakes.append(Mistake(path, f"the environment variable {name} is not set"))
            return ""
        self._used[name] = found
        return found

    def hide(self, text: str) -> str:
        """Replace the values of variables in `text` by their references."""
        for name, value in sorted(self._used.items(), key=lambda each: -len(each[1])):
            if len(value) >= _SHORTEST:
                text = text.replace(value, f"${{{name}}}")
        return text


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
