"""Leases settled by transactions and by the consumer at the same time, step by step.

White box: the move of a position, which only a transaction makes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from queue_flows import FlowQueue, flow_queue

from sluicegate.consumer import Position
from sluicegate.errors import PositionLost

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sluicegate._core.positions import UnitMove
    from sluicegate.consumer import Settled, SourceClaim, TopicPartition
    from sluicegate.postgres import PostgresQueueSource
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")


class Claim:
    """A claim of one lease."""

    is_closed = False

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition

    def pass_settled(self, offset: int, least: int) -> int:
        del least
        return offset

    def take_settled(self) -> Settled:
        raise AssertionError("positions are committed")


class Host:
    """Begins the claims of a source."""

    room_bytes = 1 << 62

    def __init__(self) -> None:
        self.claims: list[Claim] = []

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> Sequence[SourceClaim]:
        made = [Claim(each) for each in starts]
        self.claims += made
        return made

    async def revoked(
        self, claims: Collection[SourceClaim], within: float
    ) -> Mapping[SourceClaim, Position]:
        raise AssertionError(f"nothing revokes {claims} within {within}")

    def ended(self, claims: Collection[SourceClaim]) -> None:
        for claim in claims:
            assert isinstance(claim, Claim)
            claim.is_closed = True

    def cancelled(self, claim: SourceClaim, offsets: Collection[int]) -> None:
        raise AssertionError(f"nothing cancels {offsets} of {claim}")

    def reported(self, trouble: str | None) -> None:
        assert trouble is None


async def leased(source: PostgresQueueSource, host: Host) -> Claim:
    """The claim of the first lease, once all its records are delivered."""
    while not host.claims:
        await source.fetch([], 10)
    assert await source.fetch(host.claims, 10)
    return host.claims[0]


async def apply(made: FlowQueue, move: UnitMove) -> None:
    """Apply a move in its own transaction."""
    async with made.con.transaction():
        await move.move(made.con)


async def owners(made: FlowQueue) -> list[Any]:
    """The owners of the lanes."""
    return [row["owner"] for row in await made.con.fetch(f"SELECT owner FROM {made.log.sql}.lane")]


async def test_a_lease_whose_rest_is_settled_during_a_commit_is_freed_by_the_next_one(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """Q-T13: the lease must not run out instead, which would delay later jobs of the key."""
    async with flow_queue(embedded_postgres.dsn) as made:
        first, second = await made.enqueue("k", "a", "b")
        source, host = made.source(), Host()
        async with source.open(host):
            claim = await leased(source, host)
            moves = [source.move_to(claim, Position(first + 1))]
            await apply(made, moves[0])
            moves[0].committed()
            moves.append(source.move_to(claim, Position(second + 1)))
            await apply(made, moves[1])
            commit = asyncio.create_task(source.commit({claim: Position(first + 1)}))
            await asyncio.sleep(0)  # the source has decided what to settle
            moves[1].committed()
            assert await commit == [claim]
            assert await source.commit({claim: Position(second + 1)}) == [claim]
            assert claim.is_closed
            assert await owners(made) == []


@pytest.mark.parametrize("key", ["k", None])
async def test_a_move_is_refused_once_its_jobs_are_settled_or_its_lease_has_ended(
    embedded_postgres: EmbeddedPostgres, key: str | None
) -> None:
    """Q-T13: nothing of its transaction is applied."""
    async with flow_queue(embedded_postgres.dsn) as made:
        (place,) = await made.enqueue(key, "a")
        source, host = made.source(), Host()
        async with source.open(host):
            claim = await leased(source, host)
            move, again = (source.move_to(claim, Position(place + 1)) for _ in range(2))
            await apply(made, move)
            with pytest.raises(PositionLost, match="are already settled"):
                await apply(made, again)
            assert await again.is_moved(made.con)
            assert await source.fetch_settled_offset(claim) == place + 1
            move.committed()
            assert await source.commit({claim: Position(place + 1)}) == [claim]
            with pytest.raises(PositionLost, match="has ended"):
                source.move_to(claim, Position(place + 1))
            with pytest.raises(PositionLost, match="has ended"):
                await source.fetch_settled_offset(claim)


async def test_a_job_behind_a_lease_has_no_try_counted_for_it(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """Q-T12: the process dies with a lease whose jobs are all settled."""
    async with flow_queue(embedded_postgres.dsn, max_attempts=1) as made:
        first, second = await made.enqueue("k", "a", "b")
        source, host = made.source(per_key=1), Host()
        async with source.open(host):
            claim = await leased(source, host)
            await apply(made, source.move_to(claim, Position(first + 1)))
            await made.con.execute(f"UPDATE {made.log.sql}.lane SET lease_until = now()")
            await made.flow("rows").run()
            assert await made.places() == [second]
