"""The mark of a partition's state: the position to which it belongs. Pure.

1. Each transaction stores a mark beside the state: the position, and the transaction's number. The
   metadata of the position contains the same number.
2. A state whose mark differs from the position is refused: events would be counted twice, or be
   missing. This happens if positions were moved or deleted without the state, if the state was
   emptied, or if one of them was restored from an older copy.
3. Rows or records without any mark, and a position without one in its metadata, are an initial
   state.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from ..._core.source import Position

_METADATA = "sluicegate-state"
COPY = f"{_METADATA} copy"
"""The metadata of a copy of a position, at a source."""

Mismatch = Literal["emptied", "moved", "behind"]
"""How a state and a position differ: the state has no mark although the position was stored with
one; the mark has another position; or it has the number of an earlier transaction.
"""


@dataclass(frozen=True, slots=True)
class StateMark:
    """The position to which a state belongs."""

    group: str
    topic: str
    """The topic of the source."""
    position: int
    number: int
    """Number of the transaction of a partition, starting at 1."""
    content: str = ""
    """The content of the state, in a form that can be compared; empty if it is not checked."""

    def encoded(self) -> str:
        """Encode the mark as text."""
        return json.dumps(asdict(self))

    @classmethod
    def decoded(cls, value: str | bytes) -> StateMark:
        """Decode a mark.

        Raises `ValueError`, `KeyError` or `TypeError` for other values.
        """
        fields = json.loads(value)
        names = ("group", "topic", "position", "number", "content")
        return cls(*[fields[name] for name in names])

    @property
    def metadata(self) -> str:
        """The metadata of its position."""
        return f"{_METADATA} {self.number}"


def is_of_a_state(metadata: str) -> bool:
    """Whether the metadata of a position was stored by a transaction of a state, or copied."""
    return metadata.startswith(_METADATA)


def for_the_source(position: Position) -> Position:
    """Return a position without the metadata of a state, which is not a map of offsets."""
    return Position(position.offset) if is_of_a_state(position.metadata) else position


def mismatch(mark: StateMark | None, position: Position | None) -> Mismatch | None:
    """Return how the state of this mark and a position differ; `None` if they belong together."""
    if mark is None:
        is_stored = position is not None and is_of_a_state(position.metadata)
        return "emptied" if is_stored else None
    if position is None or position.offset != mark.position:
        return "moved"
    if is_of_a_state(position.metadata) and position.metadata != mark.metadata:
        return "behind"
    return None
