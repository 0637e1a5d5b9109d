"""The rules for when two keys are the same key.

Order is guaranteed per key: a key must not depend on its representation in memory, and keys that
only look alike must not share a lane.

1. Keys of different types differ: `1`, `True`, `1.0` and `"1"` are four keys.
2. Bytes-likes of equal content are one key: `bytearray` and `memoryview` are copied to `bytes`.
3. A tuple is compared by the keys of its members.
4. `None` is a key like any other: items without their own key are ordered among themselves.
5. `TypeError` is raised for a value that has no hash (a list, a dict), is not equal to itself (a
   NaN), has a varying hash, or raises when hashed or compared with itself.
6. A key of a type other than the built-in types and similar ones may change or misbehave later: it
   is *odd*. It is represented by one object, which exists as long as it is referenced; only this
   object is hashed and compared. So a key whose hash changes becomes another key, and a key whose
   comparison raises is a separate key; neither damages the state of other keys.
7. The text of a printable string is the string; the text of any other key, or of a string that
   begins with a colon, is a colon and its `repr`. Keys with different `repr`s have different texts.
"""

from __future__ import annotations

import ast
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID
from weakref import WeakValueDictionary

from ..runtime.process_fork import ProcessLock
from ..text import repr_of

if TYPE_CHECKING:
    from collections.abc import Hashable

PLAIN: frozenset[type] = frozenset({str, bytes, int, type(None)})
"""Types whose values represent themselves: no value of one equals a value of another."""

STABLE: frozenset[type] = frozenset(
    {bool, float, complex, Decimal, Fraction, UUID, date, timedelta}
)
"""Types whose values never change and never raise in comparisons."""


class Typed(NamedTuple):
    """A key of a stable type, with the type. Tuples are wrapped too: no other value equals it."""

    kind: type
    value: Hashable


class Odd:
    """The only object that represents an odd key. Equal only to itself."""

    __slots__ = ("__weakref__", "kind", "value")

    def __init__(self, kind: type, value: Hashable) -> None:
        self.kind = kind
        self.value = value

    def __repr__(self) -> str:
        return f"Odd({repr_of(self.value)})"


class _Probe:
    """An odd key when first seen; the index entry of its `Odd`."""

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
            if not isinstance(other, _Probe) or self.kind is not other.kind:
                return False
            return bool(self.value == other.value)
        except Exception:  # keys that cannot be compared are different
            return False


_odd: WeakValueDictionary[_Probe, Odd] = WeakValueDictionary()
_lock = ProcessLock()


def identity(key: object, what: str = "key") -> Hashable:
    """Return the comparable form of `key`. Raises `TypeError`; `what` names its role."""
    kind = type(key)
    if kind in PLAIN:
        return cast("Hashable", key)
    if isinstance(key, (bytearray, memoryview)):
        return bytes(cast("Any", key))
    if isinstance(key, tuple):
        members = cast("tuple[object, ...]", key)
        return Typed(kind, tuple([identity(each, what) for each in members]))
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
    """Like `identity`, for the key of an accepted item; a key that became invalid equals no
    other.
    """
    try:
        return identity(key)
    except TypeError:
        return Typed(Odd, id(key))


def _checked_hash(key: object, what: str) -> int:
    try:
        equal = bool(key == key)  # noqa: PLR0124  # false for a NaN
    except Exception as error:
        why = f"comparing it with itself raised {type(error).__name__}"
        raise _no_key(key, what, why) from error
    if not equal:
        raise _no_key(key, what, "it does not equal itself")
    try:
        hashed, again = hash(key), hash(key)
    except TypeError:
        kind = type(key).__name__
        why = f"a {kind} has no hash; use a string, bytes, a number or a tuple of them"
        raise _no_key(key, what, why) from None
    except Exception as error:
        raise _no_key(key, what, f"hashing it raised {type(error).__name__}") from error
    if hashed != again:
        raise _no_key(key, what, "its hash is different each time")
    return hashed


def _no_key(key: object, what: str, why: str) -> TypeError:
    return TypeError(f"{repr_of(key)} cannot be a {what}: {why}")


def shown(key: Hashable) -> object:
    """Return the key of an identity."""
    if type(key) is Odd:
        return key.value
    if type(key) is not Typed:
        return key
    if issubclass(key.kind, tuple):
        return tuple.__new__(key.kind, map(shown, cast("tuple[Hashable, ...]", key.value)))
    return key.value


def key_text(key: object) -> str:
    """Return the key as text, for display and stores: `acme/42`, `:42`, `:('ann', 7)`."""
    if type(key) is str and key.isprintable() and not key.startswith(":"):
        return key
    return f":{repr_of(key)}"


def key_of(text: str) -> object:
    """Return the key for a text of `text_of` if Python can read its `repr`; otherwise the text."""
    if not text.startswith(":"):
        return text
    try:
        key = ast.literal_eval(text[1:])
        hash(key)
    except (ValueError, SyntaxError, TypeError):
        return text
    return key
