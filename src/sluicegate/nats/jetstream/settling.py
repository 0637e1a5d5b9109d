"""Sends acknowledgements, either together or each with a response of the server.

Acknowledgements that could not be sent are sent with the next ones, unless all held messages were
lost in the meantime.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .channel import Channel

AT_ONCE = 250
"""The most acknowledgements that wait for their responses concurrently."""


class Settling:
    """The acknowledgements of one connection."""

    def __init__(self, channel: Channel, *, double: bool) -> None:
        self._channel = channel
        self._double = double
        self._owed: dict[str, bytes] = {}

    async def send(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Send these acknowledgements and the unsent ones; suspend until the server has received
        them.

        Raises errors of the client; then all of them remain unsent.
        """
        self._owed.update(messages)
        sent = dict(self._owed)
        if not sent:
            return
        if self._double:
            await self._confirmed([*sent.items()])
        else:
            await self._channel.send(sent.items())
        for reply in sent:
            self._owed.pop(reply, None)

    async def _confirmed(self, messages: Sequence[tuple[str, bytes]]) -> None:
        request = self._channel.request
        for at in range(0, len(messages), AT_ONCE):
            some = messages[at : at + AT_ONCE]
            await asyncio.gather(*[request(reply, payload) for reply, payload in some])

    def forget(self) -> None:
        """Drop the unsent acknowledgements, since the held messages were lost."""
        self._owed.clear()
