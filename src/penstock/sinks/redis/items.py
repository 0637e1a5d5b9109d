"""The items of a batch, ready to become commands. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from ..._core.text import repr_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class RedisItems:
    """What is stored for each item, beside its index, and an error for each other item.

    A *place* is a position in these columns.
    """

    indices: list[int] = field(default_factory=list[int])
    names: list[bytes] = field(default_factory=list[bytes])
    """The key of the stream or list."""
    values: list[Sequence[bytes]] = field(default_factory=cast("Any", list))
    """The fields of an entry, or one element, as arguments in the form of the protocol."""
    ids: list[bytes] = field(default_factory=list[bytes])
    """The ids of entries; none for elements."""
    sizes: list[int] = field(default_factory=list[int])
    errors: dict[int, BaseException] = field(default_factory=dict[int, BaseException])


def name_of(name: str | bytes | Callable[[Any], Any], item: Any) -> bytes:
    """The key for an item. Raises `TypeError` or `ValueError`."""
    given: object = name(item) if callable(name) else name
    made = given.encode() if isinstance(given, str) else given
    if not isinstance(made, bytes) or not made:
        raise TypeError(f"{repr_of(given)} is no key of Redis; expected a text that is not empty")
    return made
