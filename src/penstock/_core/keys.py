"""When two keys are the same key.

Order is promised per key, so a key must not depend on how it is spelt in memory, and keys that only look alike must not share a lane.

1. Keys of different types are different keys: `1`, `True`, `1.0` and `"1"` are four.
2. Bytes-likes with the same content are the same key: `bytes`, `bytearray` and `memoryview` count as `bytes`, copied at once.
3. A tuple is the tuple of its members' keys.
4. `None` is a key like any other: all items without a key of their own are in order among themselves.
5. What cannot be a key raises `TypeError`: what has no hash (a list, a dict), what does not equal itself (a NaN).
6. As text a printable string is itself; any other key, and a string that begins with a colon, is a colon and its `repr`. So different keys
   have different texts, as far as their `repr` tells them apart.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Hashable

PLAIN: frozenset[type] = frozenset({str, bytes, int, type(None)})
"""Types whose values stand for themselves: no value of one equals a value of another."""


class Typed(NamedTuple):
    """A key of any other type, with its type. A key that is a tuple is wrapped as well, so nothing else equals this."""

    kind: type
    value: Hashable


def identity(key: object, what: str = "key") -> Hashable:
    """What stands for `key` wherever keys are compared. Raises `TypeError` for what cannot be one, and says `what` it cannot be."""
    kind = type(key)
    if kind in PLAIN:
        return cast("Hashable", key)
    if isinstance(key, (bytearray, memoryview)):
        return bytes(cast("Any", key))
    if isinstance(key, tuple):
        return Typed(kind, tuple([identity(each, what) for each in cast("tuple[object, ...]", key)]))
    if key != key:  # noqa: PLR0124  # a NaN, or something as strange
        message = f"{key!r} cannot be a {what}: it does not equal itself"
        raise TypeError(message)
    try:
        hash(key)
    except TypeError:
        message = f"{key!r} cannot be a {what}: a {kind.__name__} has no hash; use a string, bytes, a number or a tuple of them"
        raise TypeError(message) from None
    return Typed(kind, cast("Hashable", key))


def shown(key: Hashable) -> object:
    """The key that an identity stands for."""
    if type(key) is not Typed:
        return key
    if issubclass(key.kind, tuple):
        return tuple.__new__(key.kind, map(shown, cast("tuple[Hashable, ...]", key.value)))
    return key.value


def text_of(key: object) -> str:
    """The key as text, for people and for stores: `acme/42`, `:42`, `:('ann', 7)`."""
    return key if type(key) is str and key.isprintable() and not key.startswith(":") else f":{key!r}"


def key_of(text: str) -> object:
    """The key that `text_of` made this of, where Python can read its `repr`; else the text."""
    if not text.startswith(":"):
        return text
    try:
        key = ast.literal_eval(text[1:])
        hash(key)
    except (ValueError, SyntaxError, TypeError):
        return text
    return key
