"""How values of a state are kept."""

from __future__ import annotations

import json
from typing import Any, Literal, Protocol, cast, runtime_checkable

from ..._core import checks
from ..._core.checks import bad


@runtime_checkable
class StateCodec(Protocol):
    """Turns values into what is kept of them, and back."""

    @property
    def column(self) -> Literal["json", "text", "bytea"]:
        """What a value is kept as: `json` and `text` are text, `bytea` is bytes. In PostgreSQL the type
        of the column.
        """
        ...

    def encode(self, value: Any) -> str | bytes:
        """What is kept of a value. Raises anything for one that cannot be kept."""
        ...

    def decode(self, stored: Any) -> Any:
        """The value again; a new object each time."""
        ...


class JsonState:
    """Values as JSON, in a column of type `json`.

    The text is kept as it is, so that a number is read again as it was: `jsonb` would make 1e16 an
    integer, and refuse a text with NUL. Cast it in queries: `value::jsonb`.
    """

    column: Literal["json", "text", "bytea"] = "json"

    def encode(self, value: Any) -> str:
        """The JSON of a value. Raises `TypeError` or `ValueError` for one that has none."""
        return json.dumps(value, allow_nan=False, separators=(",", ":"))

    def decode(self, stored: str) -> Any:
        """The value of this JSON: a tuple is a list, and the keys of dicts are texts."""
        return json.loads(stored)

    def __repr__(self) -> str:
        return "JsonState()"


def checked_codec(codec: StateCodec | None) -> StateCodec:
    """The codec of an argument; default: JSON. Raises `ConfigError`."""
    if codec is None:
        return JsonState()
    if not isinstance(cast("object", codec), StateCodec):
        raise bad("codec", codec, "must have column, encode() and decode(), as JsonState()")
    checks.choice("codec.column", codec.column, ("json", "text", "bytea"))
    return codec
