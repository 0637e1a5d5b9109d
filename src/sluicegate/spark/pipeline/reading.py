"""Dataclasses read from tables, with all mistakes found at once.

1. A dataclass is read from a mapping or from an instance of itself, so a declaration in Python is
   checked by the same rules.
2. A value of a wrong type is a mistake. Its default, or an empty value, replaces it, so that
   reading continues. Later checks ignore paths that already have a mistake.
3. A field with the metadata `rest` takes all keys without a field of their own.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
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

from .mistakes import Mistake, meant, one_of

if TYPE_CHECKING:
    from .mistakes import Path

T = TypeVar("T")

_WORDS: dict[object, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}


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
            self._say(path, f"must be a table, but is {_called(value)}")
            given = {}
        unknown = [name for name in given if name not in own]
        if rest is None:
            for name in unknown:
                self._say((*path, name), f"is unknown here; {meant(name, own)}")
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
            f"{repr(value) if is_choice else _called(value)}",
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


def _called(value: object) -> str:
    """Name the kind of a value, but never the value itself, which may be a secret."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, (list, tuple)):
        return "a list"
    return _WORDS.get(type(value), f"a {type(value).__name__}")
