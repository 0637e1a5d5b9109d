"""The partitions of this process, and the beginnings and ends of their claims.

1. Each beginning and each end runs in its own task: a drain takes as long as a handler, while the
   other partitions continue.
2. A partition that this process leaves is drained, given back, and dropped. A lost partition
   begins again immediately: the server reports which messages are still pending.
3. A deleted consumer is created again after the last settled message, if creating is permitted. In
   a stream that was deleted and created again, sequence numbers denote other messages: its consumer
   begins according to `start`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..._core.clock import LOOP_CLOCK
from ..._core.errors import ConfigError
from ..._core.logs import for_log, log_safely
from .channel import GONE, RequestRefused
from .partition import CHECK_EVERY, StreamPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from .channel import ConsumerState, StreamSession
    from .puller import News

logger = logging.getLogger("sluicegate.nats")

RETRY = 0.5
"""Delay in seconds before a retry."""
CANCEL_AGAIN = 0.1
"""Seconds before a task that is still running is cancelled again."""
LOOKS = 5
"""Number of checks for a consumer that was reported as deleted."""
REMOVED_WITHIN = 0.1
"""Delay in seconds before a deleted consumer is created again.

The server reports a deletion before it removes the consumer's files. A consumer created in between
takes over their older state, or loses its files: with NATS 2.15, 4 of 1,500 consumers that were
created without this delay repeated acknowledged messages, and none of 1,500 created 5 ms later.
"""
LEAST_SHARE = 50
"""The smallest prefetch per partition, in messages."""
FOREVER = 1e9
"""Seconds for a drain that is bounded only by the consumer."""

_GONE = "%s: the consumer %r was deleted; it is created again after the last settled message"
_SHARED = (
    "other processes read the consumer %r, which does not pin one of them: the order per key is lost; use "
    "one process, or a consumer created by this source"
)


class Moves:
    """The partitions of one connection. `notify` is called for each of their messages and statuses."""

    def __init__(
        self, session: StreamSession, notify: Callable[[StreamPartition, News | None], None]
    ) -> None:
        self._session = session
        self._notify = notify
        self._partitions: dict[int, StreamPartition] = {}
        self._beginning: dict[StreamPartition, asyncio.Event] = {}
        """The partitions whose claims begin, with the ends of that."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None
        """The error that has ended a task, and with it the connection."""

    def __iter__(self) -> Iterator[StreamPartition]:
        return iter([*self._partitions.values()])

    def get(self, number: int) -> StreamPartition | None:
        """Return a partition that is served, or about to be."""
        return self._partitions.get(number)

    # -- tasks -------------------------------------------------------------------------------------

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Run a task until it ends, or until `stop`. Its error ends the connection."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure = self.failure or error
            self._session.channel.changed.fire()

    async def stop(self) -> None:
        """Cancel all tasks, and suspend until they have ended.

        The cancellation is repeated if the client swallows it (as `asyncio.wait_for` in Python 3.11
        does when a response arrives at the same moment).
        """
        tasks = {*self._tasks}
        while tasks:
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=CANCEL_AGAIN)

    # -- beginnings --------------------------------------------------------------------------------

    def serve(self, wanted: set[int]) -> None:
        """Serve exactly these partitions, once the claims of the others have drained."""
        for partition in self:
            if partition.number not in wanted and not partition.is_leaving:
                self.start(self.leave(partition, FOREVER))
        for number in sorted(wanted - self._partitions.keys()):
            partition = self._partitions[number] = StreamPartition(
                number, self._session, self._notify
            )
            self.start(self._begin(partition))

    async def _begin(self, partition: StreamPartition) -> None:
        """Begin a claim, unless this is in progress; retry until the partition is left. Raises
        `ConfigError`.
        """
        if partition in self._beginning:
            return
        ended = self._beginning[partition] = asyncio.Event()
        try:
            await self._begin_once(partition)
        finally:
            del self._beginning[partition]
            ended.set()

    async def _begin_once(self, partition: StreamPartition) -> None:
        troubles, is_first = self._session.troubles, partition.puller is None
        state: ConsumerState | None = None
        while state is None and not partition.is_left:
            state = await self._try_begin(partition)
            if state is None:
                await LOOP_CLOCK.sleep(RETRY)
        if state is None or partition.is_left:
            return
        is_shared = is_first and state.group is None and state.pulls > 0
        troubles.note(partition.name, _SHARED % partition.name if is_shared else None)
        self._share()
        self._notify(partition, "")

    async def _try_begin(self, partition: StreamPartition) -> ConsumerState | None:
        try:
            return await partition.begin()
        except ConfigError:
            raise
        except Exception as error:  # reported, and tried again
            self._session.troubles.note(partition.name, self._session.reason(error))
            return None

    def _share(self) -> None:
        among = max(1, len(self._partitions))
        prefetch = max(LEAST_SHARE, self._session.options.prefetch // among)
        for partition in self:
            partition.share(prefetch, among)

    # -- ends --------------------------------------------------------------------------------------

    async def leave(self, partition: StreamPartition, within: float) -> None:
        """Drain the claim of a partition, and give back the remaining messages. Waits for a claim
        that is being begun.
        """
        partition.leave()
        if (begun := self._beginning.get(partition)) is not None:
            await begun.wait()
        try:
            await partition.drain(within)
            await partition.give_back()
        except Exception as error:  # held messages are redelivered after the wait
            log_safely(
                logger, logging.INFO, "%s: not given back (%s)", partition.name, for_log(error)
            )
        finally:
            partition.end()
            self._partitions.pop(partition.number, None)
            self._session.troubles.note(partition.name, None)
            self._share()

    def lose(self, partition: StreamPartition) -> None:
        """End a claim whose messages may be delivered elsewhere, and begin another one."""
        partition.lose()
        self.start(self._begin(partition))

    def lose_all(self) -> None:
        """End all claims, since the connection is lost."""
        for partition in self:
            partition.lose()
        self._partitions.clear()

    # -- failures of a partition -------------------------------------------------------------------

    def begin_again(self, partition: StreamPartition) -> None:
        """Drain a claim, and begin another one with the held messages; no effect during a drain."""
        if not partition.is_leaving:
            partition.begin_leaving()
            self.start(self._again(partition))

    async def _again(self, partition: StreamPartition) -> None:
        try:
            await partition.drain(FOREVER)
            partition.restart()
            await self._begin(partition)
        finally:
            partition.stay()

    def deleted(self, number: int) -> None:
        """Recreate a consumer that was reported as deleted, after a check; no effect in a drain."""
        partition = self.get(number)
        if partition is not None and partition.claim is not None and not partition.is_leaving:
            partition.begin_leaving()
            self.start(self._remake(partition))

    async def _remake(self, partition: StreamPartition) -> None:
        try:
            if await self._is_deleted(partition):
                stream = self._session.options.stream
                log_safely(logger, logging.ERROR, _GONE, stream, partition.name)
                partition.lose()
                await LOOP_CLOCK.sleep(REMOVED_WITHIN)
                await self._begin(partition)
        finally:
            partition.stay()
            self._notify(partition, "")

    async def _is_deleted(self, partition: StreamPartition) -> bool:
        """Whether the consumer no longer exists. The report may precede the deletion."""
        for _ in range(LOOKS):
            try:
                if not await partition.is_back():
                    return True
            except RequestRefused as error:
                return error.code in GONE
            except ConfigError:
                raise
            except Exception:  # the next status reports it again
                return False
            await LOOP_CLOCK.sleep(CHECK_EVERY)
        return False
