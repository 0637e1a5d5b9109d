"""The JSON form of values without a native JSON type. Imports no optional package.

1. An object becomes its fields, by the names of its attributes. `PostgresSink` reads items by the
   same names, so an item has the same fields in a file, in a request and in a row.
2. A pydantic model determines its own form (`model_dump` in JSON mode), so its serializers and
   excluded fields apply. Names are those of its fields, not aliases, because of (1).
3. A named tuple becomes a list, at any depth: `PostgresSink` also stores it by position.
4. Enum members become their values; a set becomes a list, sorted if its members can be compared.
5. Subclasses of `str`, `int`, `float`, `list`, `tuple` and `dict` never get here: they are native
   JSON types.
6. Bytes have no form, since it is unknown whether they are text. Objects of plain classes have none
   either.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from operator import attrgetter
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

Form = Callable[[Any], object]


class MakesForm(ABC):
    """A value that provides its own JSON form."""

    __slots__ = ()

    @abstractmethod
    def as_json(self) -> object:
        """Return its form, made of values that have a JSON form."""


def json_form(value: object) -> object:
    """Return the JSON form of a value; its members may also need conversion. Raises `TypeError`."""
    form = form_for(value)
    if form is None:
        raise TypeError(
            f"{type(value).__name__} has no form in JSON; convert the item by encode=, document= "
            "or row=, a function that the sink takes"
        )
    return form(value)


def form_for(value: object) -> Form | None:
    """Return the function that creates the JSON form of values of this type; `None` without any."""
    return _form_of(cast("Any", type(value)))


@lru_cache(maxsize=1024)
def _form_of(kind: type) -> Form | None:
    for known, form in _FORMS:
        if issubclass(kind, known):
            return form
    if hasattr(kind, "model_dump") and hasattr(kind, "__pydantic_validator__"):
        return _dumped
    names = _field_names(kind)
    return None if names is None else _object(names)


def _field_names(kind: Any) -> tuple[str, ...] | None:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if hasattr(kind, "__attrs_attrs__"):
        return tuple(attribute.name for attribute in kind.__attrs_attrs__)
    if hasattr(kind, "__struct_fields__"):  # msgspec
        return tuple(kind.__struct_fields__)
    return None


def _object(names: tuple[str, ...]) -> Form:
    if len(names) < 2:
        return lambda value: {name: getattr(value, name) for name in names}
    values_of = attrgetter(*names)
    return lambda value: dict(zip(names, values_of(value), strict=True))


def _dumped(model: Any) -> object:
    # a warning about a wrong type would contain the value
    return model.model_dump(mode="json", by_alias=False, warnings=False)


def _sorted(values: Iterable[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return list(values)


def _duration(value: timedelta) -> str:
    """Format a duration in ISO 8601."""
    sign, whole = ("-", -value) if value < timedelta() else ("", value)
    fraction = f".{whole.microseconds:06}" if whole.microseconds else ""
    return f"{sign}P{whole.days}DT{whole.seconds}{fraction}S"


_ADDRESSES = (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
_FORMS: tuple[tuple[type | tuple[type, ...], Form], ...] = (
    (MakesForm, lambda value: value.as_json()),
    (Enum, lambda value: value.value),
    (Mapping, dict),
    ((date, time), lambda value: value.isoformat()),
    (timedelta, _duration),
    ((UUID, Decimal, PurePath, *_ADDRESSES), str),
    ((set, frozenset), _sorted),
    (SimpleNamespace, lambda value: {**cast("dict[str, Any]", vars(value))}),
)
