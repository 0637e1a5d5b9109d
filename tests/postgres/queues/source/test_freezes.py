"""Leases that are kept, returned and lost, with consumers in their own processes."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING

import pytest
from tests.postgres.queues.source.kills_help import LEASE, PRODUCERS, Member, Queue, queue, stop

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

pytestmark = pytest.mark.usefixtures("real_clock")

LONG = 60.0
"""Seconds of a lease that no test waits for."""


async def holding(made: Queue, key: str, **options: object) -> Member:
    """A process that has begun the first job of a key."""
    member = await made.member(**options)
    await member.told("holds")
    lane = await made.lane(key)
    assert lane["owner"] == member.name
    return member


async def assert_lost(made: Queue, first: Member, places: list[int]) -> None:
    """Let another process take over the key of these jobs and handle them; then the first one
    resumes.
    """
    second = await made.member(lease=LONG)  # also when it blocks
    await second.told("holds")
    lane = await made.lane("k")
    assert (lane["owner"], lane["attempts"]) == (second.name, 2), "Q-T12"
    first.thaw()
    first.answer()
    assert await first.told("fenced") is False, "Q-T13: it has no lease"
    assert await made.effects() == [(first.name, places[0])]
    await stop(first)
    assert await made.ask("SELECT count(*) FROM {schema}.job") == len(places), "it settled nothing"
    assert (await made.lane("k"))["lease"] == lane["lease"], "nor gave anything back"
    second.answer()
    assert await second.told("fenced") is True
    await made.handled()
    await stop(second)
    effects = await made.effects()
    assert effects[1] == (second.name, places[0])
    assert [place for _, place in effects[1:]] == places, "once each"
    await made.assert_exact()


@pytest.mark.long
async def test_a_handler_that_runs_longer_than_its_lease_keeps_it(log: Log) -> None:
    """Q-T12, Q10: for four lease periods, beside an idle process; it counts one attempt."""
    async with queue(log) as made:
        (place,) = await made.enqueue("k", "hold")
        member = await holding(made, "k")
        other = await made.member()
        await other.ready()
        lane = await made.lane("k")
        await made.until(
            "SELECT count(*) FROM {schema}.lane "
            "WHERE lease_until < $1::timestamptz + make_interval(secs => $2)",
            lane["lease_until"],
            4 * LEASE,
        )
        now = await made.lane("k")
        assert (now["owner"], now["lease"], now["attempts"]) == (member.name, lane["lease"], 1)
        member.answer()
        assert await member.told("fenced") is True
        await made.handled()
        await stop(member, other)
        assert await made.effects() == [(member.name, place)]
        await made.assert_exact()


async def test_a_frozen_process_loses_its_lease_and_its_settle_has_no_effect(log: Log) -> None:
    """Q-T2, Q-T12, Q-T13, R6: a SIGSTOP that outlasts the lease, then SIGCONT."""
    async with queue(log) as made:
        places = await made.enqueue("k", "hold", 2, 3)
        first = await holding(made, "k")
        first.freeze()
        await assert_lost(made, first, places)


@pytest.mark.long
async def test_a_process_with_a_blocked_loop_loses_its_lease(log: Log) -> None:
    """Q-T2, Q-T12, Q-T13: the lease of a handler that does not suspend cannot be extended."""
    async with queue(log) as made:
        places = await made.enqueue("k", "block", 2, 3)
        first = await holding(made, "k")
        await assert_lost(made, first, places)


async def test_a_job_that_ends_its_process_parks_its_key_and_the_others_go_on(log: Log) -> None:
    """Q-T12, Q-T2: after three lost leases."""
    async with queue(log, max_attempts=3) as made:
        deadly = await made.enqueue("deadly", "exit", 2)
        for _ in range(3):
            assert await (await made.member()).ended() == 3
        others = [await made.enqueue(f"k-{number}", 1, 2) for number in range(5)]
        member = await made.member(lease=LONG)  # it loses none of its own
        await made.handled(but=len(deadly))
        await made.until("SELECT count(*) FROM {schema}.lane WHERE state <> 2")
        lane = await made.lane("deadly")
        assert (lane["state"], lane["attempts"], lane["lease"]) == (2, 3, None)
        assert "lost too often" in lane["reason"]
        await stop(member)
        assert len(await made.effects()) == sum(map(len, others))
        assert await made.effects(*deadly) == []


@pytest.mark.long
async def test_a_job_that_ends_its_process_parks_no_key_that_was_leased_beside_it(log: Log) -> None:
    """Q-T12: jobs that had not begun when the process ended."""
    async with queue(log, max_attempts=3) as made:
        await made.enqueue("deadly", "exit")
        for number in range(5):
            await made.enqueue(f"k-{number}", 1)
        for _ in range(3):
            assert await (await made.member(concurrency=1)).ended() == 3
        member = await made.member()
        await made.until("SELECT count(*) FROM {schema}.lane WHERE key = 'deadly' AND state = 0")
        await made.until(
            "SELECT count(*) FROM {schema}.job WHERE key NOT IN "
            "(SELECT key FROM {schema}.lane WHERE state <> 0)"
        )
        await stop(member)
        assert await made.ask("SELECT count(*) FROM {schema}.lane") == 1


@pytest.mark.long
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
async def test_a_process_that_drains_gives_its_leases_back_at_once(
    log: Log, sign: signal.Signals
) -> None:
    """Q-T2, Q-T12: the running job is handled; those behind it pass to another process long before
    their lease ends, as their first attempt.
    """
    async with queue(log) as made:
        places = await made.enqueue("k", "hold", 2, 3)
        behind = await made.enqueue("l", "hold", 2)
        first = await made.member(lease=LONG, concurrency=1)
        await first.told("holds")
        first.process.send_signal(sign)
        first.answer()
        assert await first.told("fenced") is True
        assert await first.ended() == 0
        assert (await made.lane("k"))["attempts"] == 0
        (place,) = {place for _, place in await made.effects()}
        assert place in (places[0], behind[0])
        second = await made.member(lease=LONG)
        assert (await second.until(lambda told: "holds" in told))["attempt"] == 1
        second.answer()
        await made.handled()
        await stop(second)
        assert len(await made.effects()) == len(places) + len(behind), "once each"
        await made.assert_exact()


async def test_a_handler_that_hangs_beyond_the_drain_is_cut_and_its_job_given_back(
    log: Log,
) -> None:
    """Q-T2, Q-T12: the exit code is 1, and no attempt is counted for the job."""
    async with queue(log) as made:
        (place,) = await made.enqueue("k", "hang")
        first = await made.member(lease=LONG, drain=0.3)
        assert await first.told("hangs") == place
        assert await first.ended(signal.SIGTERM) == 1
        lane = await made.lane("k")
        assert (lane["lease"], lane["attempts"], lane["state"]) == (None, 0, 0)


async def test_a_process_that_is_interrupted_twice_gives_its_leases_back(log: Log) -> None:
    """Q-T2: the second Ctrl-C ends the drain at once."""
    async with queue(log) as made:
        (place,) = await made.enqueue("k", "hang")
        first = await made.member(lease=LONG, drain=LONG)
        assert await first.told("hangs") == place
        first.process.send_signal(signal.SIGINT)
        await first.until(lambda told: told.get("state") == "draining")
        assert await first.ended(signal.SIGINT) == 1
        assert (await made.lane("k"))["lease"] is None


@pytest.mark.long
async def test_the_order_of_keys_outlives_more_and_fewer_consumers(log: Log) -> None:
    """Q-T11: 1, then 8, then 2 processes under load."""
    chance = random.Random(3)
    async with queue(log) as made:
        members = [await made.member()]
        await made.produce(100, chance)
        await made.handled(but=80)
        members += [await made.member() for _ in range(7)]
        for member in members[1:]:
            await member.ready()
        await made.produce(300, chance)
        await made.handled(but=200)
        await stop(*members[:6])
        await made.produce(100, chance)
        await made.handled()
        await stop(*members[6:])
        workers = {worker for worker, _ in await made.effects()}
        assert len(workers) > PRODUCERS
        await made.assert_exact()
