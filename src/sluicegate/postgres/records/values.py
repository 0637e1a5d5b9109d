"""Values of messages and jobs: text, JSON and times as PostgreSQL can store them. Pure.

1. JSON that `jsonb` does not support is refused: the character U+0000, and lone surrogates.
2. PostgreSQL accepts values that Python does not decode: numbers of more than 4,300 digits, deeply
   nested JSON, and times before the year 1 or without end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from ..._core.checks import bad
from ..._core.errors import ConfigError
from ..._core.text import text_of
from ..._core.trace_context import unless_given
from ..._core.values.encoding import json_texts, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from ..._core.trace_context import TraceHeaders

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999
"""The milliseconds since the epoch that a `datetime` can hold."""


@dataclass(slots=True)
class RecordColumns:
    """Records to write, as parallel columns: the fields of a subclass."""

    def pick(self, places: Sequence[int]) -> Self:
        """Return the records at these places."""
        made = type(self)()
        for each in fields(self):
            column = getattr(self, each.name)
            setattr(made, each.name, [column[place] for place in places])
        return made


def name_text(name: str, value: object) -> str:
    """Check that PostgreSQL can store the text: not empty, without U+0000. Raises `ConfigError`."""
    if not isinstance(value, str) or not value or "\0" in value or not _is_unicode(value):
        raise bad(name, value, "must be text that is not empty, without U+0000 and surrogates")
    return value


def message_id(value: object) -> UUID | None:
    """Check that the value is a UUID or its text. Raises `ConfigError`."""
    if value is None or isinstance(value, UUID):
        return value
    try:
        return UUID(cast("str", value))
    except (ValueError, AttributeError, TypeError):
        raise bad("id", value, "must be a UUID or the text of one") from None


def json_text(name: str, value: object) -> str:
    """Encode the value as JSON for `jsonb`. Raises `ConfigError`, which does not show it."""
    try:
        text = to_json(value).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _unfit(name, value, error) from error
    if "\\u0000" in text and _NUL.search(text):
        raise bad(name, type(value).__name__, "holds U+0000, which PostgreSQL cannot store")
    return text


def mapping_text(name: str, value: object, trace: TraceHeaders) -> str:
    """Encode a mapping by name, or `None`, with the trace context. Raises `ConfigError`."""
    if value is not None and not isinstance(value, Mapping):
        raise bad(name, type(value).__name__, "must be a mapping by name")
    own = dict(cast("Mapping[Any, Any]", value or {}))
    return json_text(name, {**own, **unless_given(trace, map(str, own))})


def json_texts_of(name: str, values: Sequence[object]) -> tuple[list[str], dict[int, ConfigError]]:
    """Encode the values as `json_text` does; return the texts, and errors of invalid values.

    Invalid values have an empty text.
    """
    try:
        texts = json_texts(values)
    except (TypeError, ValueError, RecursionError):
        texts = [""] * len(values)
    else:
        together = "".join(texts)
        if "\\u0000" not in together and _is_unicode(together):
            return texts, {}
    faults: dict[int, ConfigError] = {}
    for place, value in enumerate(values):
        try:
            texts[place] = json_text(name, value)
        except ConfigError as error:
            faults[place] = error
    return texts, faults


def _unfit(name: str, value: object, error: Exception) -> ConfigError:
    why = "nested too deeply" if isinstance(error, RecursionError) else text_of(error)
    if isinstance(error, UnicodeEncodeError):
        why = "half of a surrogate pair"
    return bad(name, type(value).__name__, f"must have a form in JSON ({why.partition(';')[0]})")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def entries_of(name: str, text: str) -> tuple[list[tuple[str, bytes]], Exception | None]:
    """Convert a JSON object to headers: strings unchanged, other values as JSON.

    If it cannot be decoded, return it as the header `name`, and the error.
    """
    if text == "{}":
        return [], None
    try:
        return [
            (name, (value if isinstance(value, str) else json.dumps(value)).encode())
            for name, value in json.loads(text).items()
        ], None
    except Exception as error:
        return [(name, text.encode())], error


def milliseconds(column: str) -> str:
    """Return a column with the milliseconds since the epoch of any time, for `timestamp_of`."""
    return f"floor(extract(epoch FROM {column}) * 1000)::float8"


def timestamp_of(milliseconds: float) -> int:
    """Return the timestamp of a record: the nearest time that a `datetime` can hold."""
    return int(min(max(milliseconds, _FIRST), _LAST))


def time_of(microseconds: int) -> datetime:
    """Convert microseconds since the epoch to a time in UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)


def microseconds_of(time: datetime) -> int:
    """Convert an aware time to microseconds since the epoch."""
    return (time - _EPOCH) // _MICROSECOND


def aware(name: str, time: object) -> datetime:
    """Check that the time has a time zone. Raises `ConfigError`."""
    if not isinstance(time, datetime) or time.utcoffset() is None:
        raise bad(name, time, "must be an aware time, such as datetime.now(UTC)")
    return time
