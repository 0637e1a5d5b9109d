"""Processes that share a stream: they join, leave, are killed, and stand by. White box: the group's intervals."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from typing import TYPE_CHECKING

import pytest
from tests.nats.jetstream.audit_help import Audited, Member, audited
from tests.nats.jetstream.dense_help import partition_of
from tests.nats.jetstream.local_help import running
from tests.nats.jetstream.streams_help import new_stream

from sluicegate.nats.jetstream.group import ANNOUNCE_EVERY, SILENT_AFTER

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import EmbeddedNats

pytestmark = pytest.mark.usefixtures("real_clock")

PARTITIONS = 8
KEYS = [f"k{number}" for number in range(40)]
WAIT = 1.0
SLACK = 1.0
"""Seconds on a busy machine."""
WORK = 0.1


def is_balanced(made: Audited, members: list[Member]) -> bool:
    """Whether these members have all partitions once, with numbers that differ by at most one."""
    held = made.held_by()
    shares = [held.get(member.name, set()) for member in members]
    counts = [len(share) for share in shares]
    return (
        {*range(PARTITIONS)} == set().union(*shares)
        and sum(counts) == PARTITIONS
        and max(counts) - min(counts) <= 1
    )


async def balanced(made: Audited, members: list[Member]) -> None:
    await made.until(lambda: is_balanced(made, members))


def partition(key: str) -> int:
    return partition_of(key.rpartition(".")[2], PARTITIONS)


def longest_gap(made: Audited, number: int, since: float, until: float) -> float:
    """The longest time between finished handlers of a partition."""
    ends = [
        each.at
        for each in made.lines
        if each.what == "done" and since <= each.at <= until and partition(each.key) == number
    ]
    moments = [since, *ends, until]
    return max(after - before for before, after in itertools.pairwise(moments))


async def flow(made: Audited, stopped: asyncio.Event) -> None:
    """Publish slightly faster than messages are handled, until the event is set."""
    chance = random.Random(5)
    while not stopped.is_set():
        await made.stream.publish(chance.choice(KEYS), "")
        await asyncio.sleep(0.002)


@pytest.mark.long
async def test_members_that_join_and_leave_cleanly_repeat_nothing_and_stop_no_other_partition(
    own: EmbeddedNats, tmp_path: Path
) -> None:
    """consumer/C:N9, consumer/C:R1, consumer/C:R3: three members, under load."""
    async with audited(own, tmp_path, PARTITIONS) as made:
        options = {"work": WORK, "concurrency": 40, "max_in_flight": 80}
        members = [await made.member(**options) for _ in range(2)]
        await balanced(made, members)
        enough = asyncio.Event()
        producing = asyncio.create_task(flow(made, enough))
        await made.until_done(200)
        for change in ("join", "leave", "join", "leave"):
            before, since = made.held_by(), time.monotonic()
            if change == "join":
                members.append(await made.member(**options))
            else:
                await members.pop(0).stop()
            await balanced(made, members)
            await made.until_done(len(made.done()) + 150)
            after, until = made.held_by(), time.monotonic()
            for member in members:
                for stayed in before.get(member.name, set()) & after[member.name]:
                    gap = longest_gap(made, stayed, since, until)
                    assert gap < WAIT, f"partition {stayed} stood for {gap} s at a {change}"
        enough.set()
        await producing
        await made.until_done(len(made.stream.stored))
        await made.stream.until_unsettled(0)
        for member in members:
            await member.stop()
        made.assert_exact()
        made.assert_one_at_a_time()
        assert made.repeats() == 0


@pytest.mark.long
async def test_the_partitions_of_a_killed_member_are_taken_over(
    own: EmbeddedNats, tmp_path: Path
) -> None:
    """consumer/C:N9: once the others miss it, and no later than after the wait."""
    async with audited(own, tmp_path, PARTITIONS) as made:
        members = [await made.member(concurrency=len(KEYS)) for _ in range(3)]
        await balanced(made, members)
        victim = members.pop()
        lost = made.held_by()[victim.name]
        await made.stream.produce(KEYS, "hold")
        await made.until(lambda: len({*made.sequences("began")}) == len(KEYS))
        since = time.monotonic()
        await victim.kill()
        for member in members:
            member.open_gate()
        await balanced(made, members)
        await made.until_done(len(KEYS))
        taken = time.monotonic() - since
        assert taken < WAIT + SILENT_AFTER + ANNOUNCE_EVERY + SLACK
        await made.stream.until_unsettled(0)
        for member in members:
            await member.stop()
        made.assert_exact()
        made.assert_one_at_a_time()
        assert made.repeats() == 0
        assert lost == {partition(each.key) for each in made.lines if each.member == victim.name}


@pytest.mark.long
async def test_of_two_processes_with_one_consumer_one_works_and_the_other_takes_over(
    own: EmbeddedNats, tmp_path: Path
) -> None:
    """consumer/C:C7: without partitions; after a kill, and at once after a drain."""
    async with audited(own, tmp_path) as made:
        first = await made.member()
        await made.until(lambda: len(made.ready) == 1)
        await made.stream.produce(KEYS)
        await made.until_done(len(KEYS))
        second = await made.member()
        await made.until(lambda: len(made.ready) == 2)
        await made.stream.produce(KEYS)
        await made.until_done(2 * len(KEYS))
        assert {each.member for each in made.lines} == {first.name}
        since = time.monotonic()
        await first.kill()
        await made.stream.produce(KEYS)
        await made.until_done(3 * len(KEYS))
        assert time.monotonic() - since < WAIT + SLACK
        third = await made.member()
        await made.until(lambda: len(made.ready) == 3)
        since = time.monotonic()
        await second.stop()
        await made.stream.produce(KEYS)
        await made.until_done(4 * len(KEYS))
        assert time.monotonic() - since < WAIT
        await made.stream.until_unsettled(0)
        await third.stop()
        made.assert_exact()
        assert made.repeats() <= len(KEYS), "acknowledgements that were not sent before the kill"


async def test_a_drain_gives_back_what_is_queued_in_order_and_at_once(
    own: EmbeddedNats, tmp_path: Path
) -> None:
    """consumer/C:N2, consumer/C:R1: to a standby process, long before the wait ends."""
    wait = 20.0
    async with audited(own, tmp_path) as made:
        held = await made.stream.publish("a", "hold", "", "")
        for key in KEYS:
            held += await made.stream.publish(key, "", "")
        first = await made.member(ack_wait=wait, concurrency=1)
        await made.until_began(held[0])
        await made.stream.until_pending(len(held))
        second = await made.member(ack_wait=wait)
        await made.until(lambda: len(made.ready) == 2)
        since = time.monotonic()
        first.process.terminate()
        await first.until_log("draining")
        first.open_gate()
        await made.until_done(len(held))
        assert time.monotonic() - since < wait / 4
        await first.process.wait()
        await made.stream.until_unsettled(0)
        await second.stop()
        made.assert_exact()
        made.assert_one_at_a_time()
        assert made.repeats() == 0
        assert made.sequences("done", first.name) == [held[0]]


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(10))
async def test_members_that_come_go_and_are_killed_at_random_lose_nothing(
    own: EmbeddedNats, tmp_path: Path, seed: int
) -> None:
    """consumer/C:N9, O-T23."""
    chance = random.Random(seed)
    async with audited(own, tmp_path, PARTITIONS) as made:
        members = [await made.member(naks=0.05) for _ in range(3)]
        enough = asyncio.Event()
        producing = asyncio.create_task(flow(made, enough))
        for _ in range(5):
            await made.until_done(len({*made.done()}) + chance.randrange(50, 300))
            leaving = members.pop(chance.randrange(3))
            await (leaving.kill() if chance.random() < 0.5 else leaving.stop())
            members.append(await made.member(naks=0.05))
        enough.set()
        await producing
        await made.until_done(len(made.stream.stored))
        await made.stream.until_unsettled(0)
        for member in members:
            await member.stop()
        made.assert_exact()
        made.assert_one_at_a_time()


async def test_a_partition_that_is_left_while_its_claim_begins_can_be_taken_again(
    embedded_nats: EmbeddedNats,
) -> None:
    """consumer/C:N9: another member joins and leaves while claims begin; at the end all partitions
    are here.
    """
    async with new_stream(embedded_nats, PARTITIONS) as stream:
        subject = f"_SLUICEGATE.members.{stream.name}.d"
        async with running(embedded_nats, stream.name, partitions=PARTITIONS) as here:
            await here.consumer.wait_ready()
            for number in range(100):
                said = {"member": f"other-{number // 2}", "is": "gone" if number % 2 else "here"}
                await stream.client.publish(subject, json.dumps(said).encode())
                for _ in range(1 + number % 5):  # the claims are in various states by then
                    await stream.info()
            await stream.produce(KEYS)
            await here.handled(*stream.stored)
            assert {partition(key) for key in stream.stored.values()} == {*range(PARTITIONS)}
