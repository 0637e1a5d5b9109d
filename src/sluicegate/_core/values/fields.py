"""Values of items, by the name of a field or by a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from ..checks import bad

Getter = Callable[[Any], Any]


def getter(name: str, value: object) -> Getter | None:
    """Return a function of an item for a function or a field's name. Raises `ConfigError`."""
    if value is None or callable(value):
        return value
    if not isinstance(value, str) or not value:
        raise bad(name, value, "must be a field's name or a function of an item")
    return _Field(value)


class _Field:
    """Returns a field's value: an entry of a mapping, or an attribute of another object."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, item: Any) -> Any:
        if isinstance(item, Mapping):
            return cast("Mapping[str, Any]", item)[self._name]
        return getattr(item, self._name)
