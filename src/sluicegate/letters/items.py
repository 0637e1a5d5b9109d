"""Conversion of any item to plain JSON for its dead letter, and back. Pure; never raises for an
item.

1. A value with a JSON form has the same form as in a file or in a request (`_core.values.forms`).
   An item of a plain class is stored as its public attributes, which are also its columns for
   `PostgresSink`. As in every file, a date becomes text and a tuple becomes a list.
2. Other values that JSON cannot represent are *marked*: stored as an object with one entry, whose
   name is in `_READ`. `restored` returns the same value.
3. Everything else (an object without a form, a cycle, more than `DEEPEST` levels) is replaced by
   its `repr`, at most `LONGEST` characters of it, as `{"$repr": ...}`. Such a letter cannot be
   replayed, and neither can a letter of a pydantic model with a secret, which is stored as
   asterisks. The rest of the item stays readable.
4. An object in the item that looks like a mark is stored as `$mapping`, so every mark is
   Sluicegate's own.
5. The copy shares no objects with the item, which may change later.
6. The item of a source's record has its fields (`item_of_record`); bytes are marked, so a restored
   one equals the record exactly.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from .._core.logs import storable
from .._core.source import Record, UndecodableRecord
from .._core.text import repr_of
from .._core.values.encoding import Form, form_for

if TYPE_CHECKING:
    from .._core.source import SourceRecord


PLAIN, MARKED, REPR = FORMS = "plain", "marked", "repr"
"""The forms of an item: plain JSON, JSON with marks of exact values, JSON with a `repr`."""
LONGEST = 10_000
"""Maximum number of characters of one `repr`."""
DEEPEST = 200
"""Maximum nesting depth of an item."""
_SHOWN = "$repr"
_LARGE = 2_000
"""Number of bits up to which Python converts an integer to decimal digits regardless of its
limit.
"""

FIELDS = ("topic", "partition", "offset", "key", "value", "headers", "timestamp")

UNDECODABLE = "undecodable"
"""The field with the type of the error, of a record that its source could not decode."""


class StoredItem(NamedTuple):
    """An item as JSON, and its form."""

    value: Any
    form: str


def stored(item: object) -> StoredItem:
    """Return the item as plain JSON: a copy made of dictionaries with text keys, lists, text and
    numbers.
    """
    copying = _Copying()
    value = copying.item(item)
    return StoredItem(value, copying.form)


def restored(value: Any) -> Any:
    """Return the value from which `stored` made this. Raises `ValueError` for a wrong or
    irreversible mark.
    """
    if isinstance(value, list):
        return [restored(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    found = cast("dict[str, Any]", value)
    if len(found) == 1:
        ((name, inner),) = found.items()
        if name in _READ:
            try:
                return _READ[name](inner)
            except (TypeError, AttributeError) as error:
                raise ValueError(f"invalid value of the mark {name!r}") from error
    return {name: restored(each) for name, each in found.items()}


class _Copying:
    """The copy of one item. `form` is final when the copy is complete."""

    def __init__(self) -> None:
        self.form = PLAIN
        self._around: set[int] = set()
        """Ids of the objects that contain the current one."""

    def item(self, item: object) -> Any:
        try:
            own = _attributes(item) if form_for(item) is None else None
        except Exception:
            own = None
        return self._value(own or item)

    def _value(self, value: Any) -> Any:
        if value is None or value is True or value is False:
            return value
        try:
            if isinstance(value, (str, int, float, bytes, bytearray, memoryview)):
                return self._scalar(cast("Any", value))
            if id(value) in self._around or len(self._around) >= DEEPEST:
                return self._repr(value)
            self._around.add(id(value))
            try:
                return self._members(value)
            finally:
                self._around.discard(id(value))
        except Exception:
            return self._repr(cast("object", value))

    def _scalar(self, value: Any) -> Any:
        if isinstance(value, str):
            text = str.__str__(value)
            return text if _is_storable(text) else self._mark("$text", _escape(text))
        if isinstance(value, int):
            number = int.__int__(value)
            is_small = number.bit_length() <= _LARGE
            return number if is_small else self._mark("$int", hex(number))
        if isinstance(value, float):
            real = float.__float__(value)
            return real if isfinite(real) else self._mark("$float", float.__repr__(real))
        return self._mark("$base64", b64encode(value).decode())

    def _members(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._mapping(list(cast("Mapping[Any, Any]", value).items()))
        if isinstance(value, (list, tuple)):
            made: list[Any] = []
            for each in list(cast("list[Any]", value)):
                made.append(self._value(each))  # noqa: PERF401  # a comprehension takes one more frame per level
            return made
        form = form_for(value)
        if _hides(value):
            self.form = REPR
        return self._repr(value) if form is None else self._value(_apply_form(form, value))

    def _mapping(self, pairs: list[tuple[Any, Any]]) -> Any:
        if all(isinstance(name, str) and _is_storable(name) for name, _ in pairs) and not (
            len(pairs) == 1 and pairs[0][0] in _READ
        ):
            made: dict[str, Any] = {}
            for name, each in pairs:
                made[str.__str__(name)] = self._value(each)
            return made
        return self._mark("$mapping", [[self._value(one), self._value(two)] for one, two in pairs])

    def _mark(self, name: str, value: object) -> dict[str, Any]:
        if self.form == PLAIN:
            self.form = MARKED
        return {name: value}

    def _repr(self, value: object) -> dict[str, Any]:
        self.form = REPR
        return {_SHOWN: storable(repr_of(value)[:LONGEST])}


def _hides(model: Any) -> bool:
    """Return whether a pydantic model represents a secret by asterisks."""
    try:
        dumps = hasattr(cast("object", type(model)), "model_dump")
        return dumps and _has_secret(model.model_dump(warnings=False))
    except Exception:  # it can only be dumped as JSON, and its secrets are unknown
        return True


def _has_secret(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_secret, cast("dict[Any, Any]", value).values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(_has_secret, cast("list[Any]", value)))
    return hasattr(value, "get_secret_value")


def _apply_form(form: Form, value: object) -> object:
    """Return its form, or its attributes if the form raises, as for a model with bytes."""
    try:
        return form(value)
    except Exception:
        found = _attributes(value)
        if not found:
            raise
        return found


def _attributes(item: Any) -> dict[str, Any] | None:
    """Return the public attributes of an object of a plain class; `None` for any other object."""
    if callable(item) or isinstance(item, BaseException):
        return None
    names = [*getattr(item, "__dict__", ())]
    for kind in type(item).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return {
        name: getattr(item, name)
        for name in names
        if not name.startswith("_") and hasattr(item, name)
    }


def _is_storable(text: str) -> bool:
    """Return whether UTF-8 can encode it, that is, whether it has no lone surrogates."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _escape(text: str) -> str:
    return text.encode("unicode_escape").decode()


def _unescape(text: str) -> str:
    return text.encode("ascii").decode("unicode_escape")


def _pairs(pairs: Any) -> dict[Any, Any]:
    return {_key(restored(name)): restored(value) for name, value in pairs}


def _key(value: Any) -> Any:
    """Convert lists to tuples, since keys cannot be lists."""
    return tuple(map(_key, cast("list[Any]", value))) if isinstance(value, list) else value


def _refuse(_: object) -> Any:
    raise ValueError("only the repr is known")


_READ: dict[str, Callable[[Any], Any]] = {
    "$text": _unescape,
    "$int": lambda text: int(text, 16),
    "$float": float,
    "$base64": partial(b64decode, validate=True),
    "$mapping": _pairs,
    _SHOWN: _refuse,
}


class NoSourceRecordError(ValueError):
    """An item that does not contain a source's record. The message gives the reason, without
    values.
    """


def item_of_record(record: SourceRecord) -> dict[str, Any]:
    """Return the item of a record's dead letter."""
    found = {name: getattr(record, name) for name in FIELDS}
    found["headers"] = [[name, value] for name, value in record.headers or ()]
    if type(record) is UndecodableRecord:
        found[UNDECODABLE] = type(record.error).__name__
    return found


def record_of_item(item: object) -> Record:
    """Return the record of a restored item. Raises `NoSourceRecordError`."""
    if not isinstance(item, dict):
        raise NoSourceRecordError("no mapping")
    found = cast("dict[str, Any]", item)
    if UNDECODABLE in found:
        raise NoSourceRecordError(f"could not be decoded by its source ({found[UNDECODABLE]})")
    if missing := [name for name in FIELDS if name not in found]:
        raise NoSourceRecordError(f"no {', '.join(missing)}")
    kinds = {"topic": str, "partition": int, "offset": int, "headers": list, "timestamp": int}
    wrong = [name for name, kind in kinds.items() if type(found[name]) is not kind]
    headers = found["headers"]
    if wrong or not all(map(_is_header, headers)):
        told = ", ".join(wrong) or "headers"
        raise NoSourceRecordError(f"{told} of the wrong type")
    return Record(
        **{name: found[name] for name in FIELDS if name != "headers"},
        headers=[(name, value) for name, value in headers],
    )


def _is_header(pair: Any) -> bool:
    """Return whether it is a name and a value. Some clients deliver headers without a value."""
    found = cast("list[Any]", pair)
    return isinstance(pair, list) and len(found) == 2 and isinstance(found[0], str)
