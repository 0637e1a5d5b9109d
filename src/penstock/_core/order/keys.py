"""When two keys are the same key.

Order is promised per key, so a key must not depend on how it is spelt in memory, and keys that only
look alike must not share a lane.

1. Keys of different types are different keys: `1`, `True`, `1.0` and `"1"` are four.
2. Bytes-likes with the same content are the same key: `bytes`, `bytearray` and `memoryview` count
   as `bytes`, copied at once.
3. A tuple is the tuple of its members' keys.
4. `None` is a key like any other: all items without a key of their own are in order among
   themselves.
5. What cannot be a key raises `TypeError`: what has no hash (a list, a dict), what does not equal
   itself (a NaN), what has another hash each time, or raises when it is hashed or compared with
   itself.
6. A key of a type that may change or misbehave later (any but the built-in ones and their like) is
   *odd*: one object stands for it for as long as that is kept anywhere, and only that object is
   hashed and compared from then on. So a key whose hash changes counts as another key afterwards,
   and one whose comparison with others raises is a key of its own; neither can break what is kept
   for others.
7. As text a printable string is itself; any other key, and a string that begins with a colon, is a
   colon and its `repr`. So different keys have different texts, as far as their `repr` tells them
   apart.
"""

from __future__ import annotations

import ast
import os
import threading
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID
from weakref import WeakValueDictionary

from ..text import repr_of

if TYPE_CHECKING:
    from collections.abc import Hashable

PLAIN: frozenset[type] = frozenset({str, bytes, int, type(None)})
"""Types whose values stand for themselves: no value of one equals a value of another."""


STABLE: frozenset[type] = frozenset(
    {bool, float, complex, Decimal, Fraction, UUID, date, timedelta}
)
"""Types whose values never change, nor raise when they are compared."""


class Typed(NamedTuple):
    """A key of a stable type, with its type. A key that is a tuple is wrapped as well, so nothing
    else equals this.
    """

    kind: type
    value: Hashable


class Odd:
    """The one object that stands for an odd key. It equals only itself."""

    __slots__ = ("__weakref__", "kind", "value")

    def __init__(self, kind: type, value: Hashable) -> None:
        self.kind = kind
        self.value = value

    def __repr__(self) -> str:
        return f"Odd({repr_of(self.value)})"


class _Probe:
    """An odd key as it was when it was given: by this its `Odd` is found."""

    __slots__ = ("hash", "kind", "value")

    def __init__(self, kind: type, value: Hashable, hashed: int) -> None:
        self.kind = kind
        self.value = value
        self.hash = hashed

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        try:
            return (
                isinstance(other, _Probe)
                and self.kind is other.kind
                and bool(self.value == other.value)
            )
        except Exception:  # a key that cannot be compared with another one is not that one
            return False


_odd: WeakValueDictionary[_Probe, Odd] = WeakValueDictionary()
_lock = threading.RLock()


def _in_child() -> None:
    global _lock  # noqa: PLW0603  # the parent's other threads may have held it
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_in_child)


def identity(key: object, what: str = "key") -> Hashable:
    """What stands for `key` wherever keys are compared. Raises `TypeError` for what cannot be one,
    and says `what` it cannot be.
    """
    kind = type(key)
    if kind in PLAIN:
        return cast("Hashable", key)
    if isinstance(key, (bytearray, memoryview)):
        return bytes(cast("Any", key))
    if isinstance(key, tuple):
        return Typed(
            kind, tuple([identity(each, what) for each in cast("tuple[object, ...]", key)])
        )
    hashed = _checked_hash(key, what)
    if kind in STABLE:
        return Typed(kind, cast("Hashable", key))
    probe = _Probe(kind, cast("Hashable", key), hashed)
    with _lock:
        odd = _odd.get(probe)
        if odd is None:
            odd = _odd[probe] = Odd(kind, cast("Hashable", key))
    return odd


def accepted(key: object) -> Hashable:
    """As `identity`, for a key that was one when its item was accepted; what has become none since
    is told from all others.
    """
    try:
        return identity(key)
    except TypeError:
        return Typed(Odd, id(key))


def _checked_hash(key: object, what: str) -> int:
    """The hash of what equals itself and has the same hash each time."""
    try:
        equal = bool(key == key)  # noqa: PLR0124  # a NaN does not, nor does something as strange
    except Exception as error:
        raise _no_key(
            key, what, f"comparing it with itself raised {type(error).__name__}"
        ) from error
    if not equal:
        raise _no_key(key, what, "it does not equal itself")
    try:
        hashed = hash(key)
        again = hash(key)
    except TypeError:
        name = type(key).__name__
        raise _no_key(
            key, what, f"a {name} has no hash; use a string, bytes, a number or a tuple of them"
        ) from None
    except Exception as error:
        raise _no_key(key, what, f"hashing it raised {type(error).__name__}") from error
    if hashed != again:
        raise _no_key(key, what, "its hash is another one each time")
    return hashed


def _no_key(key: object, what: str, why: str) -> TypeError:
    return TypeError(f"{repr_of(key)} cannot be a {what}: {why}")


def shown(key: Hashable) -> object:
    """The key that an identity stands for."""
    if type(key) is Odd:
        return key.value
    if type(key) is not Typed:
        return key
    if issubclass(key.kind, tuple):
        return tuple.__new__(key.kind, map(shown, cast("tuple[Hashable, ...]", key.value)))
    return key.value


def text_of(key: object) -> str:
    """The key as text, for people and for stores: `acme/42`, `:42`, `:('ann', 7)`."""
    return (
        key if type(key) is str and key.isprintable() and not key.startswith(":") else f":{key!r}"
    )


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
