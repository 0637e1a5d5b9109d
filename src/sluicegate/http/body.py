"""Records joined to request bodies of limited size: an oversized record fails alone.

1. A *join* turns records into a body. Only the length of the joined body is compared with the limit.
2. Records keep their order, within a body and from one body to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .._core.errors import PermanentError
from .._core.values.encoding import item_error

JoinBodies = Callable[[Sequence[bytes]], "bytes"]
"""Joins encoded items into the body of a request."""


def json_array(records: Sequence[bytes]) -> bytes:
    """One JSON array."""
    return b"[" + b",".join(records) + b"]"


@dataclass(frozen=True, slots=True)
class Body:
    """One request's body; `places` are the positions of its records in the batch."""

    places: range
    content: bytes


@dataclass(frozen=True, slots=True)
class Bodies:
    """The bodies of a batch's records, in order, and an error for the place of each oversized one."""

    bodies: list[Body] = field(default_factory=list[Body])
    refused: dict[int, PermanentError] = field(default_factory=dict[int, PermanentError])


def bodies(
    records: Sequence[bytes], join: JoinBodies, most: int | None, places: range | None = None
) -> Bodies:
    """Pack the records at `places` (default: all) into bodies of at most `most` bytes. Does not
    suspend.

    A record that is too long by itself, or for which `join` raises, is refused alone.
    """
    made = Bodies()
    _fill(made, records, join, most, range(len(records)) if places is None else places)
    return made


def _fill(
    made: Bodies, records: Sequence[bytes], join: JoinBodies, most: int | None, places: range
) -> None:
    if not places:
        return
    error: PermanentError | None = None
    content = b""
    try:
        content = bytes(join(records[places.start : places.stop]))
    except Exception as cause:
        error = item_error("cannot be put into a body", cause)
    else:
        if most is None or len(content) <= most:
            made.bodies.append(Body(places, content))
            return
    if len(places) == 1:
        made.refused[places.start] = error or _too_long(len(content), most)
        return
    for part in _parts(records, most, places):
        _fill(made, records, join, most, part)


def halves(places: range) -> tuple[range, range]:
    """The two halves of an oversized body."""
    middle = len(places) // 2
    return places[:middle], places[middle:]


def around(places: range, at: int) -> list[range]:
    """The records before one record of a body, that record, and those after it."""
    return [part for part in (places[:at], places[at : at + 1], places[at + 1 :]) if part]


def _parts(records: Sequence[bytes], most: int | None, places: range) -> Sequence[range]:
    """Split by the records' lengths and one byte between them; any further overhead of a join shows
    in the joined body.
    """
    parts: list[range] = []
    first, length = places.start, 0
    for place in places:
        more = len(records[place]) + 1
        if most is not None and length + more > most and place > first:
            parts.append(range(first, place))
            first, length = place, 0
        length += more
    parts.append(range(first, places.stop))
    return parts if len(parts) > 1 else halves(places)


def _too_long(length: int, most: int | None) -> PermanentError:
    return PermanentError(
        f"the item alone results in a body of {length} bytes, more than max_bytes={most}"
    )
