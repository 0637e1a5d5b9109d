"""Tests of rebalances: the owner of a partition, its commits and its deliveries."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from ...._core.source import Position
from .subject import ClaimReader, RecordingHost, SourceUnderTest

if TYPE_CHECKING:
    from ...._core.clock import Clock
    from ...._core.source import SourceClaim
    from .subject import HeldClaim

TOLD_WITHIN = 1.0
"""Seconds within which a source ends lost claims while their host drains them, if it does so."""


class ClaimTests(SourceUnderTest):
    """Tests of revoked, lost and returned partitions."""

    async def test_a_revoke_stores_the_hosts_positions_and_then_ends_the_claims(
        self, clock: Clock
    ) -> None:
        """O-T7, consumer/C:R1: the next owner begins at these positions."""
        self.needs("members")
        async with self.in_time(clock):
            topic = await self.filled([10, 10])
            async with self.reading(topic, 2) as giver:
                await giver.settle(dict.fromkeys(giver.host.open, Position(4)))
                giver.host.will_answer(
                    {claim.partition: Position(4, "m") for claim in giver.host.open}
                )
                taken = await self._take(topic, giver)
                assert taken, "the rebalance moved nothing"
                for claim in taken:
                    assert claim.start == self.kept(Position(4, "m"))

    async def test_a_revoke_waits_for_the_host(self, clock: Clock) -> None:
        """consumer/C:R1: no other member gets the partition while the host drains it."""
        self.needs("members")
        async with self.in_time(clock):
            topic = await self.filled([10, 10])
            taker, source = RecordingHost(), self.source(topic)
            async with self.reading(topic, 2) as giver:
                draining: list[HeldClaim] = []

                async def drain() -> None:
                    for _ in range(20):
                        await clock.sleep(0)
                        draining.extend(taker.open)

                giver.host.will_drain(drain)
                async with source.open(taker):
                    await self.rebalance(giver.source, source)
                    await taker.news.wait_for(lambda: taker.open)
                    kept = {claim.partition for claim in giver.host.open}
                    assert not kept & {claim.partition for claim in taker.open}
                assert giver.host.within, "the host was not asked for positions"
                assert draining == []

    async def test_the_other_claims_go_on_in_a_rebalance(self, clock: Clock) -> None:
        """consumer/C:R3: remaining partitions keep their claims and continue to deliver."""
        self.needs("members", "cooperative")
        async with self.in_time(clock):
            topic = await self.filled([6, 6])
            async with self.reading(topic, 2) as giver:
                before = giver.host.open
                await giver.read(before, 4, most=2)
                await self._take(topic, giver)
                kept = [claim for claim in before if not claim.is_closed]
                assert kept, "every claim ended"
                for claim in kept:
                    await giver.read([claim], 6)
                    assert giver.offsets(claim) == list(range(6))

    async def test_a_claim_that_has_moved_is_not_committed(self, clock: Clock) -> None:
        """consumer/C:C3, consumer/C:C6: the other claims of the same commit are committed."""
        self.needs("members", "cooperative")
        async with self.in_time(clock):
            topic = await self.filled([10, 10])
            async with self.reading(topic, 2) as giver:
                before = giver.host.open
                late = dict.fromkeys(before, Position(7))
                for claim in before:
                    await giver.read_up_to(claim, 7)
                await self._take(topic, giver)
                held = {claim for claim in before if not claim.is_closed}
                stored: set[SourceClaim] = {*await giver.commit(late)}
                while not stored >= held:  # a rebalance that has not ended refuses a commit
                    await clock.sleep(0.1)
                    stored |= {*await giver.commit(late)}
                assert stored == held
                assert await self.stored(topic) == {claim.partition: Position(7) for claim in held}

    async def test_a_loss_commits_nothing(self, clock: Clock) -> None:
        """O-T7, consumer/C:R2: no positions are requested from the host, and its claims have
        ended.
        """
        self.needs("loss", "partitions")
        async with self.in_time(clock):
            topic = await self.filled([10])
            async with self.reading(topic, 1) as reader:
                (lost,) = reader.host.open
                reader.host.will_answer({lost.partition: Position(4)})
                await self._lose_all(reader)
                assert lost.is_closed
                assert reader.host.within == []
                assert await self.stored(topic) == {}

    async def test_an_ended_claim_is_not_committed(self, clock: Clock) -> None:
        """O-T8, consumer/C:C3: not even after its partition has returned."""
        self.needs("loss", "partitions")
        async with self.in_time(clock):
            topic = await self.filled([10])
            async with self.reading(topic, 1) as reader:
                (lost,) = reader.host.open
                assert list(await reader.commit({lost: Position(2)})) == [lost]
                (new,) = await self._lose_all(reader)
                assert list(await reader.commit({lost: Position(9)})) == []
                assert await self.position(topic) == Position(2)
                assert list(await reader.commit({lost: Position(9), new: Position(3)})) == [new]
                assert await self.position(topic) == Position(3)

    async def test_a_commit_is_not_stored_after_its_claim_has_ended(self, clock: Clock) -> None:
        """consumer/C:C3: a commit after a loss changes nothing for the next owner."""
        self.needs("loss", "partitions")
        async with self.in_time(clock):
            topic = await self.filled([100])
            async with self.reading(topic, 1) as reader:
                for rounds in range(4):
                    (lost,) = reader.host.open
                    late = Position(lost.start.offset + 5)
                    await reader.settle({lost: late})
                    commit = asyncio.get_running_loop().create_task(
                        reader.source.commit({lost: late})
                    )
                    for _ in range(rounds):
                        await clock.sleep(0)
                    (new,) = await self._lose_all(reader)
                    assert new.start in (lost.start, late)
                    (told,) = await asyncio.gather(commit, return_exceptions=True)
                    if told == [lost]:
                        assert new.start == late
                    assert (await self.position(topic) or Position(0)) == new.start

    async def test_an_older_drain_undoes_no_newer_assignment(self, clock: Clock) -> None:
        """consumer/C:R4: it commits nothing, and ends only the claims that it drains."""
        self.needs("members", "loss")
        async with self.in_time(clock):
            topic, gate = await self.filled([10, 10]), asyncio.Event()
            async with self.reading(topic, 2) as giver:
                host = giver.host
                before = host.open
                host.will_answer({claim.partition: Position(7) for claim in before})
                host.will_drain(gate.wait)
                taker, source = RecordingHost(host.news), self.source(topic)
                async with source.open(taker):
                    rebalance = asyncio.get_running_loop().create_task(
                        self.rebalance(giver.source, source)
                    )
                    await host.news.wait_for(lambda: host.within)
                    await self.lose(giver.source)
                    with suppress(TimeoutError):  # otherwise it reports the loss after the drain
                        async with clock.timeout_at(clock.now() + TOLD_WITHIN):
                            await host.news.wait_for(
                                lambda: all(claim.is_closed for claim in before)
                            )
                    gate.set()
                    await rebalance
                    await host.news.wait_for(lambda: all(claim.is_closed for claim in before))
                    await host.news.wait_for(
                        lambda: (
                            {claim.partition.partition for claim in host.open + taker.open}
                            == {0, 1}
                        )
                    )
                    assert len(host.open + taker.open) == 2
                    newer = [claim for claim in host.claims if claim not in before]
                    assert all(not claim.is_closed or claim in host.asked for claim in newer)
                    if not any(claim in host.asked for claim in newer):
                        assert await self.stored(topic) == {}

    async def test_a_returned_partition_is_delivered_from_its_stored_position(
        self, clock: Clock
    ) -> None:
        """O-T8: only to the new claim, regardless of the deliveries to the old one."""
        self.needs("loss", "partitions")
        async with self.in_time(clock):
            topic = await self.filled([10])
            async with self.reading(topic, 1) as reader:
                (lost,) = reader.host.open
                await reader.read([lost], 6, most=3)
                assert list(await reader.commit({lost: Position(4)})) == [lost]
                (new,) = await self._lose_all(reader)
                assert new is not lost
                assert new.start == Position(4)
                await reader.read([lost, new], 6 + 6)
                assert reader.offsets(new) == list(range(4, 10))

    # -- helpers -----------------------------------------------------------------------------------

    async def _take(self, topic: str, giver: ClaimReader) -> list[HeldClaim]:
        """Let a second member read everything and close; return its records."""
        taker, source = RecordingHost(), self.source(topic)
        before = {claim.partition: claim for claim in giver.host.open}
        async with source.open(taker):
            await self.rebalance(giver.source, source)
            await taker.news.wait_for(lambda: taker.open)
            taken = taker.open
            assert all(before[claim.partition].is_closed for claim in taken)
            reader = ClaimReader(source, taker)
            for claim in taken:
                end = (await source.ends([claim])).get(claim, claim.start.offset)
                await reader.read_up_to(claim, end)
                assert reader.offsets(claim) == list(range(claim.start.offset, end))
        return taken

    async def _lose_all(self, reader: ClaimReader) -> list[HeldClaim]:
        """Lose all claims; return the new claims of the same partitions."""
        before = reader.host.open
        await self.lose(reader.source)
        await reader.host.news.wait_for(
            lambda: (
                all(claim.is_closed for claim in before) and len(reader.host.open) == len(before)
            )
        )
        return reader.host.open
