"""The claims of one membership of a group, from assignment to revoke or loss.

1. A claim begins together with aiokafka's position at its stored one, by a seek if it differs. What
   has been taken of the partition before is taken again.
2. The positions of new claims are read by a task of our own, and not while aiokafka waits: an error
   there would only be logged, and the claims never begin.
3. The generation is remembered at the assignment. A commit is one request, and sent only while that
   generation holds; a revoke cancels it. After the end of a generation nothing is committed.
4. A revoke in the generation of the claims waits for the host and commits. In any other one the
   claims are lost already.
5. With a store for positions, a claim begins after the store has taken its partition over, also
   where another claim of the partition replaces one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..._clients.kafka.errors import is_rebalanced, trouble_of
from ..._clients.kafka.session import KafkaError, Session
from ..._clients.kafka_groups.beginnings import Beginnings
from ..._core.clock import LOOP_CLOCK
from ..._core.say import say
from ..._core.source import Position
from ..._core.told import for_log, text_of
from .stored import StoredPositions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ..._clients.kafka.options import MemberOptions
    from ..._clients.kafka_groups.history import History
    from ..._clients.kafka_groups.starts import StartPoint
    from ..._core.source import ClaimHost, PositionStore, SourceClaim, TopicPartition
    from ..troubles import Troubles

logger = logging.getLogger("penstock.sources.kafka")

RETRY_FROM, RETRY_TO = 0.1, 5.0
"""Seconds between tries to read stored positions."""

_NO_POSITION = "no position is stored for %s, and start='committed' asks for one"
_NOT_TAKEN = "the positions of %s cannot be taken over in the destination: %s"
_LAST_FAILED = "%s: the commit of a revoke failed (%s); what it held runs again elsewhere"


class OwnedClaim:
    """A claim, and how far its records have been delivered."""

    __slots__ = ("claim", "told")

    def __init__(self, claim: SourceClaim, start: int) -> None:
        self.claim = claim
        self.told = start

    def tell(self, offset: int) -> None:
        """Note that everything before this offset has been delivered, or has no record."""
        self.told = offset


class Membership:
    """The claims that a session gives, and their commits."""

    def __init__(
        self,
        session: Session,
        host: ClaimHost,
        options: MemberOptions,
        start: StartPoint,
        troubles: Troubles,
        *,
        history: History,
        store: PositionStore | None = None,
    ) -> None:
        self._session = session
        self._stored = StoredPositions(session, options, store)
        self._host = host
        self._options = options
        self._troubles = troubles
        self._history = history
        self._beginnings = Beginnings(session, start, history, group=options.group, logger=logger)
        self._held: dict[TopicPartition, OwnedClaim] = {}
        self._generation = -1
        self._is_closed = False
        self._loading: set[asyncio.Task[None]] = set()
        self._taken: list[TopicPartition] = []
        """The partitions whose positions have been read, or are about to be."""
        self._attempt: asyncio.Task[Collection[TopicPartition]] | None = None

    def owned(self, claim: SourceClaim) -> OwnedClaim | None:
        """What is known of a claim that is held; `None` once it has ended."""
        found = self._held.get(claim.partition)
        return found if found is not None and found.claim is claim else None

    @property
    def is_current(self) -> bool:
        """Whether the generation of the claims still holds."""
        return self._generation > 0 and self._session.generation == self._generation

    # -- assignments -------------------------------------------------------------------------------

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Begin to read the positions of these partitions; their claims begin after that.

        None begins after `close`: a rebalance may end while the client leaves.
        """
        if self._is_closed:
            return
        self._generation = self._session.generation
        self._history.begin([*self._session.partitions(), *partitions])
        self._troubles.note("group", None)
        self._taken = sorted(partitions)
        self._begin_loading(self._taken)

    def _begin_loading(
        self,
        partitions: Collection[TopicPartition],
        moved: Mapping[TopicPartition, Position] | None = None,
    ) -> None:
        """Begin claims in a task, at their stored positions or those that are `moved`."""
        task = asyncio.get_running_loop().create_task(self._load(partitions, moved or {}))
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    async def _load(
        self,
        partitions: Collection[TopicPartition],
        moved: Mapping[TopicPartition, Position],
    ) -> None:
        delay = RETRY_FROM
        missing = list(partitions)
        if not missing:
            self.begin({})  # a member in waiting is ready
        while missing:
            try:
                starts = await self._starts(missing)
            except (KafkaError, TimeoutError) as error:
                trouble = trouble_of(error, self._options)
            except Exception as error:
                if not self._stored.are_elsewhere:
                    raise
                trouble = _NOT_TAKEN % (", ".join(map(str, missing)), text_of(error))
            else:
                self.begin({**starts, **moved})
                missing = [each for each in missing if each not in starts]
                trouble = _NO_POSITION % ", ".join(map(str, missing))
            if missing:
                self._troubles.note("positions", trouble)
                await LOOP_CLOCK.sleep(delay)
                delay = min(RETRY_TO, delay * 2)
        self._troubles.note("positions", None)

    async def _starts(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Position]:
        stored = await self._stored.read(partitions)
        return await self._beginnings.of(partitions, stored, self._send_start)

    async def _send_start(
        self, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        async with asyncio.timeout(self._options.commit_timeout):
            return await self._send(positions)

    def begin(self, starts: Mapping[TopicPartition, Position]) -> None:
        """Begin claims at these positions, unless the generation has ended."""
        if not self.is_current:
            return
        for partition, position in starts.items():
            if self._session.position(partition) != position.offset:
                self._session.seek(partition, position.offset)
            self._troubles.note(str(partition), None)  # of the claim before
        for claim in self._host.assigned(starts):
            self._held[claim.partition] = OwnedClaim(claim, starts[claim.partition].offset)

    async def revoked(self) -> None:
        """Give all partitions up, and commit them if they are still this member's. Never raises."""
        self._stop_loading()
        claims = [each.claim for each in self._held.values()]
        try:
            if claims and self.is_current:
                await self._give_up(claims)
            elif claims:
                self._history.lose(LOOP_CLOCK.now())
        except Exception as error:
            say(logger, logging.WARNING, _LAST_FAILED, self._options.group, for_log(error))
        finally:
            self.end()

    async def _give_up(self, claims: Collection[SourceClaim]) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
        positions = await self._host.revoked(claims, self._options.revoke_within)
        async with asyncio.timeout(self._options.commit_timeout):
            await self._send({claim.partition: at for claim, at in positions.items()})

    def _stop_loading(self) -> None:
        for task in self._loading:
            task.cancel()
        self._troubles.note("positions", None)

    def end(self) -> None:
        """End all claims, and those that were about to begin, without a commit."""
        self._stop_loading()
        claims = [each.claim for each in self._held.values()]
        self._held.clear()
        if claims:
            self._host.ended(claims)
        self._stored.release(self._taken)
        self._taken = []

    def close(self) -> None:
        """End all claims; no other ones begin."""
        self._is_closed = True
        self.end()

    def replace(self, owned: OwnedClaim, start: int) -> None:
        """End a claim whose log has changed under it, and begin another one at `start`."""
        partition = owned.claim.partition
        del self._held[partition]
        self._host.ended([owned.claim])
        moved = {partition: Position(start)}
        if not self._stored.are_elsewhere:
            self.begin(moved)
            return
        self._stored.release([partition])
        self._begin_loading([partition], moved)

    # -- commits -----------------------------------------------------------------------------------

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Store positions in one attempt; return the claims for which that is known.

        None of them after a revoke or a loss. Raises the error of aiokafka, and `TimeoutError`
        without an answer in time.
        """
        held = {claim: at for claim, at in positions.items() if self.owned(claim) is not None}
        sending = self._send({claim.partition: at for claim, at in held.items()})
        attempt = self._attempt = asyncio.get_running_loop().create_task(sending)
        try:
            await asyncio.wait([attempt], timeout=self._options.commit_timeout)
        finally:
            self._attempt = None
            was_answered = attempt.done()
            attempt.cancel()
        if not was_answered:
            seconds = self._options.commit_timeout
            raise TimeoutError(f"the commit was not answered in {seconds:g} s")
        if attempt.cancelled():
            return ()
        if (error := attempt.exception()) is not None:
            if is_rebalanced(error):
                return ()
            raise error
        stored = attempt.result()
        return [
            claim for claim in held if claim.partition in stored and self.owned(claim) is not None
        ]

    async def _send(
        self, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        if not positions or not self.is_current:
            return ()
        stored = await self._stored.store(positions)
        self._history.store({each: positions[each] for each in stored})
        return stored
