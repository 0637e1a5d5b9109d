"""Objects shared by the parts of one connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..._core.errors import SluicegateError
from ..._core.text import text_of
from ..client.errors import trouble_of
from .api import RequestRefused

if TYPE_CHECKING:
    from ..._core.clock import Clock
    from ..._core.source import ClaimHost, Troubles
    from ..client.options import NatsOptions
    from .api import StreamApi
    from .channel import Channel
    from .options import ReadOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """One connection of an open source."""

    options: ReadOptions
    connection: NatsOptions
    channel: Channel
    api: StreamApi
    host: ClaimHost
    troubles: Troubles
    clock: Clock

    def trouble(self, error: BaseException) -> str:
        """Describe the cause of a failure, for operators."""
        if not self.channel.is_connected and self.channel.trouble is not None:
            error = self.channel.trouble
        denied = self.channel.denied
        if denied is not None and isinstance(error, TimeoutError):
            return f"{self.connection.place} denies it; {denied.repair}"
        if isinstance(error, (RequestRefused, SluicegateError)):
            return text_of(error)
        return trouble_of(error, self.connection)
