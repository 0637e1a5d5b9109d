"""The items of a batch, prepared for commands. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from .._core.text import repr_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class RedisItems:
    """The stored form of each item, with its index, and an error for every other item.

    A *place* is a position in these columns.
    """

    indices: list[int] = field(default_factory=list[int])
    names: list[bytes] = field(default_factory=list[bytes])
    """The keys of the streams or lists."""
    values: list[Sequence[bytes]] = field(default_factory=cast("Any", list))
    """The fields of each entry, or its single element, as encoded arguments."""
    ids: list[bytes] = field(default_factory=list[bytes])
    """The ids of the entries; none for elements."""
    sizes: list[int] = field(default_factory=list[int])
    errors: dict[int, BaseException] = field(default_factory=dict[int, BaseException])


def name_of(name: str | bytes | Callable[[Any], Any], item: Any) -> bytes:
    """The Redis key for an item. Raises `TypeError` or `ValueError`."""
    given: object = name(item) if callable(name) else name
    made = given.encode() if isinstance(given, str) else given
    if not isinstance(made, bytes) or not made:
        raise TypeError(f"{repr_of(given)} is not a Redis key; expected a non-empty string")
    return made
