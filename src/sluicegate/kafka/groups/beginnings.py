"""Where the claims of a session begin: at their stored positions, or at the start point.

1. A moving start point (the end) is stored before its claim begins, so that records after it are
   delivered even after a crash before the first commit.
2. A partition that was created while the source was open begins at its beginning instead.
3. The disappearance of a stored position is reported as an error.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..._core.logs import log_safely
from ..._core.source import Position

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from ..._core.source import TopicPartition
    from .history import History
    from .starts import Offsets, StartPoint

_FORGOTTEN = (
    "%s: %s: its stored position, %d when it was last known, has been deleted, perhaps with its "
    "topic: records after it may be lost; it begins at %d (start=%s)"
)


class Beginnings:
    """Determines where claims begin."""

    def __init__(
        self,
        client: Offsets,
        start: StartPoint,
        history: History,
        *,
        group: str,
        logger: logging.Logger,
    ) -> None:
        self._client = client
        self._start = start
        self._history = history
        self._group = group
        self._logger = logger

    async def of(
        self,
        partitions: Collection[TopicPartition],
        stored: Mapping[TopicPartition, Position],
        store: Callable[[Mapping[TopicPartition, Position]], Awaitable[Collection[TopicPartition]]],
    ) -> dict[TopicPartition, Position]:
        """Return the start positions of partitions that have one.

        Raises errors of the client and of `store`, which stores positions and returns the
        partitions that are known to be stored.
        """
        found = await self._begun([each for each in partitions if each not in stored])
        forgotten = self._history.forgotten(found)
        known = dict(stored)
        if self._start.moves:
            known |= {each: found[each] for each in await store(found)}
        for each, was in forgotten.items():
            told = (each, was, found[each].offset, self._start)
            log_safely(self._logger, logging.ERROR, _FORGOTTEN, self._group, *told)
        starts = {**stored, **found}
        self._history.store(known)
        return {each: starts[each] for each in partitions if each in starts}

    async def _begun(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Position]:
        """Return the start of partitions without a stored position."""
        appeared = self._start.moves and [
            each for each in partitions if self._history.has_appeared(each)
        ]
        offsets = await self._client.beginnings(appeared) if appeared else {}
        rest = [each for each in partitions if each not in offsets]
        offsets |= await self._start.offsets(self._client, rest)
        return {each: Position(offset) for each, offset in offsets.items()}
