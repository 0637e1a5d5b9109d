"""An open source of files: the calls of the consumer, and the background tasks.

1. `_run` looks for files, enters new ones in the catalog, claims files for this process, and
   finishes settled ones. An error of the provider is reported as a trouble, and the round is
   repeated. The next fetch raises an error that repetition cannot resolve.
2. `_keep` extends the locks independently, and `_watch` ends the claims if they were not extended
   in time.
3. A file that cannot be read is reported by name, and the other files continue. A source that ends
   raises `UnreadFiles` for it at its end; other sources try again when the file has changed.
4. The source is over when a scan finds nothing to read, and every file was delivered here or
   finished by other processes. `_run` then ends; commits settle the delivered rows.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from ..._core.clock import wait_until
from ..._core.errors import ConfigError, MissingExtra
from ..._core.logs import for_log, log_safely
from ..._core.runtime.threads import in_thread
from ..._core.source import Fetched
from ..._core.subscriptions import CountsMembers, SubscriptionLocks
from ..._core.text import text_of
from .catalog import FileCatalog, look_at
from .holding import FileHolder, logger
from .readers import UnreadFiles, list_reasons

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

    from ..._core.clock import Clock
    from ..._core.source import ClaimHost, Position, SourceClaim, Troubles
    from ..._core.subscriptions import SubscriptionState
    from .holding import HeldFile
    from .options import FileOptions


RETRY_TO = 5.0
"""The longest delay in seconds between attempts after an error."""
REVOKE_WITHIN = 30.0
"""Seconds to drain a claim when its file is released; the consumer's `drain` if it is shorter."""

_FAILED = "%s: looking for files failed (%s); it will be repeated"
_NO_FILES = 'no file matches {}{}: name a directory, a file or a pattern such as "events/*.ndjson"'
_HELD = (
    "other processes hold the remaining files, or died, and their locks have not expired yet: {}"
)


class OpenFiles:
    """The subscription of one process while its source is open."""

    def __init__(
        self,
        options: FileOptions,
        state: SubscriptionState,
        host: ClaimHost,
        clock: Clock,
        troubles: Troubles,
    ) -> None:
        self._options = options
        self._root = root = options.files.root
        self._locks = locks = state if isinstance(state, SubscriptionLocks) else None
        self._host = host
        self._troubles = troubles
        self._clock = clock
        self._catalog = FileCatalog(options.subscription, state)
        self._holder = FileHolder(options, root, self._catalog, locks=locks, host=host, clock=clock)
        self._refused: dict[str, str] = {}
        self._giving_up: set[asyncio.Task[None]] = set()
        self._look_at = -math.inf
        self._is_over = False
        self._failure: Exception | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Read within the context; at exit, end the claims and release their locks.

        Raises the errors of the first scan.
        """
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._look()
            await self._balance()
            tasks += [loop.create_task(each) for each in (self._run(), self._keep(), self._watch())]
            yield
        finally:
            tasks += self._giving_up
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            await self._holder.close()

    # -- the tasks ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._host.assigned({})  # without a file the member waits, and is ready
        clock, poll = self._clock, self._options.poll
        delay = poll
        while not self._is_over:
            heard = self._holder.wake.count
            try:
                await self._round()
                self._troubles.note("look", None)
                delay = poll
            except (ConfigError, MissingExtra) as error:
                self._failure = error
                self._troubles.note("look", text_of(error))
                break
            except Exception as error:
                told = _FAILED % (self._options.subscription, for_log(error))
                log_safely(logger, logging.DEBUG, "%s", told, error=error)
                self._troubles.note("look", told)
                delay = min(RETRY_TO, 2 * delay)
            if self._holder.wake.count == heard and not self._is_over:
                await wait_until(clock, clock.now() + delay, self._holder.wake)
        self._holder.stand_in()
        self._holder.news.fire()

    async def _round(self) -> None:
        await self._holder.finish()
        await self._holder.tidy()
        was_exhausted = self._is_exhausted()
        if was_exhausted or self._clock.now() >= self._look_at:
            await self._look()
        await self._balance()
        self._note_troubles()
        if self._options.ends and was_exhausted and self._is_exhausted():
            await self._holder.finish()  # files whose end was found during this round
            self._is_over = True

    def _is_exhausted(self) -> bool:
        """Whether no known row remains to be delivered, by this process or others."""
        held = {each.entry for each in self._holder.all if each.reading.is_over}
        return all(
            entry.is_finished or entry.trouble is not None or entry in held
            for entry in self._catalog.entries.values()
        )

    async def _look(self) -> None:
        """Look for files, enter new ones, and read the progress of other processes."""
        options, catalog = self._options, self._catalog
        await catalog.load()
        await catalog.refresh()
        entries = [*catalog.entries.values()]
        seen = await in_thread(look_at, options, self._root, entries)
        await catalog.enter(seen.new)
        self._refused = seen.refused
        for entry in entries:
            if not entry.is_held:
                entry.look(seen.looks.get(entry.path), seen.troubles.get(entry.path))
        if not catalog.entries and options.ends:
            raise ConfigError(self._nothing())
        self._look_at = self._clock.now() + options.poll

    async def _balance(self) -> None:
        """Claim this process's share of the files, and release excess ones."""
        entries = [each for each in self._catalog.entries.values() if not each.is_finished]
        readable = sorted((e for e in entries if e.trouble is None), key=lambda e: e.path)
        share = len(readable)
        if isinstance(self._locks, CountsMembers):
            members = await self._locks.members(self._options.subscription)
            share = math.ceil(share / members)
        most = min(share, self._options.files_at_once)
        held = [each for each in self._holder.all if not each.reading.is_over]
        if len(held) > most and not self._giving_up:
            for each in sorted(held, key=lambda each: each.entry.path)[most:]:
                self._give_up(each)
        free = [entry for entry in readable if not entry.is_held]
        await self._holder.claim(free, most - len(self._holder.all))
        waiting = {} if self._holder.all else {entry.path: "held" for entry in free}
        told = _HELD.format(list_reasons(waiting)) if waiting else None
        self._troubles.note("locks", told)

    def _give_up(self, held: HeldFile) -> None:
        giving_up = self._holder.give_up(held, REVOKE_WITHIN)
        task = asyncio.get_running_loop().create_task(giving_up)
        self._giving_up.add(task)
        task.add_done_callback(self._giving_up.discard)

    def _note_troubles(self) -> None:
        unread = self._unread()
        told = f"cannot be read: {list_reasons(unread)}" if unread else None
        self._troubles.note("files", told if self._catalog.entries else self._nothing())

    def _nothing(self) -> str:
        """Return the reason why there is no file."""
        why = f" ({list_reasons(self._refused)})" if self._refused else ""
        return _NO_FILES.format(self._options.files, why)

    def _unread(self) -> dict[str, str]:
        troubles = {
            entry.path: entry.trouble
            for entry in self._catalog.entries.values()
            if entry.trouble is not None
        }
        return {**self._refused, **troubles}

    async def _keep(self) -> None:
        every = None if self._locks is None else self._locks.keep_every
        while every is not None:
            await self._clock.sleep(every)
            with suppress(Exception):  # `_watch` ends the claims if no other attempt succeeds
                await self._holder.keep()

    async def _watch(self) -> None:
        clock, every = self._clock, None if self._locks is None else self._locks.keep_every
        while every is not None:
            until = self._holder.kept_until
            await wait_until(clock, until if until > clock.now() else clock.now() + every)
            self._holder.lose_unkept()

    # -- the calls of the consumer -----------------------------------------------------------------

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched] | None:
        """Deliver rows of these claims; `None` at the end of a source that ends."""
        while True:
            if self._failure is not None:
                raise self._failure
            if found := self._deliver(claims, most):
                return found
            if self._is_over:
                if unread := self._unread():
                    raise UnreadFiles(unread)
                return None
            await wait_until(self._clock, math.inf, self._holder.news)

    def _deliver(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
        found: list[Fetched] = []
        for held in self._holder.among(claims):
            taken = held.reading.take(most) if most > 0 else None
            if taken is not None:
                found.append(Fetched(held.claim, *taken))
                most -= len(taken[0])
            held.reading.fill()
        return found

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> list[SourceClaim]:
        """Store the positions of open claims."""
        return await self._holder.commit(positions)

    def ends(self, claims: Collection[SourceClaim]) -> dict[SourceClaim, int]:
        """Return the numbers of rows that are known."""
        rows = {held.claim: held.reading.rows for held in self._holder.among(claims)}
        return {claim: count for claim, count in rows.items() if count is not None}
