"""A lock that admits one replay at a time for the letters of an object store.

1. A replay holds a lease: an object that it rewrites every few seconds. A lease that does not
   change for `LEASE` seconds is assumed to belong to a process that has ended, and is taken over.
2. A frozen process may be mistaken for an ended one. So each note has the next number, and is
   stored only if no note has that number or a higher one: of two concurrent replays, one fails
   before it sends a letter. (A purge replaces all notes by one with the next number.)
3. Both need a store that refuses to create an existing object. Some servers ignore that condition
   (`If-None-Match`) and replace the object, so a turn begins with a second attempt to create its own
   lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
from typing import TYPE_CHECKING

from ..._core.errors import SinkError
from ..._core.logs import for_log
from ..._core.values.encoding import to_json
from ...letters.store import StoreError

if TYPE_CHECKING:
    from ..client.folder import ObjectFolder

_log = logging.getLogger("sluicegate.dlq")
LEASE = 15.0
"""Seconds after which an unchanged lease is taken over."""
RENEWED = 3.0
"""Seconds between two renewals of a lease."""
ANSWER_WITHIN = 5.0
"""Timeout in seconds of a request about the lease."""

_KEPT = "%s: the lease of this replay could not be removed (%s); it ends by itself in %g s"


class ReplayTurn:
    """The turn of this process, from `take` to `end`."""

    def __init__(self, folder: ObjectFolder, path: str, *, lease: float = LEASE) -> None:
        self._folder = folder
        self._path = path
        self._lease = lease
        self._renewing: asyncio.Task[None] | None = None
        self._numbers = itertools.count()

    async def take(self) -> None:
        """Take the turn. Suspends for `LEASE` seconds if an earlier replay has not ended its turn.

        Raises `StoreError` if that replay is still running, or if the store cannot exclude replays.
        """
        if not await self._folder.create(self._path, self._content()):
            _log.warning(
                "%s: a replay has not ended its turn; waiting %g s to check whether it is still running",
                self._folder.place,
                self._lease,
            )
            before = await self._folder.tag(self._path)
            await asyncio.sleep(self._lease)
            if before != await self._folder.tag(self._path):
                raise StoreError(
                    f"{self._folder.place}: another replay or purge is running; wait until it ends"
                )
            await self._folder.replace(self._path, self._content())
        elif await self._folder.create(self._path, self._content()):
            await self._folder.remove(self._path)
            raise StoreError(
                f"{self._folder.place}: the server replaces an object that it was asked to create only "
                "if missing (If-None-Match), so concurrent replays cannot be excluded; copy the "
                "objects to a folder, and replay from there"
            )
        self._renewing = asyncio.ensure_future(self._renew())

    async def end(self) -> None:
        """Release the turn. Idempotent."""
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await renewing
            try:
                await self._folder.remove(self._path)
            except SinkError as error:
                _log.warning(_KEPT, self._folder.place, for_log(error), self._lease)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease * RENEWED / LEASE)
            # the next note, which the store then refuses too, reports a failure
            with contextlib.suppress(Exception):
                await self._folder.replace(self._path, self._content())

    def _content(self) -> bytes:
        """Return content that differs each time, so that the object's tag differs too."""
        return to_json(
            {"host": socket.gethostname(), "process": os.getpid(), "count": next(self._numbers)}
        )
