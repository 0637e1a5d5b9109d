"""Items as commands of Redis: `XADD` for entries of streams. Pure.

1. A mapping or an object with fields becomes an entry with the same fields; any other item becomes
   one field, `value`.
2. Bytes are stored unchanged, and text in UTF-8. Other values are JSON, without quotes if the JSON
   is a string: a date, a UUID, a decimal.
3. Redis has no null, so a field with `None` is omitted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from .._core import checks
from .._core.errors import PermanentError, RefusedError, TooLargeError
from .._core.text import repr_of
from .._core.values.encoding import form_for, getter, item_error, to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .._core.errors import SinkError
    from .._core.values.encoding import Encode, Getter

LONGEST = 512 << 20
"""Maximum size of a value in bytes: the default of the server's `proto-max-bulk-len`."""
_ID = re.compile(rb"(\d{1,20})(?:-(\d{1,20}|\*))?")
_AUTO = b"*"
_VALUE = b"value"
"""The field name for an item without fields."""
_FIELDS_RULE = "must be names of fields, or a function from an item to a mapping"


@dataclass(slots=True)
class RedisItem:
    """The stored form of an item."""

    index: int
    name: bytes
    """The key of its stream."""
    values: Sequence[bytes]
    """The fields of its entry."""
    id: bytes

    @property
    def size(self) -> int:
        """The bytes of its values."""
        return sum(map(len, self.values))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamForm:
    """The conversion of items to entries.

    `maxlen` and `max_age` (seconds) trim, exactly unless `approximate`; `id` determines the ids of
    entries.
    """

    name: str | Callable[[Any], Any]
    fields: Callable[[Any], Sequence[bytes]]
    id: Getter | None
    maxlen: int | None
    max_age: float | None
    approximate: bool
    create: bool
    ignores_known: bool

    @property
    def ordered(self) -> bool:
        """Whether entries must stay in order."""
        return self.id is not None

    def prepare(self, items: Iterable[Any], longest: int) -> Prepared:
        """Convert all items to entries. Does not suspend."""
        prepared = Prepared([], {})
        for index, item in enumerate(items):
            try:
                made = self._entry(index, item)
            except Exception as error:
                prepared.errors[index] = item_error("cannot become an entry", error)
                continue
            if (size := max(map(len, made.values))) > longest:
                prepared.errors[index] = _too_large(size, longest)
            else:
                prepared.items.append(made)
        return prepared

    def _entry(self, index: int, item: Any) -> RedisItem:
        name, values = _name_of(self.name, item), self.fields(item)
        if not values:
            raise ValueError("an entry requires at least one field, and this one has none")
        entry_id = _AUTO if self.id is None else self._id(self.id(item))
        return RedisItem(index, name, values, entry_id)

    def commands(self, items: Iterable[RedisItem], now: float) -> list[Sequence[bytes]]:
        """An `XADD` for each item; `now` is in seconds since 1970."""
        options = self._options(now)
        return [(b"XADD", item.name, *options, item.id, *item.values) for item in items]

    def detail(self, answer: object, name: bytes) -> str | SinkError | None:
        """The id of the new entry, an error for a missing stream, or `None` for an invalid reply."""
        if answer is None:
            told = f"there is no stream {name!r}, and create=False"
            return RefusedError(told, repair=f"create the stream {name!r}, or leave create=True")
        return answer.decode() if isinstance(answer, bytes) else None

    def _options(self, now: float) -> list[bytes]:
        options = [] if self.create else [b"NOMKSTREAM"]
        how = b"~" if self.approximate else b"="
        if self.maxlen is not None:
            options += [b"MAXLEN", how, b"%d" % self.maxlen]
        if self.max_age is not None:
            options += [b"MINID", how, b"%d" % max(0, 1000 * (now - self.max_age))]
        return options

    def _id(self, given: object) -> bytes:
        made = _id_text(given)
        if made == _AUTO and not self.ignores_known:
            return _AUTO
        found = _ID.fullmatch(made)
        if found is None:
            rule = "expected milliseconds, or milliseconds-number"
            raise ValueError(f"{repr_of(given)} is not an entry id; {rule}")
        milliseconds, number = found[1], found[2] or b"0"
        if number == _AUTO and self.ignores_known:
            raise ValueError('on_conflict="ignore" requires complete ids, such as 1700000000000-0')
        return milliseconds + b"-" + number


def lookup(item: RedisItem) -> Sequence[bytes]:
    """The `XRANGE` for the entry with an item's id."""
    return b"XRANGE", item.name, item.id, item.id


def is_same_entry(answer: object, values: Sequence[bytes]) -> bool | None:
    """Whether a lookup's reply has an entry with these fields; `None` if it has no entry."""
    entries = cast("list[Any]", answer) if isinstance(answer, list) else []
    return [*entries[0][1]] == [*values] if entries else None


class Prepared(NamedTuple):
    """The stored forms of a batch's items, and an error for every other item, by its index."""

    items: list[RedisItem]
    errors: dict[int, BaseException]


def _too_large(size: int, longest: int) -> PermanentError:
    told = f"a value of {size:,} bytes is more than the server accepts (proto-max-bulk-len)"
    return TooLargeError(f"{told}: {longest:,}")


# -- values ----------------------------------------------------------------------------------------


def fields_of(fields: object, encode: Encode | None) -> Callable[[Any], Sequence[bytes]]:
    """The function from an item to its alternating field names and values. Raises `ConfigError`."""
    if encode is not None:
        if fields is not None:
            raise checks.bad("fields", fields, "cannot be combined with encode")
        return lambda item: (_VALUE, value_of(encode(item)))
    if fields is None:
        return _own_fields
    if callable(fields):
        make = checks.function("fields", fields, _FIELDS_RULE)
        return lambda item: _flat(make(item))
    if isinstance(fields, (str, bytes)) or not isinstance(fields, Sequence) or not fields:
        raise checks.bad("fields", cast("object", fields), _FIELDS_RULE)
    names = cast("Sequence[object]", fields)
    getters = [
        (checks.text("fields", name).encode(), getter("fields", cast("str", name)))
        for name in names
    ]

    def chosen(item: Any) -> Sequence[bytes]:
        found: list[bytes] = []
        for name, get in getters:
            if get is not None and (value := get(item)) is not None:
                found += (name, value_of(value))
        return found

    return chosen


def value_of(value: Any) -> bytes:
    """Encode a value as bytes. Raises `TypeError` or `ValueError` if that is not possible."""
    if type(value) is int:
        return b"%d" % value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(cast("bytes", value))
    made = to_json(value)
    return json.loads(made).encode() if made.startswith(b'"') else made


def _own_fields(item: Any) -> Sequence[bytes]:
    if isinstance(item, Mapping):
        return _flat(cast("object", item))
    form = None if isinstance(item, (str, bytes)) else form_for(item)
    made = None if form is None else form(item)
    return _flat(cast("object", made)) if isinstance(made, Mapping) else (_VALUE, value_of(item))


def _flat(given: object) -> Sequence[bytes]:
    if not isinstance(given, Mapping):
        raise TypeError(f"the fields are {type(given).__name__}; expected a mapping")
    found: list[bytes] = []
    for name, value in cast("Mapping[Any, Any]", given).items():
        if value is not None:
            found.append(_field_name(name) if type(name) is str else value_of(name))
            found.append(value_of(value))
    return found


@lru_cache(maxsize=1024)
def _field_name(name: str) -> bytes:
    return name.encode()


def _name_of(name: str | bytes | Callable[[Any], Any], item: Any) -> bytes:
    """The Redis key for an item. Raises `TypeError` or `ValueError`."""
    given: object = name(item) if callable(name) else name
    made = given.encode() if isinstance(given, str) else given
    if not isinstance(made, bytes) or not made:
        raise TypeError(f"{repr_of(given)} is not a Redis key; expected a non-empty string")
    return made


def _id_text(given: object) -> bytes:
    """The id as text; empty for a value that cannot be an id."""
    if given is None:
        return _AUTO
    if isinstance(given, int) and not isinstance(given, bool):
        return b"%d" % given
    made = given.encode() if isinstance(given, str) else given
    return made if isinstance(made, bytes) else b""
