"""Checks of values that drivers would change, by the types of PostgreSQL. Pure.

Values are checked in the forms that drivers accept: an array is a list, or another sized
collection; a tuple in it is an element. A composite is a tuple, or a mapping by field. A range has
bounds, or is a list or tuple of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..._core.values.changed_values import (
    ChangedValue,
    Check,
    dateless,
    day,
    decimal,
    duration,
    geometric,
    is_array,
    point,
    time_of_day,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from .types import PostgresType

GEOMETRIC: Mapping[str, Check] = {
    "box": geometric("box", size=2, points=2),
    "circle": geometric("circle", size=2, points=1),
    "line": geometric("line", size=3, points=0),
    "lseg": geometric("line segment", size=2, points=2),
    "path": geometric("path", size=None, points=None),
    "point": point,
    "polygon": geometric("polygon", size=None, points=None),
}
SCALARS: Mapping[str, Check] = {
    **dict.fromkeys(("smallint", "integer", "bigint", "oid", "xid", "xid8"), whole),
    "date": day,
    "time without time zone": time_of_day,
    "time with time zone": dateless,
    "interval": duration,
    "numeric": decimal,
    **GEOMETRIC,
}


def check_of(kind: PostgresType) -> Check | None:
    """The check of a type's values; `None` if they need none."""
    if not kind.parts:
        return SCALARS.get(kind.name)
    checks = [check_of(part) for part in kind.parts]
    if kind.kind == "c":
        return of_composite(kind.fields, checks)
    inner = checks[0]
    return None if inner is None else _CONTAINERS[kind.kind](inner)


def of_array(element: Check) -> Check:
    """The check of arrays in any number of dimensions."""

    def checked(value: Any) -> Any:
        if is_array(value):
            for each in cast("Iterable[Any]", value):
                if is_array(each) and not isinstance(each, tuple):
                    checked(each)
                elif each is not None:
                    element(each)
        return value

    return checked


def of_range(bound: Check) -> Check:
    """The check of ranges."""

    def checked(value: Any) -> Any:
        given: object = value
        bounds: Sequence[Any] = ()
        if isinstance(given, (list, tuple)):
            bounds = cast("Sequence[Any]", given)
        elif not isinstance(given, str):
            bounds = (getattr(given, "lower", None), getattr(given, "upper", None))
        for each in bounds:
            if each is not None:
                bound(each)
        return value

    return checked


def of_composite(names: Sequence[str], checks: Sequence[Check | None]) -> Check:
    """The check of composites, by the names and the checks of their fields.

    The server refuses a wrong number of fields with an error that names no row. A driver may take
    the characters of a text for fields, unless it is the literal of a row.
    """
    named = dict(zip(names, checks, strict=True))

    def fields(value: Any) -> Iterable[tuple[str, Any]]:
        if isinstance(value, Mapping):
            given = cast("Mapping[str, Any]", value)
            return [(name, given.get(name)) for name in names]
        if isinstance(value, str) and (len(value) == len(names) or not value.startswith("(")):
            raise ChangedValue("a text for a composite; pass a tuple or a mapping")
        if not is_array(value):
            return ()
        row = [*cast("Iterable[Any]", value)]
        if len(row) != len(names):
            raise ChangedValue(f"{len(row)} fields for a composite of {len(names)}")
        return zip(names, row, strict=True)

    def checked(value: Any) -> Any:
        for name, part in fields(value):
            if part is not None and (check := named[name]) is not None:
                try:
                    check(part)
                except ChangedValue as error:
                    raise ChangedValue(f"field {name!r}: {error}") from error
        return value

    return checked


def of_multirange(part: Check) -> Check:
    """The check of multiranges."""

    def checked(value: Any) -> Any:
        if is_array(value):
            for each in cast("Iterable[Any]", value):
                if each is not None:
                    part(each)
        return value

    return checked


_CONTAINERS: dict[str, Callable[[Check], Check]] = {
    "a": of_array,
    "r": of_range,
    "m": of_multirange,
}
