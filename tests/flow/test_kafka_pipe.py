"""Pipes in real groups: committed rows were written, and no write begins for a lost partition."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from kafka_piping import (
    Applied,
    PipeMember,
    Trouble,
    TruthSink,
    kafka_source,
    keyed_batcher,
    pipe_member,
)
from tests.kafka.source.kafka_help import fill, lose, new_name, new_topic, stored
from tests.kafka.source.proxy_help import Api, proxied
from tests.kafka.source.storm_help import run

from sluicegate import RetryPolicy
from sluicegate.consumer import Commits, Position, TopicPartition

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.testing import EmbeddedKafka

PARTITIONS = 6
QUICKLY = RetryPolicy(attempts=100, backoff=lambda tries, error=None, waited=0.0: 0.02)


@pytest.mark.long
def test_members_that_join_and_leave_write_each_row_once_and_in_order(
    broker: EmbeddedKafka,
) -> None:
    """Writes at the destination end within the drain; the rows behind them are withdrawn.
    consumer/C:N12, consumer/C:C5, consumer/C:R1, consumer/C:R4.
    """
    run(_churn(broker, random.Random(0), "join join leave", records=600))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_members_that_join_and_leave_for_long_write_each_row_once(
    broker: EmbeddedKafka, seed: int
) -> None:
    """As above, with more records and changes."""
    changes = "join join leave join leave leave join join leave join leave"
    run(_churn(broker, random.Random(seed), changes, records=3_000), seconds=170)


@pytest.mark.long
def test_members_whose_writes_fail_repeat_only_rows_of_unknown_outcome(
    broker: EmbeddedKafka,
) -> None:
    """A fifth of the writes are refused, cut off, or lose their answers. consumer/C:C5,
    consumer/C:R1, consumer/C:R4.
    """
    run(_churn(broker, random.Random(2), "join join leave", records=600, troubles=0.2))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_members_whose_writes_fail_for_long_repeat_only_rows_of_unknown_outcome(
    broker: EmbeddedKafka, seed: int
) -> None:
    """As above, with more records and changes."""
    changes = "join join leave join leave leave join join leave join leave"
    chance = random.Random(seed)
    run(_churn(broker, chance, changes, records=3_000, troubles=0.3), seconds=170)


async def _churn(
    broker: EmbeddedKafka,
    chance: random.Random,
    changes: str,
    *,
    records: int,
    troubles: float = 0.0,
) -> None:
    """Change the members of a group while each has a waiting write and rows behind it, or, if these
    fill its batcher, rows that wait for capacity.
    """
    most = chance.choice([60, 10_000])
    topic, group, truth = await new_topic(broker, PARTITIONS), new_name("group"), Applied()
    stage, withdrawn = _Stage(truth, chance), 0

    def trouble() -> Trouble:
        kinds: list[Trouble] = ["refused", "cut off", "answer lost"]
        return chance.choice(kinds) if chance.random() < troubles else None

    async with AsyncExitStack() as stack:
        members: list[PipeMember] = []

        async def join() -> None:
            proxy = await stack.enter_async_context(proxied(broker, truth.check))
            name = f"m{stage.number}"
            sink = TruthSink(truth, name, stage.before(name), trouble)
            options = {
                "name": name,
                "commits": Commits(every=0.02),
                "retry": QUICKLY,
                "in_flight": 400,
            }
            source = kafka_source(topic, group, proxy.bootstrap)
            batcher = keyed_batcher(sink, max_pending_items=most)
            entered = pipe_member(source, batcher, sink.watch, **options)
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
                assert report.complete or troubles
                assert report.batcher.tally.lost == 0
                withdrawn += report.batcher.tally.withdrawn
            for each in members:
                await each.watch.owns(PARTITIONS // len(members))
            total = stage.number * PARTITIONS * (records // PARTITIONS)
            await truth.have_finished(total)
        for each in members:
            withdrawn += (await each.stop()).batcher.tally.withdrawn
    assert withdrawn, "no row was in a batcher when its partition was revoked"
    assert truth.repeated <= truth.doubtful
    assert bool(truth.doubtful) == bool(troubles)
    assert truth.late_starts == []
    assert truth.untrue == []
    assert truth.commits > len(changes.split())
    truth.assert_in_order()
    end = stage.number * (records // PARTITIONS)
    if not troubles:  # otherwise an applied row may be repeated
        assert {at.offset for at in (await stored(broker, group)).values()} == {end}


class _Stage:
    """One change of the members, and the events that writes wait for during it."""

    def __init__(self, truth: Applied, chance: random.Random) -> None:
        self._truth = truth
        self._chance = chance
        self.number = 0
        self.waiting: set[str] = set()
        self.in_time = asyncio.Event()

    def begin(self) -> None:
        """Begin the next stage: one write of each member waits."""
        self.number += 1
        self.waiting = set()
        self.in_time = asyncio.Event()

    def before(self, name: str) -> Any:
        """Let the writes of a member wait."""

        async def before(batch: Batch[Any]) -> None:
            if name not in self.waiting and not self.in_time.is_set():
                self.waiting.add(name)
                self._truth.news.tell()
                await self.in_time.wait()
            for _ in range(self._chance.randrange(30)):
                await asyncio.sleep(0)

        return before


def test_a_write_that_outlasts_the_drain_repeats_only_its_own_rows(broker: EmbeddedKafka) -> None:
    """The next owner begins with these rows. No row behind them begins at the old owner, and a key
    that stays there waits for the write. consumer/C:R1, consumer/C:C5.
    """

    async def scenario() -> None:
        topic, group, truth = await new_topic(broker, 2), new_name("group"), Applied()
        slow, is_slow = asyncio.Event(), asyncio.Event()
        held: set[tuple[int, int]] = set()

        async def before(batch: Batch[Any]) -> None:
            new = {row.partition for row in batch if row.offset >= 20} - {at[0] for at in held}
            if not new:
                return
            held.update((row.partition, row.offset) for row in batch)
            if {at[0] for at in held} == {0, 1}:
                is_slow.set()
            await slow.wait()

        async def at_once(batch: Batch[Any]) -> None:
            pass

        sinks = [TruthSink(truth, "old", before), TruthSink(truth, "new", at_once)]
        async with AsyncExitStack() as stack:

            async def member(sink: TruthSink) -> PipeMember:
                proxy = await stack.enter_async_context(proxied(broker, truth.check))
                source = kafka_source(topic, group, proxy.bootstrap)
                entered = pipe_member(source, keyed_batcher(sink), sink.watch, drain=0.3)
                return await stack.enter_async_context(entered)

            old = await member(sinks[0])
            await old.watch.owns(2)
            for partition in (0, 1):
                await fill(broker, topic, 100, partition=partition, keys=5)
            await is_slow.wait()
            new = await member(sinks[1])
            await new.watch.owns(1)
            await old.watch.owns(1)
            (lost,) = [partition.partition for partition in new.watch.owned]
            await new.watch.stored(100, lost)
            assert {at for at in held if at[0] == lost} <= set(truth.order)
            assert not {at for at in held if at[0] != lost} & set(truth.order)
            slow.set()
            await truth.have_finished(200)
            await old.watch.stored(100, 1 - lost)
            reports = [await each.stop() for each in (old, new)]
        assert truth.repeated == held
        assert truth.late_starts == []
        assert truth.untrue == []
        truth.assert_in_order()
        for report in reports:
            report.batcher.verify()
        at = await stored(broker, group)
        assert {partition.partition: position for partition, position in at.items()} == {
            0: Position(100),
            1: Position(100),
        }

    run(scenario())


def test_rows_of_a_lost_partition_are_neither_begun_nor_committed(broker: EmbeddedKafka) -> None:
    """The group removes the member while a write is in flight and other rows wait.
    consumer/C:R2.
    """

    async def scenario() -> None:
        topic, group, truth = await new_topic(broker), new_name("group"), Applied()
        client = new_name("client")
        slow, is_slow = asyncio.Event(), asyncio.Event()
        begun: list[int] = []
        held: list[int] = []

        async def before(batch: Batch[Any]) -> None:
            if sink.watch.count("lost"):
                begun.extend(row.offset for row in batch)
            if not held and any(row.offset >= 40 for row in batch):
                held.extend(row.offset for row in batch)
                is_slow.set()
                await slow.wait()

        sink = TruthSink(truth, "only", before)
        async with proxied(broker, truth.check) as proxy:
            source = kafka_source(topic, group, proxy.bootstrap, client_id=client)
            batcher = keyed_batcher(sink, workers=1)
            async with pipe_member(source, batcher, sink.watch) as member:
                await fill(broker, topic, 200, keys=5)
                await is_slow.wait()
                await member.watch.stored(held[0])
                lost = member.watch.told("lost")
                await lose(broker, group, source, client)
                await lost
                commits = truth.commits
                slow.set()
                await truth.news.until(lambda: truth.finished[0, held[0]])
                assert truth.commits == commits
                assert begun == []
                await member.watch.stored(200)
                assert (await member.stop()).batcher.tally.withdrawn > 0
        assert truth.repeated == {(0, offset) for offset in held}
        assert truth.late_starts == []
        assert truth.untrue == []
        truth.assert_in_order()
        assert (await stored(broker, group))[TopicPartition(topic, 0)] == Position(200)

    run(scenario())


@pytest.mark.long
def test_a_joining_member_whose_connections_are_cut_during_a_drain_repeats_nothing(
    broker: EmbeddedKafka,
) -> None:
    """It joins again each time: the drain in progress undoes nothing of the newer assignment.
    consumer/C:R4, consumer/C:N12.
    """

    async def scenario() -> None:
        topic, group, truth = await new_topic(broker, 2), new_name("group"), Applied()
        slow, is_slow = asyncio.Event(), asyncio.Event()

        async def before(batch: Batch[Any]) -> None:
            if any(row.offset == 25 for row in batch) and not slow.is_set():
                is_slow.set()
                await slow.wait()

        sinks = [TruthSink(truth, name, before) for name in ("old", "new")]
        times: dict[str, Any] = {"request_timeout": 1.0, "rebalance_timeout": 30.0}
        async with proxied(broker, truth.check) as one, proxied(broker, truth.check) as other:
            first = kafka_source(topic, group, one.bootstrap, **times)
            async with pipe_member(first, keyed_batcher(sinks[0]), sinks[0].watch, drain=14) as old:
                await old.watch.owns(2)
                for partition in (0, 1):
                    await fill(broker, topic, 50, partition=partition)
                await is_slow.wait()
                second = kafka_source(topic, group, other.bootstrap, **times)
                async with pipe_member(second, keyed_batcher(sinks[1]), sinks[1].watch) as new:
                    await old.watch.told("revoked")
                    for joins in (2, 3, 4):
                        await other.heard(Api.JOIN, "request", joins)
                        other.cut()
                    slow.set()
                    await new.watch.owns(1)
                    await old.watch.owns(1)
                    for partition in (0, 1):
                        await fill(broker, topic, 10, partition=partition)
                    ours, theirs = ([at.partition for at in m.watch.owned] for m in (old, new))
                    await old.watch.stored(60, ours[0])
                    await new.watch.stored(60, theirs[0])
        assert len(truth.order) == 120
        assert truth.repeated == set()
        assert truth.late_starts == []
        assert truth.untrue == []
        truth.assert_in_order()

    run(scenario())
