"""Checks for invalid items and for functions of items that raise, with advice in their errors.

One item of a call is checked, and only on the slow path: the fast path has no extra cost. The first
item of each batch takes the slow path, so a program with the mistake gets the error.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .._core.checks import warn
from .._core.errors import ItemFunctionError
from .._core.text import repr_of

if TYPE_CHECKING:
    from .log import Unlisted
    from .setup import Setup

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
_FIELDS = ("model_fields", "__attrs_attrs__", "__struct_fields__", "_fields")
"""Attributes of classes with named fields: pydantic, attrs, msgspec, named tuples."""
_OURS = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120  # pathlib is slow to import


def check_item(item: object) -> None:
    """Raise `TypeError` for a stream of items or a coroutine; warn of a list of records."""
    kind = type(item)
    if kind is list:
        if _is_list_of_records(cast("list[object]", item)):
            one = type(cast("list[object]", item)[0]).__name__
            warn(
                f"an item is a list of {one} objects, and is written as one item; if each of them "
                "is an item, write add_many(items), otherwise add(tuple(item))"
            )
    elif kind in _STREAMS:
        raise TypeError(
            f"an item must not be a {kind.__name__}, which contains items; to add each of them write "
            "add_many(items), or add_from(items) for a long or async one"
        )
    elif kind is CoroutineType:
        cast("CoroutineType[Any, Any, Any]", item).close()
        raise TypeError("an item must not be a coroutine; await it first: add(await make_item())")


def _is_list_of_records(items: list[object]) -> bool:
    """Return whether a list looks like several items rather than a row of values."""
    if len(items) < 2:  # a list of one may be a row of one value
        return False
    first = items[0]
    kind = type(first)
    if any(type(each) is not kind for each in items):
        return False
    if isinstance(first, dict):
        keys = cast("dict[object, object]", first).keys()
        return bool(keys) and all(cast("Any", each).keys() == keys for each in items)
    return is_dataclass(kind) or any(hasattr(kind, mark) for mark in _FIELDS)


def several(items: ItemsT, method: str = "add_many") -> ItemsT:
    """Check the items of a call that takes several. Raises `TypeError` for an object without items."""
    given: object = items
    if isinstance(given, (str, bytes, bytearray, Mapping)):
        kind = type(cast("object", given)).__name__
        raise TypeError(f"{method} takes a list of items, not a {kind}; for one item write add()")
    if isinstance(given, AsyncIterable) and method != "add_from":
        raise TypeError(f"{method} takes items in memory; for an async iterable write add_from()")
    if not isinstance(given, (Iterable, AsyncIterable)) and not hasattr(given, "__getitem__"):
        kind = type(given).__name__
        raise TypeError(f"{method} takes a list of items, not a {kind}; for one item write add()")
    return items


@dataclass(frozen=True, slots=True)
class FailedFunction:
    """Reports the error of a function of an item, and names the function to the producer."""

    setup: Setup[Any]
    log: Unlisted

    def __call__(self, error: BaseException) -> None:
        """Log the error, and raise `ItemFunctionError` from it unless it is Sluicegate's own."""
        self.log.raised_by_function(error)
        if not isinstance(error, Exception) or _is_ours(error):
            return
        name = self.setup.name
        message = f"batcher {name!r}: {self._functions} raised {repr_of(error)}"
        rule = "the item was not accepted; the function must return a value for every item"
        raise ItemFunctionError(f"{message}: {rule}") from error

    @property
    def _functions(self) -> str:
        """The arguments that are functions of an item; the traceback shows which one raised."""
        setup = self.setup
        given = {
            "key=": setup.key,
            "tenant=": setup.tenant,
            "size_of=": setup.measure,
            "weights=": setup.tenants.weights,
        }
        return " or ".join(name for name, function in given.items() if callable(function))


def _is_ours(error: BaseException) -> bool:
    """Return whether Sluicegate's code raised it, and not a function of the user."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS)
