"""References to the environment, resolved late; the values are never shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .mistakes import Mistake

if TYPE_CHECKING:
    from .mistakes import Path

T = TypeVar("T")

_REFERENCE = re.compile(r"\$(?:\$|\{([^}]*)\})")
_WHOLE = re.compile(r"env:(\w+)")
_AS_IT_IS = frozenset({"sql"})
_SHORTEST = 4
"""Length of the shortest hidden value; shorter ones are not secrets, and would match everywhere."""


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
