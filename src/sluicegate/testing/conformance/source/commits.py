"""Tests of stored positions: stored unchanged, and correctly reported."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from ...._core.source import Position
from .delivery import ROUNDS
from .host import RecordingHost
from .subject import SourceUnderTest

if TYPE_CHECKING:
    from collections.abc import Collection

    from ...._core.clock import Clock
    from ...._core.source import SourceClaim

MAP = "a1~0AZ^}{|"
"""A text with the characters of an offset map."""
TOO_LARGE = "x" * 100_000
"""Metadata that is too large for almost every broker."""


class CommitTests(SourceUnderTest):
    """Tests of the positions that a source stores."""

    async def test_a_commit_is_stored_with_its_map(self, clock: Clock) -> None:
        """The next assignment begins with the record at the position."""
        async with self.in_time(clock):
            topic = await self.filled([10, 10])
            async with self.reading(topic, 2) as reader:
                wanted = {
                    claim: Position(3 + claim.partition.partition, MAP)
                    for claim in reader.host.open
                }
                assert {*await reader.commit(wanted)} == {*wanted}
                stored = await self.stored(topic)
                assert stored == {
                    claim.partition: self.kept(position) for claim, position in wanted.items()
                }
            async with self.reading(topic, 2) as reader:
                for claim in reader.host.open:
                    start = 3 + claim.partition.partition
                    assert claim.start == self.kept(Position(start, MAP))
                    await reader.read([claim], 10 - start)
                    assert reader.offsets(claim) == list(range(start, 10))

    async def test_a_position_without_a_map_clears_the_last_one(self, clock: Clock) -> None:
        """The newest position replaces the stored one as a whole."""
        async with self.in_time(clock):
            topic = await self.filled([10])
            async with self.reading(topic, 1) as reader:
                (claim,) = reader.host.open
                for position in (Position(2, MAP), Position(5)):
                    assert list(await reader.commit({claim: position})) == [claim]
                    assert await self.position(topic) == self.kept(position)

    async def test_the_answer_of_a_commit_is_true(self, clock: Clock) -> None:
        """consumer/C:C6: positions reported as stored are stored, also if the commit fails."""
        self.needs("metadata")
        async with self.in_time(clock):
            topic = await self.filled([10, 10])
            async with self.reading(topic, 2) as reader:
                wanted = dict.fromkeys(reader.host.open, Position(4))
                refused = reader.host.open[0]
                wanted[refused] = Position(4, TOO_LARGE)
                told: Collection[SourceClaim] = ()
                with suppress(Exception):  # a failed commit may raise
                    told = await reader.commit(wanted)
                stored = await self.stored(topic)
                for claim in wanted.keys() & {*told}:
                    assert stored.get(claim.partition) == wanted[claim], (
                        f"{claim!r} was reported as stored"
                    )
                newer = dict.fromkeys(wanted, Position(5))
                assert {*await reader.commit(newer)} == {*newer}

    async def test_a_cancelled_commit_leaves_the_source_usable(self, clock: Clock) -> None:
        """The cancelled commit may be stored; a later one is stored, once the server has ended it."""
        async with self.in_time(clock):
            topic = await self.filled([100])
            async with self.reading(topic, 1) as reader:
                (claim,) = reader.host.open
                for at, rounds in enumerate(ROUNDS):
                    await reader.settle({claim: Position(2 * at + 1)})
                    commit = asyncio.get_running_loop().create_task(
                        reader.source.commit({claim: Position(2 * at + 1)})
                    )
                    for _ in range(rounds):
                        await clock.sleep(0)
                    commit.cancel()
                    with suppress(asyncio.CancelledError):
                        await commit
                    while not await reader.commit({claim: Position(2 * at + 2)}):
                        await clock.sleep(0.01)  # the server still executes the cancelled one
                    assert await self.position(topic) == Position(2 * at + 2)

    async def test_closing_ends_the_claims_and_commits_nothing(self, clock: Clock) -> None:
        """Records that the host has not committed are delivered again."""
        async with self.in_time(clock):
            topic = await self.filled([5])
            async with self.reading(topic, 1) as reader:
                await reader.read(reader.host.open, 5)
            assert reader.host.open == []
            assert await self.stored(topic) == {}
            async with self.reading(topic, 1) as reader:
                await reader.read(reader.host.open, 5)

    async def test_an_error_within_closes_the_source(self, clock: Clock) -> None:
        """The error propagates, and the claims have ended."""
        async with self.in_time(clock):
            topic = await self.filled([5])
            host, source = RecordingHost(), self.source(topic)
            with pytest.raises(ZeroDivisionError):
                async with source.open(host):
                    await self.claimed(source, host, 1)
                    raise ZeroDivisionError
            assert host.open == []
