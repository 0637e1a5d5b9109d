"""Messages to append, checked before anything is sent, and messages as they were appended. Pure.

1. Data and metadata are JSON. They are encoded when the message is made, so that a value without a
   JSON form is an error there, and a later change of a mutable object has no effect.
2. What JSON has and PostgreSQL's `jsonb` has not is refused, too: the character U+0000, and halves
   of surrogate pairs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast
from uuid import UUID

from ...._core.checks import bad, count
from ...._core.errors import ConfigError
from ...._core.told import text_of
from ...encoding import json_texts, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

NO_STREAM = -1
"""The expected version of a stream that does not exist."""
LONGEST_NAME = 2000
"""The most bytes of the name of a stream, which is part of an index."""

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class Appended(NamedTuple):
    """A message as it stands in the log."""

    position: int
    """Its place in the whole log. Positions have gaps."""
    version: int
    """Its place in its stream: 0, 1, 2 and so on."""
    id: UUID
    at: datetime
    """When it was appended, by the server's clock; in UTC."""
    is_new: bool
    """False: a message of this id was there already, with the same contents."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to append to a stream.

    Args:
        type: what kind of message it is, such as `"OrderPlaced"`; not empty.
        data: its contents: anything with a JSON form. Dates become text in ISO form, UUIDs and
            decimals become text, dataclasses, pydantic models, attrs classes and msgspec structs
            become objects.
        metadata: a mapping of names to values with a JSON form, for everything about the message
            that is not its contents, such as a trace; default: none.
        id: its id, a UUID or the text of one; default: the server makes one. A message with an id
            is appended once, however often it is tried.

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
        """The type as JSON."""
        return self._texts[0]

    @property
    def data_text(self) -> str:
        """The data as JSON."""
        return self._texts[1]

    @property
    def metadata_text(self) -> str:
        """The metadata as JSON, an object."""
        return self._texts[2]


def name_text(name: str, value: object) -> str:
    """Text that PostgreSQL can store: not empty, without U+0000. Raises `ConfigError`."""
    if not isinstance(value, str) or not value or "\0" in value or not _is_unicode(value):
        raise bad(name, value, "must be text that is not empty, without U+0000 and surrogates")
    return value


def stream_name(value: object) -> str:
    """The name of a stream. Raises `ConfigError`."""
    stream = name_text("stream", value)
    if len(stream.encode()) > LONGEST_NAME:
        raise bad("stream", stream, f"must be at most {LONGEST_NAME} bytes long in UTF-8")
    return stream


def message_id(value: object) -> UUID | None:
    """A UUID, or the text of one. Raises `ConfigError`."""
    if value is None or isinstance(value, UUID):
        return value
    try:
        return UUID(cast("str", value))
    except (ValueError, AttributeError, TypeError):
        raise bad("id", value, "must be a UUID or the text of one") from None


def expected_version(value: object) -> int | None:
    """A version, `NO_STREAM`, or `None` for any. Raises `ConfigError`."""
    if value is None:
        return None
    try:
        return count("expected", value, least=NO_STREAM)
    except ConfigError:
        rule = "must be the version of the stream's last message, NO_STREAM (-1), or None for any"
        raise bad("expected", value, rule) from None


def json_text(name: str, value: object) -> str:
    """The value as JSON that `jsonb` can store. Raises `ConfigError`, which does not show it."""
    try:
        text = to_json(value).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _unfit(name, value, error) from error
    if "\\u0000" in text and _NUL.search(text):
        raise bad(name, type(value).__name__, "holds U+0000, which PostgreSQL cannot store")
    return text


def json_texts_of(name: str, values: Sequence[object]) -> tuple[list[str], dict[int, ConfigError]]:
    """The values as `json_text` encodes them, and the errors of those that have no such form.

    Those have an empty text.
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
