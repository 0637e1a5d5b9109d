"""A pipeline read from tables into dataclasses, and its references to the environment.

1. A dataclass is read from a mapping or from an instance of itself, so a declaration in Python is
   checked by the same rules. msgspec converts the values to the types of the fields.
2. A wrong value is a mistake. The field's default, or an empty value, replaces it, so that reading
   continues and finds all mistakes. Later checks ignore paths that already have one.
3. A field with the metadata `rest` takes all keys without a field of their own.
4. References to the environment are resolved late, and the values are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from pathlib import Path as File
from types import UnionType
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
    from collections.abc import Callable

    from .declaration import Path

T = TypeVar("T")

_REFERENCE = re.compile(r"\$(?:\$|\{([^}]*)\})")
_WHOLE = re.compile(r"env:(\w+)")
_AS_IT_IS = frozenset({"sql"})
_SHORTEST = 4
"""Length of the shortest hidden value; shorter ones are not secrets, and would match everywhere."""


def read(kind: type[T], value: object, mistakes: list[Mistake], path: Path = ()) -> T:
    """Build an instance of the dataclass `kind` even from a wrong `value`; add to `mistakes`."""
    given = _own_values(kind, value)
    if given is None:
        mistakes.append(Mistake(path, f"must be a table, but is {type(value).__name__}"))
        given = {}
    own, rest = _fields(kind)
    unknown = [name for name in given if name not in own]
    if rest is None:
        mistakes += [
            Mistake((*path, name), f"is unknown here; {suggest(name, own)}") for name in unknown
        ]
    hints = get_type_hints(kind)
    made: dict[str, Any] = {}
    for name, described in own.items():
        if name in given:
            made[name] = _value(hints[name], given[name], mistakes, (*path, name))
        elif _is_required(described):
            mistakes.append(Mistake((*path, name), "is missing"))
            made[name] = _empty(hints[name])
    if rest is not None:
        made[rest] = {name: given[name] for name in unknown}
    return kind(**made)


def _value(hint: Any, value: Any, mistakes: list[Mistake], path: Path) -> Any:
    """Read a value of this type; an empty one, with a mistake, if it is wrong."""
    for kind in (hint, *get_args(hint)):
        if is_dataclass(kind) and isinstance(value, (Mapping, cast("type[Any]", kind))):
            return read(cast("type[Any]", kind), value, mistakes, path)
        inner = [each for each in get_args(kind) if is_dataclass(each) or get_args(each)]
        if get_origin(kind) is Mapping and isinstance(value, Mapping) and inner:
            table = cast("Mapping[str, Any]", value)
            return {
                name: _value(inner[0], each, mistakes, (*path, name))
                for name, each in table.items()
            }
        if get_origin(kind) is Sequence and isinstance(value, (list, tuple)) and inner:
            parts = cast("Sequence[Any]", value)
            return [
                _value(inner[0], each, mistakes, (*path, place)) for place, each in enumerate(parts)
            ]
    return _convert(hint, value, mistakes, path)


def _convert(hint: Any, value: object, mistakes: list[Mistake], path: Path) -> Any:
    import msgspec

    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        index = re.match(r"\[(\d+)\]", place)
        if get_origin(hint) is Literal:
            text += f"; must be one of {one_of(repr(each) for each in get_args(hint))}"
        mistakes.append(Mistake(path if index is None else (*path, int(index[1])), text))
        return _empty(hint)


def _empty(hint: Any) -> Any:
    kinds = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    kind, origin = kinds[0], get_origin(kinds[0])
    if type(None) in kinds:
        return None
    if is_dataclass(kind):
        return read(cast("type[Any]", kind), {}, [])
    if origin is Literal:
        return get_args(kind)[0]
    return {} if origin is Mapping else () if origin is Sequence else kind()


def _own_values(kind: type[Any], value: object) -> dict[str, Any] | None:
    """Return the given keys of a table, or of an instance of the dataclass; `None` for others."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    if not isinstance(value, kind):
        return None
    own, rest = _fields(kind)
    found = {name: getattr(value, name) for name in own}
    given = {
        name: each for name, each in found.items() if each is not None or _is_required(own[name])
    }
    return given if rest is None else {**given, **getattr(value, rest)}


def _fields(kind: type[Any]) -> tuple[dict[str, Field[Any]], str | None]:
    known = [each for each in fields(kind) if each.init and not each.name.startswith("_")]
    rest = next((each.name for each in known if each.metadata.get("rest")), None)
    return {each.name: each for each in known if each.name != rest}, rest


def _is_required(described: Field[Any]) -> bool:
    return described.default is MISSING and described.default_factory is MISSING


class Environment:
    """The variables, files and Spark settings that a pipeline refers to."""

    def __init__(
        self, variables: Mapping[str, str], conf: Callable[[str], str | None] = lambda _: None
    ) -> None:
        self._variables = variables
        self._conf = conf
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
        kind, _, rest = name.partition(":")
        fault = f"the environment variable {name} is not set"
        if kind == "file" and rest:
            try:
                found = File(rest).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                found = None
                reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
                fault = f"the file {rest} cannot be read: {reason}"
        elif kind == "conf" and rest:
            found = self._conf(rest)
            fault = f"Spark has no setting {rest}; pass it by spark-submit or in a session"
        else:
            found = self._variables.get(name)
        if found is None:
            mistakes.append(Mistake(path, fault))
            return ""
        self._used[name] = found
        return found

    def hide(self, text: str) -> str:
        """Replace the values of variables in `text` by their references."""
        for name, value in sorted(self._used.items(), key=lambda each: -len(each[1])):
            if len(value) >= _SHORTEST:
                text = text.replace(value, f"${{{name}}}")
        return text
