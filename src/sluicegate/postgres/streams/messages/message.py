"""Messages to append, checked before sending; and appended messages. Pure.

1. Data and metadata are JSON. They are encoded when the message is created: a value without a JSON
   form raises there, and a later change of a mutable object has no effect.
2. JSON that PostgreSQL's `jsonb` does not support is also refused: the character U+0000, and lone
   surrogates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast
from uuid import UUID

from ...._core.checks import bad, count
from ...._core.errors import ConfigError
from ...._core.text import text_of
from ...._core.values.encoding import json_texts, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

NO_STREAM = -1
"""The expected version of a stream that does not exist."""
LONGEST_NAME = 2000
"""Maximum size of a stream's name in bytes, since it is part of an index."""

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class Appended(NamedTuple):
    """An appended message, as stored in the log."""

    position: int
    """Its position in the whole log. Positions have gaps."""
    version: int
    """Its version in its stream: 0, 1, 2 and so on."""
    id: UUID
    at: datetime
    """The time of the append by the server's clock, in UTC."""
    is_new: bool
    """False if a message with this id and the same contents already existed."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to append to a stream.

    Args:
        type: the kind of message, such as `"OrderPlaced"`; not empty.
        data: its contents: any value with a JSON form. Dates become text in ISO form, UUIDs and
            decimals become text, dataclasses, pydantic models, attrs classes and msgspec structs
            become objects.
        metadata: a mapping of names to values with a JSON form, for information about the message
            other than its contents, such as a trace; default: none.
        id: its id, a UUID or its text; default: the server creates one. A message with an id is
            appended once, regardless of the number of attempts.

    Raises `ConfigError` for a bad argument: bytes, NaN, infinity, an object of a plain class, the
    character U+0000. The contents are encoded here, so changing `data` later has no effect.
    """

    type: str
    data: object
    metadata: Mapping[str, object] | None = None
    id: UUID | str | None = None
    _texts: tuple[str, str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name_text("type", self.type)
        if self.metadata is not None and not isinstance(cast("object", self.metadata), Mapping):
            raise bad("metadata", type(self.metadata).__name__, "must be a mapping by name")
        texts = (
            to_json(self.type).decode(),
            json_text("data", self.data),
            json_text("metadata", dict(self.metadata or {})),
        )
        object.__setattr__(self, "_texts", texts)
        object.__setattr__(self, "id", message_id(self.id))

    @property
    def type_text(self) -> str:
        """The type, as JSON."""
        return self._texts[0]

    @property
    def data_text(self) -> str:
        """The data, as JSON."""
        return self._texts[1]

    @property
    def metadata_text(self) -> str:
        """The metadata, as a JSON object."""
        return self._texts[2]


def name_text(name: str, value: object) -> str:
    """Check that PostgreSQL can store the text: not empty, without U+0000. Raises `ConfigError`."""
    if not isinstance(value, str) or not value or "\0" in value or not _is_unicode(value):
        raise bad(name, value, "must be text that is not empty, without U+0000 and surrogates")
    return value


def stream_name(value: object) -> str:
    """Check the name of a stream. Raises `ConfigError`."""
    stream = name_text("stream", value)
    if len(stream.encode()) > LONGEST_NAME:
        raise bad("stream", stream, f"must be at most {LONGEST_NAME} bytes long in UTF-8")
    return stream


def message_id(value: object) -> UUID | None:
    """Check that the value is a UUID or its text. Raises `ConfigError`."""
    if value is None or isinstance(value, UUID):
        return value
    try:
        return UUID(cast("str", value))
    except (ValueError, AttributeError, TypeError):
        raise bad("id", value, "must be a UUID or the text of one") from None


def expected_version(value: object) -> int | None:
    """Check that the value is a version, `NO_STREAM`, or `None` for any. Raises `ConfigError`."""
    if value is None:
        return None
    try:
        return count("expected", value, least=NO_STREAM)
    except ConfigError:
        rule = "must be the version of the stream's last message, NO_STREAM (-1), or None for any"
        raise bad("expected", value, rule) from None


def json_text(name: str, value: object) -> str:
    """Encode the value as JSON for `jsonb`. Raises `ConfigError`, which does not show it."""
    try:
        text = to_json(value).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _unfit(name, value, error) from error
    if "\\u0000" in text and _NUL.search(text):
        raise bad(name, type(value).__name__, "holds U+0000, which PostgreSQL cannot store")
    return text


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
