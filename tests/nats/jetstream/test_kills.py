"""Killed servers and consumers: nothing is lost, and every key stays in order.

The file written by the handlers is compared with the content of the stream. `SLUICEGATE_KILLS=20
pytest -m soak tests/nats/jetstream/test_kills.py` kills 20 times.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import TYPE_CHECKING

import pytest
from nats.js.api import RetentionPolicy
from tests.nats.jetstream.audit_help import Audited, audited

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import EmbeddedNats

pytestmark = pytest.mark.usefixtures("real_clock")

KILLS = int(os.environ.get("SLUICEGATE_KILLS", "20"))
KEYS = [f"k{number}" for number in range(20)]
WAIT = 1.0
"""The acknowledgement wait."""
NAKS = 0.05


def some_keys(count: int, chance: random.Random) -> list[str]:
    return [chance.choice(KEYS) for _ in range(count)]


async def assert_flows(made: Audited, since: float, within: float) -> None:
    """Check that a message begins soon after this moment."""
    await made.stream.publish("another", "")
    await made.until(lambda: any(each.at > since for each in made.lines if each.what == "began"))
    first = min(each.at for each in made.lines if each.what == "began" and each.at > since)
    assert first - since < within


async def all_settled(made: Audited) -> None:
    """Wait until all messages are handled, and acknowledged by the server's count."""
    await made.until_done(len(made.stream.stored))
    await made.stream.until_unsettled(0)
    for told in await made.stream.consumers():
        assert told.num_ack_pending == 0


@pytest.mark.long
@pytest.mark.parametrize("partitions", [None, 4])
async def test_a_server_that_is_killed_under_load_loses_nothing(
    own: EmbeddedNats, tmp_path: Path, partitions: int | None
) -> None:
    """consumer/C:C7, consumer/C:N2: with naks, twice; a work queue is empty at the end."""
    chance, config = random.Random(1), {"retention": RetentionPolicy.WORK_QUEUE}
    async with audited(own, tmp_path, partitions, **config) as made:
        # with a shorter wait, a restart on a busy machine takes longer, and partitions move
        options = {"naks": NAKS, "ack_wait": 6 * WAIT}
        members = [await made.member(**options, seed=number) for number in range(2)]
        await made.until(lambda: len(made.ready) == 2)
        if partitions is not None:
            await made.until(lambda: sorted(made.shares()) == [partitions // 2] * 2)
        producing = asyncio.create_task(made.stream.produce(some_keys(1600, chance)))
        for reached in (300, 1000):
            await made.until_done(reached)
            await asyncio.to_thread(own.kill)
            await asyncio.to_thread(own.start)
        await producing
        await all_settled(made)
        for member in members:
            await member.stop()
        made.assert_exact()
        made.assert_one_at_a_time()
        assert (await made.stream.info()).state.messages == 0
        if partitions is not None:
            assert made.repeats() == 0, "each partition stays with its member, which knows its acks"


@pytest.mark.long
async def test_one_process_repeats_nothing_over_restarts_of_the_server(
    own: EmbeddedNats, tmp_path: Path
) -> None:
    """consumer/C:C7: settlements that the server forgot in a crash are sent again, without handling
    the messages again. It also continues at once after a clean restart.
    """
    chance = random.Random(2)
    async with audited(own, tmp_path) as made:
        member = await made.member(naks=NAKS, ack_wait=4.0)
        await made.stream.produce(some_keys(1500, chance))
        for reached, down in ((300, own.kill), (900, own.stop)):
            await made.until_done(reached)
            await asyncio.to_thread(down)
            await asyncio.to_thread(own.start)
            await assert_flows(made, time.monotonic(), within=2.0)
        await all_settled(made)
        await member.stop()
        made.assert_exact()
        made.assert_one_at_a_time()
        assert made.repeats() == 0


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.5, 3.0])
async def test_a_server_that_is_frozen_loses_nothing(
    own: EmbeddedNats, tmp_path: Path, seconds: float
) -> None:
    """consumer/C:C7: for less than the wait, and for three times the wait; one process repeats only
    the messages that it held when the wait expired.
    """
    chance = random.Random(3)
    async with audited(own, tmp_path) as made:
        member = await made.member(naks=NAKS, max_in_flight=200, prefetch=100)
        await made.stream.produce(some_keys(1000, chance))
        await made.until_done(300)
        await asyncio.to_thread(own.pause)
        await asyncio.sleep(seconds)  # the outage is the time
        await asyncio.to_thread(own.resume)
        await assert_flows(made, time.monotonic(), within=2.0)
        await all_settled(made)
        await member.stop()
        made.assert_exact()
        made.assert_one_at_a_time()
        assert made.repeats() <= (0 if seconds < WAIT else 300)
        assert ("could not be extended" in member.log()) == (seconds > WAIT)


async def test_a_handler_that_runs_while_its_claim_is_lost_is_not_run_twice_at_once(
    own: EmbeddedNats, tmp_path: Path
) -> None:
    """consumer/C:R2: the same process receives the message again, behind its own handler."""
    async with audited(own, tmp_path) as made:
        held = await made.stream.publish("a", "hold", "")
        held += await made.stream.publish("b", "hold", "")
        member = await made.member()
        await made.until_began(held[0], held[2])
        await asyncio.to_thread(own.pause)
        await asyncio.sleep(2 * WAIT)  # the outage is the time
        await asyncio.to_thread(own.resume)
        await member.until_log("could not be extended")
        newer = await made.stream.publish("c", "")
        await made.until(lambda: newer[0] in made.done())
        member.open_gate()
        await all_settled(made)
        await member.stop()
        made.assert_exact()
        made.assert_one_at_a_time()


async def test_a_killed_process_is_succeeded_for_all_that_it_held(
    own: EmbeddedNats, tmp_path: Path
) -> None:
    """consumer/O34, consumer/C:N2: running, queued and prefetched ones; in order, before newer
    ones.
    """
    async with audited(own, tmp_path) as made:
        held = await made.stream.publish("a", "hold", "", "")
        held += await made.stream.publish("b", "hold", "")
        for key in KEYS:
            held += await made.stream.publish(key, *["hold"] * 6)
        first = await made.member(prefetch=100, concurrency=3)
        await made.until(lambda: len(made.sequences("began")) == 3)
        await made.stream.until_pending(len(held))
        began = made.sequences("began")
        await first.kill()
        newer = await made.stream.publish("a", "", "")
        second = await made.member(prefetch=10, concurrency=50)
        await made.until_began(*began, member=second)
        second.open_gate()
        await all_settled(made)
        await second.stop()
        made.assert_exact()
        made.assert_one_at_a_time()
        assert made.repeats() == 0
        assert {*made.sequences("done", second.name)} == {*held, *newer}
        assert all(made.attempts(each, second) == [2] for each in began), "of heads: a second try"
        assert all(made.attempts(each, second) == [1] for each in held[1:3]), "behind the head"


@pytest.mark.long
@pytest.mark.parametrize("partitions", [None, 4])
async def test_processes_that_are_killed_at_random_moments_lose_nothing(
    own: EmbeddedNats, tmp_path: Path, partitions: int | None
) -> None:
    """O-T23, consumer/C:N2, consumer/C:N9."""
    await kill_at_random(own, tmp_path, partitions, kills=3, seed=4)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("partitions", [None, 4])
@pytest.mark.parametrize("seed", range(KILLS // 5))
async def test_many_kills(
    own: EmbeddedNats, tmp_path: Path, seed: int, partitions: int | None
) -> None:
    """O-T23: five each, of the server or a process."""
    await kill_at_random(own, tmp_path, partitions, kills=5, seed=100 + seed)


async def kill_at_random(
    own: EmbeddedNats, path: Path, partitions: int | None, *, kills: int, seed: int
) -> None:
    """Kill a process or the server after this many more messages, and start another."""
    chance, config = random.Random(seed), {"retention": RetentionPolicy.WORK_QUEUE}
    async with audited(own, path, partitions, **config) as made:
        members = [await made.member(naks=NAKS, max_in_flight=100) for _ in range(2)]
        producing = asyncio.create_task(made.stream.produce(some_keys(600 * kills, chance)))
        reached = 0
        for _ in range(kills):
            reached += chance.randrange(50, 500)
            await made.until_done(reached)
            if chance.random() < 0.3:
                await asyncio.to_thread(own.kill)
                await asyncio.to_thread(own.start)
                continue
            await members.pop(chance.randrange(2)).kill()
            members.append(await made.member(naks=NAKS, max_in_flight=100))
        await producing
        await all_settled(made)
        for member in members:
            await member.stop()
        made.assert_exact()
        made.assert_one_at_a_time()
        assert (await made.stream.info()).state.messages == 0
