"""The part of a log that a subscription reads, as seen by a source. Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...._core.subscriptions import SLOTS
from ...client.names import literal
from ..messages.selection import StreamSelection

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST_TOPIC = 200
"""The longest topic in characters; a longer one is shortened and ends in a digest."""


@dataclass(frozen=True, slots=True)
class SelectedLog:
    """The log of a schema, and the streams to read from it."""

    schema: str
    streams: StreamSelection

    @property
    def text(self) -> str:
        """The selection in the form that a subscription stores."""
        return self.streams.text

    @property
    def slots(self) -> Sequence[int]:
        """The slots that can have messages of these streams."""
        names = self.streams.streams
        if names and not any("*" in name for name in names):
            return sorted({slot_of(name) for name in names})
        return range(SLOTS)

    @property
    def condition(self) -> str:
        """The SQL condition for these messages, of the table `m`. It contains the names as
        literals, so that the server can plan for them: a rare category is read by index.
        """
        values = self.streams.parameters

        def filled(found: re.Match[str]) -> str:
            texts = [*map(literal, values[int(found[2]) - 1])]
            return f"{found[1]} {texts[0]}" if len(texts) == 1 else _any(found[1], texts)

        places = [f"${number}" for number in range(1, len(values) + 1)]
        return re.sub(r"(=|LIKE) ANY\(\$(\d+)\)", filled, self.streams.condition("m", places))

    @property
    def topic(self) -> str:
        """The topic of the records: the schema and the selection."""
        if self.streams == StreamSelection():
            return self.schema
        full = f"{self.schema}:{self.streams.category or ','.join(self.streams.streams)}"
        if len(full) <= LONGEST_TOPIC:
            return full
        digest = hashlib.sha256(full.encode()).hexdigest()[:16]
        return f"{full[: LONGEST_TOPIC - 17]}:{digest}"

    def __str__(self) -> str:
        return str(self.streams)


def slot_of(stream: str) -> int:
    """Return the slot of a stream, as the log computes it."""
    return hashlib.sha256(stream.encode()).digest()[0]


def _any(operator: str, texts: Sequence[str]) -> str:
    return f"{operator} ANY(ARRAY[{', '.join(texts)}])"
