"""Checks for invalid items, with advice in their errors.

One item of a call is checked, and only on the slow path: the fast path has no extra cost. The first
item of each batch takes the slow path, so a program with the mistake gets the error.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, TypeVar, cast

ItemsT = TypeVar("ItemsT")

_EMPTY = dict[object, object]()
_STREAMS: frozenset[type] = frozenset(
    {
        GeneratorType,
        AsyncGeneratorType,
        map,
        filter,
        zip,
        enumerate,
        *map(type, (_EMPTY.keys(), _EMPTY.values(), _EMPTY.items())),
    }
)
"""Types with values that contain items but are not items: no sink could write one, least of all
twice.
"""


def check_item(item: object) -> None:
    """Raise `TypeError` for a stream of items or a coroutine."""
    kind = type(item)
    if kind in _STREAMS:
        raise TypeError(
            f"an item must not be a {kind.__name__}, which contains items; to add each of them write "
            "add_many(items), or add_from(items) for a long or async one"
        )
    if kind is CoroutineType:
        cast("CoroutineType[Any, Any, Any]", item).close()
        raise TypeError("an item must not be a coroutine; await it first: add(await make_item())")


def several(items: ItemsT, method: str = "add_many") -> ItemsT:
    """Check the items of a call that takes several. Raises `TypeError` for an object without items."""
    given: object = items
    if isinstance(given, AsyncIterable) and method != "add_from":
        raise TypeError(f"{method} takes items in memory; for an async iterable write add_from()")
    is_one = isinstance(given, (str, bytes, bytearray, Mapping))
    if is_one or not (
        isinstance(given, (Iterable, AsyncIterable)) or hasattr(given, "__getitem__")
    ):
        kind = type(cast("object", given)).__name__
        raise TypeError(f"{method} takes a list of items, not a {kind}; for one item write add()")
    return items
