"""Items as fields of entries and as elements of lists, in the form of the protocol. Pure.

1. A mapping or an object with fields becomes an entry with the same fields; any other item becomes
   one field, `value`. As an element of a list, an item is one value.
2. Bytes are stored unchanged, and text in UTF-8. Other values are JSON, without quotes if the JSON
   is a string: a date, a UUID, a decimal.
3. Redis has no null, so a field with `None` is omitted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from .._core import checks
from .._core.values.encoding import form_for, getter, to_json
from .commands import bulk

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._core.values.encoding import Encode

VALUE = bulk(b"value")
"""The field name for an item without fields."""
LONGEST = 512 << 20
"""Maximum size of a value in bytes: the default of the server's `proto-max-bulk-len`."""


def fields_of(fields: object, encode: Encode | None) -> Callable[[Any], Sequence[bytes]]:
    """The function from an item to its alternating field names and values. Raises `ConfigError`."""
    if encode is not None:
        if fields is not None:
            raise checks.bad("fields", fields, "cannot be combined with encode")
        return lambda item: (VALUE, bulk(value_of(encode(item))))
    if fields is None:
        return _own_fields
    if callable(fields):
        make = checks.function("fields", fields, _RULE)
        return lambda item: _flat(make(item))
    if isinstance(fields, (str, bytes)) or not isinstance(fields, Sequence) or not fields:
        raise checks.bad("fields", cast("object", fields), _RULE)
    names = cast("Sequence[object]", fields)
    getters = [(_name(checks.text("fields", name)), getter("fields", name)) for name in names]

    def chosen(item: Any) -> Sequence[bytes]:
        found: list[bytes] = []
        for name, get in getters:
            if get is not None and (value := get(item)) is not None:
                found += (name, bulk(value_of(value)))
        return found

    return chosen


_RULE = "must be names of fields, or a function from an item to a mapping"


def element_of(encode: Encode | None) -> Callable[[Any], bytes]:
    """The function from an item to its element in a list."""
    if encode is None:
        return lambda item: bulk(value_of(item))
    return lambda item: bulk(value_of(encode(item)))


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
    if not isinstance(item, Mapping):
        form = None if isinstance(item, (str, bytes)) else form_for(item)
        made = None if form is None else form(item)
        if not isinstance(made, Mapping):
            return VALUE, bulk(value_of(item))
        return _flat(cast("object", made))
    return _flat(cast("object", item))


def _flat(given: object) -> Sequence[bytes]:
    if not isinstance(given, Mapping):
        raise TypeError(f"the fields are {type(given).__name__}; expected a mapping")
    found: list[bytes] = []
    for name, value in cast("Mapping[Any, Any]", given).items():
        if value is not None:
            found.append(_name(name) if type(name) is str else bulk(value_of(name)))
            found.append(bulk(value_of(value)))
    return found


@lru_cache(maxsize=1024)
def _name(name: str) -> bytes:
    return bulk(name.encode())
