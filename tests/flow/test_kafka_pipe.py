"""Pipes of real groups: what is committed was written, and nothing of a lost partition is begun."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from kafka_piping import (
    Applied,
    PipeMember,
    TruthSink,
    kafka_source,
    keyed_batcher,
    pipe_member,
)
from tests.sources.kafka.kafka_help import fill, lose, new_name, new_topic, stored
from tests.sources.kafka.proxy_help import Api, proxied
from tests.sources.kafka.storm_help import run

from penstock.sources import Position, TopicPartition

if TYPE_CHECKING:
    from penstock import Batch
    from penstock.testing import EmbeddedKafka

PARTITIONS = 6


def test_members_that_join_and_leave_write_each_row_once_and_in_order(
    broker: EmbeddedKafka,
) -> None:
    """Writes that are at the destination end within the drain; the rows behind them are taken back.
    consumer/C:N12, C5, R1, R4.
    """
    run(_churn(broker, random.Random(1), "join join leave", records=600))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_members_that_join_and_leave_for_long_write_each_row_once(
    broker: EmbeddedKafka, seed: int
) -> None:
    """As above, with more records and changes."""
    changes = "join join leave join leave leave join join leave join leave"
    run(_churn(broker, random.Random(seed), changes, records=3_000), seconds=170)


async def _churn(
    broker: EmbeddedKafka, chance: random.Random, changes: str, *, records: int
) -> None:
    """Change the members of a group while each has a write that waits, and rows behind it."""
    topic, group, truth = await new_topic(broker, PARTITIONS), new_name("group"), Applied()
    stage, withdrawn = _Stage(truth, chance), 0
    async with AsyncExitStack() as stack:
        members: list[PipeMember] = []

        async def join() -> None:
            proxy = await stack.enter_async_context(proxied(broker, truth.check))
            name = f"m{stage.number}"
            sink = TruthSink(truth, name, stage.before(name))
            options = {"name": name, "commit_every": 0.02}
            source = kafka_source(topic, group, proxy.bootstrap)
            entered = pipe_member(source, keyed_batcher(sink), sink.watch, **options)
            members.append(await stack.enter_async_context(entered))

        await join()
        await members[0].watch.owns(PARTITIONS)
        for change in changes.split():
            stage.begin()
            for partition in range(PARTITIONS):
                await fill(broker, topic, records // PARTITIONS, partition=partition, keys=10)
            await truth.news.until(lambda: len(stage.waiting) == len(members))
            if change == "join":
                told = [each.watch.told("revoked") for each in members]
                await join()
                await asyncio.gather(*told)
                stage.in_time.set()
            else:
                leaving = members.pop(chance.randrange(len(members)))
                asyncio.get_running_loop().call_soon(stage.in_time.set)
                report = await leaving.stop()
                assert report.complete
                withdrawn += report.batcher.withdrawn
            for each in members:
                await each.watch.owns(PARTITIONS // len(members))
            total = stage.number * PARTITIONS * (records // PARTITIONS)
            await truth.have_finished(total)
        for each in members:
            withdrawn += (await each.stop()).batcher.withdrawn
    assert withdrawn, "no row was in a batcher when its partition was revoked"
    assert truth.repeated == set()
    assert truth.late_starts == []
    assert truth.untrue == []
    assert truth.commits > len(changes.split())
    truth.assert_in_order()
    end = stage.number * (records // PARTITIONS)
    assert {at.offset for at in (await stored(broker, group)).values()} == {end}


class _Stage:
    """One change of the members, and what writes wait for in it."""

    def __init__(self, truth: Applied, chance: random.Random) -> None:
        self._truth = truth
        self._chance = chance
        self.number = 0
        self.waiting: set[str] = set()
        self.in_time = asyncio.Event()

    def begin(self) -> None:
        """Begin the next one: one write of each member waits."""
        self.number += 1
        self.waiting = set()
        self.in_time = asyncio.Event()

    def before(self, name: str) -> Any:
        """What the writes of a member wait for."""

        async def before(batch: Batch[Any]) -> None:
            if name not in self.waiting and not self.in_time.is_set():
                self.waiting.add(name)
                self._truth.news.tell()
                await self.in_time.wait()
            for _ in range(self._chance.randrange(30)):
                await asyncio.sleep(0)

        return before
