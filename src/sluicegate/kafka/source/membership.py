"""The claims of one membership of a group, from assignment to revoke or loss.

1. When a claim begins, aiokafka's position is set to the stored one, by a seek if they differ.
   Records taken from the partition before are taken again.
2. A separate task reads the positions of new claims, not a callback of aiokafka: an error there
   would only be logged, and the claims would never begin.
3. The generation is recorded at the assignment. A commit is one request, and is sent only in that
   generation; a revoke cancels it. After the end of a generation nothing is committed.
4. A revoke in the generation of the claims waits for the host and commits. In any other generation
   the claims are already lost.
5. With a position store, a claim begins after the store has taken over its partition, also if it
   replaces another claim of that partition.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..._core.clock import LOOP_CLOCK
from ..._core.logs import for_log, log_safely, named
from ..._core.source import Position
from ..._core.text import text_of
from ..client.errors import is_rebalanced, trouble_of
from ..client.session import KafkaError, Session
from ..groups.beginnings import Beginnings
from .stored import StoredPositions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ..._core.source import ClaimHost, PositionStore, SourceClaim, TopicPartition, Troubles
    from ..client.options import MemberOptions
    from ..groups.history import History
    from ..groups.starts import StartPoint

logger = logging.getLogger("sluicegate.kafka")

RETRY_FROM, RETRY_TO = 0.1, 5.0
"""The shortest and the longest delay in seconds between attempts to read stored positions."""

_NO_POSITION = "no position is stored for %s, and start='committed' requires one"
_NOT_TAKEN = "the positions of %s cannot be taken over in the destination: %s"
_LAST_FAILED = (
    "%s: the commit of a revoke failed (%s); its uncommitted messages run again elsewhere"
)


class OwnedClaim:
    """A claim, and the offset up to which its records have been delivered."""

    __slots__ = ("claim", "told")

    def __init__(self, claim: SourceClaim, start: int) -> None:
        self.claim = claim
        self.told = start

    def tell(self, offset: int) -> None:
        """Record that all offsets before this one were delivered or have no record."""
        self.told = offset


class Membership:
    """The claims of a session, and their commits."""

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
        """The partitions whose positions have been or are being read."""
        self._attempt: asyncio.Task[Collection[TopicPartition]] | None = None

    def owned(self, claim: SourceClaim) -> OwnedClaim | None:
        """Return the state of an open claim; `None` once it has ended."""
        found = self._held.get(claim.partition)
        return found if found is not None and found.claim is claim else None

    @property
    def is_current(self) -> bool:
        """Whether the generation of the claims is still current."""
        return self._generation > 0 and self._session.generation == self._generation

    # -- assignments -------------------------------------------------------------------------------

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Begin to read the positions of these partitions; their claims begin afterwards.

        No claim begins after `close`: a rebalance may complete while the client leaves.
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
        """Begin claims in a task, at their stored positions or at the `moved` ones."""
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
            self.begin({})  # a member without partitions is ready
        while missing:
            try:
                starts = await self._starts(missing)
            except (KafkaError, TimeoutError) as error:
                trouble = trouble_of(error, self._options)
            except Exception as error:
                if not self._stored.are_elsewhere:
                    raise
                trouble = _NOT_TAKEN % (named(missing), text_of(error))
            else:
                self.begin({**starts, **moved})
                missing = [each for each in missing if each not in starts]
                trouble = _NO_POSITION % named(missing)
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
            self._troubles.note(str(partition), None)  # a trouble of the previous claim
        for claim in self._host.assigned(starts):
            self._held[claim.partition] = OwnedClaim(claim, starts[claim.partition].offset)

    async def revoked(self) -> None:
        """Release all partitions, and commit them if this member still owns them. Never raises."""
        self._stop_loading()
        claims = [each.claim for each in self._held.values()]
        try:
            if claims and self.is_current:
                await self._give_up(claims)
            elif claims:
                self._history.lose(LOOP_CLOCK.now())
        except Exception as error:
            log_safely(logger, logging.WARNING, _LAST_FAILED, self._options.group, for_log(error))
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
        """End all claims, including those that were about to begin, without a commit."""
        self._stop_loading()
        claims = [each.claim for each in self._held.values()]
        self._held.clear()
        if claims:
            self._host.ended(claims)
        self._stored.release(self._taken)
        self._taken = []

    def close(self) -> None:
        """End all claims, and begin no more."""
        self._is_closed = True
        self.end()

    def replace(self, owned: OwnedClaim, start: int) -> None:
        """Replace a claim whose log has changed by another one that begins at `start`."""
        partition = owned.claim.partition
        self._end_one(owned)
        moved = {partition: Position(start)}
        if self._stored.are_elsewhere:
            self._begin_loading([partition], moved)
        else:
            self.begin(moved)

    def renew(self, claim: SourceClaim) -> None:
        """Replace an open claim of this generation by another one at the stored position."""
        if (owned := self.owned(claim)) is not None and self.is_current:
            self._end_one(owned)
            self._begin_loading([claim.partition])

    def _end_one(self, owned: OwnedClaim) -> None:
        partition = owned.claim.partition
        del self._held[partition]
        self._host.ended([owned.claim])
        self._stored.release([partition])

    # -- commits -----------------------------------------------------------------------------------

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Store positions in one attempt; return the claims whose positions are known to be stored.

        Stores nothing after a revoke or a loss. Raises the error of aiokafka, and `TimeoutError` if
        there is no answer in time.
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
