"""The partitions that this process serves, and how their claims begin and end.

1. Each beginning and each end is a task of its own: a drain takes as long as a handler runs, and the
   other partitions go on meanwhile.
2. A partition that this process leaves is drained, given back, and forgotten. One that it has lost
   begins again at once: the server says what of it is still pending.
3. A consumer that was deleted is made again behind the last settled message, if it may be made here.
   In a stream that was deleted and made again, sequence numbers mean other messages: nothing is known of
   it then, and its consumer begins by `start`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..._core.errors import ConfigError
from ..._core.say import say
from ..._core.told import for_log
from .api import GONE, RequestRefused
from .looks import LOOK_EVERY
from .partition import StreamPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from .api import ConsumerState
    from .puller import News
    from .session import Connected

logger = logging.getLogger("penstock.sources.jetstream")

RETRY = 0.5
"""Seconds before what failed is tried again."""
CANCEL_AGAIN = 0.1
"""Seconds before a task is cancelled again that goes on."""
LOOKS = 5
"""Looks for a consumer that is said to be deleted."""
LEAST_SHARE = 50
"""Messages that are fetched ahead for a partition, at least."""
FOREVER = 1e9
"""Seconds for a drain that only the consumer bounds."""

_GONE = "%s: the consumer %r was deleted; it is made again behind the last settled message"
_SHARED = (
    "other processes read the consumer %r, which pins none of them: the order per key is lost; use one "
    "process, or a consumer that this source makes"
)


class Moves:
    """The partitions of one connection. `told` hears of every message and status of theirs."""

    def __init__(
        self, session: Connected, told: Callable[[StreamPartition, News | None], None]
    ) -> None:
        self._session = session
        self._told = told
        self._partitions: dict[int, StreamPartition] = {}
        self._beginning: set[StreamPartition] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None
        """What has ended a task, and the connection with it."""

    def __iter__(self) -> Iterator[StreamPartition]:
        return iter([*self._partitions.values()])

    def get(self, number: int) -> StreamPartition | None:
        """A partition that is served, or about to be."""
        return self._partitions.get(number)

    # -- tasks -------------------------------------------------------------------------------------

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Run a task until it ends, or `stop`. Its error ends the connection."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure = self.failure or error
            self._session.channel.changed.fire()

    async def stop(self) -> None:
        """Cancel all tasks, and suspend until they have ended: again, if the client has swallowed it
        (`asyncio.wait_for` of Python 3.11 does when an answer arrives in the same moment).
        """
        tasks = {*self._tasks}
        while tasks:
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=CANCEL_AGAIN)

    # -- beginnings --------------------------------------------------------------------------------

    def serve(self, wanted: set[int]) -> None:
        """Serve these partitions and no others, once their claims have drained."""
        for partition in self:
            if partition.number not in wanted and not partition.is_leaving:
                self.start(self.leave(partition, FOREVER))
        for number in sorted(wanted - self._partitions.keys()):
            partition = self._partitions[number] = StreamPartition(
                number, self._session, self._told
            )
            self.start(self._begin(partition))

    async def _begin(self, partition: StreamPartition) -> None:
        """Begin a claim, unless that is under way; tries again for as long as it takes. Raises
        `ConfigError`.
        """
        if partition in self._beginning:
            return
        self._beginning.add(partition)
        try:
            await self._begin_once(partition)
        finally:
            self._beginning.discard(partition)

    async def _begin_once(self, partition: StreamPartition) -> None:
        troubles, is_first = self._session.troubles, partition.puller is None
        while (state := await self._begun(partition)) is None:
            await self._session.clock.sleep(RETRY)
        is_shared = is_first and state.group is None and state.pulls > 0
        troubles.note(partition.name, _SHARED % partition.name if is_shared else None)
        self._share()
        self._told(partition, "")

    async def _begun(self, partition: StreamPartition) -> ConsumerState | None:
        try:
            return await partition.begin()
        except ConfigError:
            raise
        except Exception as error:  # told, and tried again
            self._session.troubles.note(partition.name, self._session.trouble(error))
            return None

    def _share(self) -> None:
        share = self._session.options.prefetch // max(1, len(self._partitions))
        for partition in self:
            if partition.puller is not None:
                partition.puller.window.share(max(LEAST_SHARE, share))

    # -- ends --------------------------------------------------------------------------------------

    async def leave(self, partition: StreamPartition, within: float) -> None:
        """Drain the claim of a partition, and give back what is left."""
        partition.begin_leaving()
        try:
            await partition.drain(within)
            await partition.give_back()
        except Exception as error:  # what was held comes again after the wait
            say(logger, logging.INFO, "%s: not given back (%s)", partition.name, for_log(error))
        finally:
            partition.end()
            self._partitions.pop(partition.number, None)
            self._session.troubles.note(partition.name, None)
            self._share()

    def lose(self, partition: StreamPartition) -> None:
        """End a claim whose messages may be elsewhere, and begin another one."""
        partition.lose()
        self.start(self._begin(partition))

    def lose_all(self) -> None:
        """End all claims: the connection is gone."""
        for partition in self:
            partition.lose()
        self._partitions.clear()

    # -- what goes wrong with one ------------------------------------------------------------------

    def begin_again(self, partition: StreamPartition) -> None:
        """Drain a claim, and begin another one with what is held; no effect while it drains."""
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
        """A consumer is said to be deleted: look, and make it again; no effect while it drains."""
        partition = self.get(number)
        if partition is not None and partition.claim is not None and not partition.is_leaving:
            partition.begin_leaving()
            self.start(self._remake(partition))

    async def _remake(self, partition: StreamPartition) -> None:
        try:
            if await self._is_deleted(partition):
                stream = self._session.options.stream
                say(logger, logging.ERROR, _GONE, stream, partition.name)
                partition.lose()
                await self._begin(partition)
        finally:
            partition.stay()
            self._told(partition, "")

    async def _is_deleted(self, partition: StreamPartition) -> bool:
        """Whether the server has no such consumer any more: it says so a moment before."""
        for _ in range(LOOKS):
            try:
                if not await partition.is_back():
                    return True
            except RequestRefused as error:
                return error.code in GONE
            except ConfigError:
                raise
            except Exception:  # the next status tells it again
                return False
            await self._session.clock.sleep(LOOK_EVERY)
        return False
