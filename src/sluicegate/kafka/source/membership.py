"""The claims of one membership of a group, from assignment to revoke or loss, and their stored
positions.

1. When a claim begins, aiokafka's position is set to the stored one, by a seek if they differ.
   Records taken from the partition before are taken again.
2. A separate task reads the positions of new claims, not an aiokafka callback: an error there
   would only be logged, and the claims would never begin.
3. The generation is recorded at the assignment. A commit is one request, and is sent only in that
   generation; a revoke cancels it. After the end of a generation nothing is committed.
4. A revoke in the generation of the claims waits for the host and commits. In any other generation
   the claims are already lost.
5. With a position store, a claim begins after the store has taken over its partition, even if it
   replaces another claim of that partition. Its positions take precedence over the group's offsets,
   which may be from a consumer without a store, or copies.
6. With a store the group's offsets are copies, for tools that show the lag. A failed copy is only
   logged. A store that keeps its positions as the group's offsets has no copies: a late copy could
   move them back.
7. A store with state marks the copies. It gets the offsets of partitions without a position,
   and refuses a marked one: the store was emptied, or is another one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..._core.clock import LOOP_CLOCK
from ..._core.errors import ConfigError
from ..._core.logs import for_log, log_safely, named
from ..._core.source import Position
from ..._core.text import text_of
from ..client.errors import is_rebalanced, reason_of
from ..client.session import KafkaError, Session
from ..groups import LAST_FAILED, NO_POSITION, RETRY_FROM, RETRY_TO, Beginnings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ..._core.source import ClaimHost, PositionStore, SourceClaim, TopicPartition, Troubles
    from ..arguments import StartPoint
    from ..client.options import MemberOptions
    from ..client.session import Session
    from ..groups import History

logger = logging.getLogger("sluicegate.kafka")

_NOT_TAKEN = "the positions of %s cannot be taken over in the destination: %s"
_OTHERS = (
    "the group %r has different offsets of %s at the source (%s) and at the destination (%s): both "
    "have to be on one cluster"
)
_NO_COPY = (
    "%s: the destination has the position %d of %s, but the group has none: if the topic was deleted and "
    "created again, its records before this position are not read. To read them, delete the position "
    "in the destination"
)
_NOT_COPIED = "%s: positions are stored, but not copied to the group's offsets (%s)"


class OwnedClaim:
    """A claim, and the offset up to which its records have been delivered."""

    __slots__ = ("claim", "next_offset", "stored")

    def __init__(self, claim: SourceClaim, start: int) -> None:
        self.claim = claim
        self.next_offset = start
        """All offsets before this one were delivered or have no record."""
        self.stored: Position | None = None
        """The last position that is known to be stored, if this claim has stored one."""

    def advance(self, offset: int) -> None:
        """Record that all offsets before this one were delivered or have no record."""
        self.next_offset = offset

    def mark_stored(self, position: Position) -> None:
        """Record that a position is stored."""
        self.stored = position


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
        self._beginnings = Beginnings(session, start, history, group=options.group)
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

    def on_assigned(self, partitions: Collection[TopicPartition]) -> None:
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
                reason = reason_of(error, self._options)
            except Exception as error:
                if not self._stored.are_elsewhere:
                    raise
                reason = _NOT_TAKEN % (named(missing), text_of(error))
            else:
                self.begin({**starts, **moved})
                missing = [each for each in missing if each not in starts]
                reason = NO_POSITION % named(missing)
            if missing:
                self._troubles.note("positions", reason)
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
            self._troubles.note(str(partition), None)  # a reason of the previous claim
        for claim in self._host.assigned(starts):
            self._held[claim.partition] = OwnedClaim(claim, starts[claim.partition].offset)

    async def on_revoked(self) -> None:
        """Release all partitions, and commit them if this member still owns them. Never raises."""
        self._stop_loading()
        claims = [each.claim for each in self._held.values()]
        try:
            if claims and self.is_current:
                await self._give_up(claims)
            elif claims:
                self._history.lose(LOOP_CLOCK.now())
        except Exception as error:
            log_safely(logger, logging.WARNING, LAST_FAILED, self._options.group, for_log(error))
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
        ended = [*self._held.values()]
        self._held.clear()
        if ended:
            self._remember(ended)
            self._host.ended([each.claim for each in ended])
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
        self._remember([owned])
        self._host.ended([owned.claim])
        self._stored.release([partition])

    def _remember(self, ended: Iterable[OwnedClaim]) -> None:
        """Keep the stored positions of these claims, for a later claim that finds none."""
        self._history.store(
            {each.claim.partition: each.stored for each in ended if each.stored is not None}
        )

    # -- commits -----------------------------------------------------------------------------------

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Store positions in one attempt; return the claims whose positions are known to be stored.

        Stores nothing after a revoke or a loss. Raises the aiokafka error, and `TimeoutError` if
        there is no response in time.
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
        stored = set(attempt.result())
        return [
            claim for claim in held if claim.partition in stored and self.owned(claim) is not None
        ]

    async def _send(
        self, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        if not positions or not self.is_current:
            return ()
        stored = await self._stored.store(positions)
        for partition in stored:
            if (owned := self._held.get(partition)) is not None:
                owned.mark_stored(positions[partition])
        return stored


class StoredPositions:
    """The stored positions of one session."""

    def __init__(
        self, session: Session, options: MemberOptions, store: PositionStore | None
    ) -> None:
        self._session = session
        self._options = options
        self._store = store

    @property
    def are_elsewhere(self) -> bool:
        """Whether the positions are in a store."""
        return self._store is not None

    async def read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """Take over these partitions, and return the stored positions of those that have one.

        Raises the errors of aiokafka and of the store, `TimeoutError`, and `ConfigError` for a
        store on another cluster.
        """
        taken = {} if self._store is None else dict(await self._store.take(partitions))
        async with asyncio.timeout(self._options.commit_timeout):
            committed = await self._session.committed(partitions)
        if self._store is None:
            return committed
        if self._store.keeps_group_offsets:
            self._check_same(committed, taken)
            return committed | taken
        for each, at in taken.items():
            if each not in committed and at.offset:
                told = (self._options.group, at.offset, each)
                log_safely(logger, logging.WARNING, _NO_COPY, *told)
        others = {each: at for each, at in committed.items() if each not in taken}
        self._store.begins_at_offsets(others)
        marked = self._store.copy_metadata
        return taken | {each: _strip(at, marked) for each, at in others.items()}

    def _check_same(
        self,
        committed: Mapping[TopicPartition, Position],
        taken: Mapping[TopicPartition, Position],
    ) -> None:
        """Raise `ConfigError` if the store sees other offsets of the group than the source."""
        for each in committed.keys() | taken.keys():
            here, there = committed.get(each), taken.get(each)
            if _offset(here) != _offset(there):
                raise ConfigError(_OTHERS % (self._options.group, each, _at(here), _at(there)))

    async def store(
        self, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        """Store positions; return those known to be stored. Raises the errors of `read`."""
        if self._store is None:
            await self._session.commit(positions)
            return list(positions)
        stored = await self._store.store(positions)
        if stored and not self._store.keeps_group_offsets:
            await self._copy({each: positions[each] for each in stored}, self._store.copy_metadata)
        return stored

    async def _copy(self, positions: Mapping[TopicPartition, Position], metadata: str) -> None:
        copies = {
            each: Position(at.offset, metadata or at.metadata) for each, at in positions.items()
        }
        try:
            await self._session.commit(copies)
        except KafkaError as error:
            log_safely(logger, logging.DEBUG, _NOT_COPIED, self._options.group, for_log(error))

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Release these partitions."""
        if self._store is not None and partitions:
            self._store.release(partitions)


def _strip(position: Position, metadata: str) -> Position:
    """Return a position without this metadata, which is not a map of offsets."""
    return Position(position.offset) if position.metadata == metadata else position


def _offset(position: Position | None) -> int | None:
    return None if position is None else position.offset


def _at(position: Position | None) -> str:
    return "none" if position is None else str(position.offset)
