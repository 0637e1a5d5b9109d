"""Items as messages: the parts of each message, and an error for an item that cannot become one.
Pure.

A message without its own id gets one derived from its item's deduplication token. It is the same in
every retry of the write, so messages that an attempt without a response has appended are
recognized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid5

from ...._core.checks import bad
from ...._core.values.encoding import getter, item_error
from ..messages.batch import MessageColumns
from ..messages.message import (
    expected_version,
    json_text,
    json_texts_of,
    message_id,
    name_text,
    stream_name,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from ...._core.values.encoding import Getter

_NAMESPACE = UUID("a4b51d43-5a5c-4a8e-9b0c-6d0f7a0c2a51")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageParts:
    """The functions that get the parts of a message from an item."""

    stream: Getter
    type: Getter
    data: Getter | None
    metadata: Getter | None
    id: Getter | None
    expected: Getter | None

    @classmethod
    def of(cls, **given: object) -> Self:
        """Validate the arguments. Raises `ConfigError`."""
        made = {name: getter(name, value) for name, value in given.items()}
        for name in ("stream", "type"):
            if made[name] is None:
                raise bad(name, None, "must be a field's name or a function of an item")
        return cls(**cast("Any", made))

    @property
    def has_ids(self) -> bool:
        """Whether items have their own ids."""
        return self.id is not None


class GivenMessages:
    """The messages of a batch, the index of each message's item, and the errors of the other items."""

    def __init__(self, parts: MessageParts, items: Sequence[Any], tokens: Sequence[str]) -> None:
        self.indices: list[int] = []
        self.columns = MessageColumns()
        self.errors: dict[int, BaseException] = {}
        self._parts = parts
        contents: list[Any] = []
        for index, item in enumerate(items):
            try:
                contents.append(self._enter(index, item, tokens[index]))
            except Exception as error:
                self._cut(len(contents))
                self.errors[index] = item_error("cannot become a message", error)
        self._encode(contents)

    def _enter(self, index: int, item: Any, token: str) -> Any:
        """Add all parts except the data, and return the data."""
        parts, columns = self._parts, self.columns
        columns.streams.append(stream_name(parts.stream(item)))
        columns.types.append(name_text("type", parts.type(item)))
        columns.metadata.append("{}" if parts.metadata is None else _metadata(parts.metadata(item)))
        found = None if parts.id is None else message_id(parts.id(item))
        columns.ids.append(str(uuid5(_NAMESPACE, token) if found is None else found))
        columns.expected.append(
            None if parts.expected is None else expected_version(parts.expected(item))
        )
        data = item if parts.data is None else parts.data(item)
        self.indices.append(index)
        return data

    def _cut(self, length: int) -> None:
        """Drop the parts of an item that has failed."""
        for each in fields(self.columns):
            del getattr(self.columns, each.name)[length:]
        del self.indices[length:]

    def _encode(self, contents: list[Any]) -> None:
        texts, faults = json_texts_of("data", contents)
        self.columns.data.extend(texts)
        if faults:
            for place, error in faults.items():
                self.errors[self.indices[place]] = item_error("cannot become a message", error)
            self.keep([place for place in range(len(texts)) if place not in faults])

    def keep(self, places: Sequence[int]) -> None:
        """Keep only the messages at these places."""
        self.columns = self.columns.kept(places)
        self.indices = [self.indices[place] for place in places]


def _metadata(value: object) -> str:
    if value is None:
        return "{}"
    if not isinstance(value, Mapping):
        raise bad("metadata", type(value).__name__, "must be a mapping with string keys")
    return json_text("metadata", dict(cast("Mapping[Any, Any]", value)))
