"""Logs the server's advisories about consumers.

If the deliveries of a message are used up, the server no longer delivers it. It is not lost, since
it is still in the stream, but no consumer receives it. This is logged as an error, with its
sequence number.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from ..._core.logs import log_safely

if TYPE_CHECKING:
    from collections.abc import Callable

    from .channel import Channel
    from .options import ReadOptions

logger = logging.getLogger("sluicegate.nats")

_USED_UP = (
    "%s: the consumer %r no longer delivers message %s after %s deliveries, its max_deliver; the "
    "message stays in the stream"
)
_DELETED = "%s: the consumer %r was deleted"


class Advisories:
    """Listens to the advisories about the consumers of one source."""

    def __init__(
        self, options: ReadOptions, channel: Channel, deleted: Callable[[int], None]
    ) -> None:
        self._was_deleted = deleted
        self._options = options
        self._channel = channel
        self._names = {options.consumer(number): number for number in range(options.count)}

    async def listen(self) -> None:
        """Subscribe. Without the permission there are no advisories."""
        prefix, stream = "$JS.EVENT.ADVISORY.CONSUMER", self._options.stream
        await self._channel.subscribe(f"{prefix}.MAX_DELIVERIES.{stream}.*", self._used_up)
        await self._channel.subscribe(f"{prefix}.DELETED.{stream}.*", self._deleted)

    async def _used_up(self, message: Any) -> None:
        told = json.loads(message.data)
        if (name := told.get("consumer")) in self._names:
            sequence, tries = told.get("stream_seq"), told.get("deliveries")
            log_safely(logger, logging.ERROR, _USED_UP, self._options.stream, name, sequence, tries)

    async def _deleted(self, message: Any) -> None:
        name = json.loads(message.data).get("consumer")
        if name in self._names:
            log_safely(logger, logging.WARNING, _DELETED, self._options.stream, name)
            self._was_deleted(self._names[name])
