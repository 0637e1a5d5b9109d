"""The content of a state in Kafka, in a form that can be compared: the number of entries, and the
sum of their checksums. Pure.

A transaction's mark contains it, and a restore compares it with the records that it has read. So
records that were deleted, lost or written by another program are detected.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from ..._core.clock import LOOP_CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ...flow.state.changes import Stored

SLICE = 20_000
"""Number of entries that are added without yielding to the event loop."""
_BITS = (1 << 64) - 1


class StateContent(NamedTuple):
    """The content of a partition's state."""

    entries: int = 0
    checksum: int = 0

    def after(
        self, replaced: Mapping[str, Stored | None], changes: Mapping[str, Stored | None]
    ) -> StateContent:
        """Return the content after these changes of these values; `None` is a missing entry."""
        return self.without(replaced.items()).plus(changes.items())

    def plus(self, entries: Iterable[tuple[str, Stored | None]]) -> StateContent:
        """Return the content with more entries."""
        found = [_checksum(key, value) for key, value in entries if value is not None]
        return StateContent(self.entries + len(found), (self.checksum + sum(found)) & _BITS)

    def without(self, entries: Iterable[tuple[str, Stored | None]]) -> StateContent:
        """Return the content without some entries."""
        found = [_checksum(key, value) for key, value in entries if value is not None]
        return StateContent(self.entries - len(found), (self.checksum - sum(found)) & _BITS)

    def __str__(self) -> str:
        return f"{self.entries} entries with the checksum {self.checksum:x}"


async def content_of(entries: Mapping[str, Stored]) -> StateContent:
    """Return the content of all entries. Suspends between slices of a large state."""
    content, rest = StateContent(), iter(entries.items())
    while part := [*islice(rest, SLICE)]:
        content = content.plus(part)
        await LOOP_CLOCK.sleep(0)
    return content


def _checksum(key: str, value: Stored) -> int:
    encoded = value if isinstance(value, bytes) else value.encode()
    return crc32(encoded, crc32(f"{key}\0".encode()))
