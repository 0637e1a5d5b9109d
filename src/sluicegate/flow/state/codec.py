"""The encoding of state values."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, runtime_checkable

from ..._core import checks
from ..._core.checks import bad
from ..._core.text import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping


@runtime_checkable
class StateCodec(Protocol):
    """Encodes values for storage, and decodes them."""

    @property
    def column(self) -> Literal["json", "text", "bytea"]:
        """The stored type: `json` and `text` are strings, `bytea` is bytes. In PostgreSQL it is the
        type of the column.
        """
        ...

    def encode(self, value: Any) -> str | bytes:
        """Encode a value. Raises any exception for a value that cannot be stored."""
        ...

    def decode(self, stored: Any) -> Any:
        """Decode a value, into a new object each time."""
        ...


class JsonState:
    """Encodes values as JSON, in a column of type `json`.

    The text is stored unchanged, so that numbers are read back exactly: `jsonb` would convert 1e16
    to an integer, and refuse a string with NUL. Cast it in queries: `value::jsonb`.
    """

    column: Literal["json", "text", "bytea"] = "json"

    def encode(self, value: Any) -> str:
        """Encode a value as JSON. Raises `TypeError` or `ValueError` if this is impossible."""
        return json.dumps(value, allow_nan=False, separators=(",", ":"))

    def decode(self, stored: str) -> Any:
        """Decode JSON. Tuples have become lists, and the keys of dicts strings."""
        return json.loads(stored)

    def __repr__(self) -> str:
        return "JsonState()"


def check_decodes(codec: StateCodec, entries: Mapping[str, str | bytes]) -> None:
    """Raise `ConfigError` if the codec cannot decode the first entry: it has stored none of them."""
    for key, stored in islice(entries.items(), 1):
        try:
            codec.decode(stored)
        except Exception as error:
            rule = f"cannot decode the stored value of {key!r} ({text_of(error)}); use the codec that stored it"
            raise bad("codec", codec, rule) from error


def checked_codec(codec: StateCodec | None) -> StateCodec:
    """Check a codec argument; default: JSON. Raises `ConfigError`."""
    if codec is None:
        return JsonState()
    if not isinstance(cast("object", codec), StateCodec):
        raise bad("codec", codec, "must have column, encode() and decode(), like JsonState()")
    checks.choice("codec.column", codec.column, ("json", "text", "bytea"))
    return codec
