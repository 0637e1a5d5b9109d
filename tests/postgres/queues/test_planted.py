"""Faults planted in the installed functions: each makes a test of another file fail.

A fault is a text of a function and its replacement. The text must exist, so these tests also show
when a function has changed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.postgres.queues import (
    test_leases,
    test_limits,
    test_order,
    test_plans,
    test_poison,
    test_sticky,
)
from tests.postgres.queues.queue_help import payloads, queue, waits_for_a_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock

    Test = Callable[..., Coroutine[Any, Any, None]]

DRAINS = test_sticky.test_a_new_owner_waits_for_the_leases_of_the_earlier_one


class Fault(NamedTuple):
    function: str
    changes: dict[str, str]
    test: Test
    more: tuple[Any, ...] = ()
    """Arguments of the test after the clock."""


FAULTS = {
    "a late bell does not lower a leased lane": Fault(
        "make_lanes",
        {"low = least(l.low, excluded.low),": "low = l.low,"},
        test_order.test_a_late_job_of_a_leased_lane_is_given_out_next,
    ),
    "a late bell does not lower a free lane": Fault(
        "make_lanes",
        {"low = least(l.low, excluded.low),": "low = l.low,"},
        test_order.test_a_late_job_of_a_free_lane_comes_before_those_that_wait,
    ),
    "bells that are left do not count": Fault(
        "claim_jobs",
        {"WHERE b.queue = p_queue\n": "WHERE false\n"},
        test_order.test_a_lane_is_read_from_before_bells_that_are_left,
    ),
    "bells that come amid a claim do not count": Fault(
        "claim_jobs",
        {"WHERE b.queue = p_queue\n": "WHERE false\n"},
        test_order.test_a_job_that_commits_amid_a_claim_waits_for_the_one_before_it,
    ),
    "a lane without visible jobs is leased": Fault(
        "claim_jobs",
        {
            "DELETE FROM {s}.lane l\n": "UPDATE {s}.lane l SET lease = 1, lease_until = v_until\n",
        },
        test_leases.test_a_lane_whose_jobs_are_gone_is_given_out_again_when_others_come,
    ),
    "a parked lane is dropped": Fault(
        "settle_jobs",
        {"l.state = 0 AND (": "("},
        test_leases.test_a_lane_parked_while_it_is_leased_stays_parked_when_its_jobs_are_done,
    ),
    "a settle ignores the end of a lease": Fault(
        "settle_jobs",
        {"coalesce(l.lease = g.lease AND l.lease_until > v_now, false)": "l.lease = g.lease"},
        test_leases.test_a_lease_that_has_ended_settles_nothing,
        ("k",),
    ),
    "a settle ignores the end of a lease of one job": Fault(
        "settle_loose",
        {"AND j.lease_until > p_now": ""},
        test_leases.test_a_lease_that_has_ended_settles_nothing,
        (None,),
    ),
    "a settle ignores the number of a lease": Fault(
        "settle_jobs",
        {"coalesce(l.lease = g.lease AND l.lease_until": "coalesce(l.lease_until"},
        test_leases.test_a_lease_that_has_ended_settles_nothing,
        ("k",),
    ),
    "numbers of leases are those of a sequence": Fault(
        "lease_base",
        {"floor(date_part('epoch', clock_timestamp()) * 1000)::bigint * 1048576": "0::bigint"},
        test_leases.test_numbers_of_leases_rise_although_their_sequence_is_set_back,
    ),
    "attempts are those of any first job": Fault(
        "claim_jobs",
        {"WHEN v_job.place = v_job.head THEN": "WHEN true THEN"},
        test_leases.test_a_late_job_in_front_has_not_the_attempts_of_the_one_behind,
    ),
    "a lease is taken early": Fault(
        "pick_lanes",
        {"l.lease_until <= p_now": "l.lease_until <= p_now + interval '1 s'"},
        test_leases.test_a_lease_ends_at_its_time_and_no_earlier,
        ("k",),
    ),
    "a drain ignores expiry": Fault(
        "open_ranges", {"AND l.lease_until > p_now\n": "\n"}, DRAINS, ("expiry",)
    ),
    "a drain is of a range with the same bounds": Fault(
        "assign_ranges",
        {
            "coalesce(o.draining, true) AS draining": "EXISTS (SELECT FROM replaced e "
            "WHERE e.lo = u.lo AND e.hi = u.hi) AS draining"
        },
        test_sticky.test_parts_of_a_split_range_drain_on_their_own,
    ),
    "a drain compares consumers of all groups": Fault(
        "open_ranges",
        {"l.grp = p_grp AND l.owner": "l.owner"},
        test_sticky.test_groups_are_apart_although_consumers_have_the_same_names,
    ),
    "a range does not drain": Fault(
        "assign_ranges", {"coalesce(o.draining, true)": "false"}, DRAINS, ("ack",)
    ),
    "a balance does not wait for claims": Fault(
        "balance_ranges",
        {"ORDER BY r.lo FOR UPDATE;": "ORDER BY r.lo;"},
        test_sticky.test_a_reassignment_waits_for_a_claim_that_has_begun,
        (True,),
    ),
    "a slot binds its operators from the left": Fault(
        "ring_slot",
        {
            "get_byte(h.digest, 0) + 256 * get_byte(h.digest, 1)": "(get_byte(h.digest, 0) | "
            "get_byte(h.digest, 1) << 8) & 65535"
        },
        test_sticky.test_slots_are_pinned,
    ),
    "lanes are read from their beginning": Fault(
        "claim_jobs",
        {"least(l.after, l.low - 1, (": "least(0, ("},
        test_plans.test_an_old_snapshot_does_not_make_a_hot_key_slow,
    ),
    "a cap is looked at by claims at once": Fault(
        "claim_jobs",
        {"FOR NO KEY UPDATE;  -- one claim at a time": ";"},
        test_limits.test_no_more_leases_than_the_cap_whoever_claims,
    ),
    "a dead letter stays of a job that was handled": Fault(
        "finish_jobs",
        {"p_queue.poison = 'block_and_dead_letter'": "false"},
        test_poison.test_a_poison_job_stops_the_line_until_it_is_unblocked,
        ("block_and_dead_letter",),
    ),
}


async def replace_text(log: Log, function: str, changes: dict[str, str]) -> None:
    """Create the function again with the replaced text."""
    async with log.connected() as con:
        text = await con.fetchval(
            "SELECT pg_get_functiondef(p.oid) FROM pg_proc p"
            " WHERE p.pronamespace = $1::regnamespace AND p.proname = $2",
            log.sql,
            function,
        )
        for old, new in changes.items():
            there = old.replace("{s}", log.sql)
            assert text.count(there) == 1, f"{there!r} is {text.count(there)} times in {function}"
            text = text.replace(there, new.replace("{s}", log.sql))
        await con.execute(text)


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
async def test_a_planted_fault_is_found(log: Log, real_clock: LoopClock, name: str) -> None:
    fault = FAULTS[name]
    await replace_text(log, fault.function, fault.changes)
    with pytest.raises((AssertionError, TimeoutError, ValueError)):
        async with asyncio.timeout(5):
            await fault.test(log, real_clock, *fault.more)


@pytest.mark.parametrize("in_one_statement", [False, True])
async def test_a_claim_that_is_overtaken_between_choosing_and_reading_gives_out_no_job_twice(
    log: Log, real_clock: LoopClock, in_one_statement: bool
) -> None:
    """Q-T11. The window between a snapshot and the lock on the lane is held open. The fault: a
    claim that locks and reads in one statement sees a job that was handled in between.
    """
    wait = "PERFORM pg_advisory_xact_lock_shared(77);\n  FOR v_job IN\n"
    if in_one_statement:
        await replace_text(
            log,
            "pick_lanes",
            {
                "p_most - cardinality(v_keys)\n      FOR NO KEY UPDATE SKIP LOCKED);": (
                    "p_most - cardinality(v_keys));"
                )
            },
        )
        snapshot = (
            "FROM unnest(v_keys) WITH ORDINALITY AS k (key, n)\n",
            "FROM (SELECT k.*, pg_advisory_xact_lock_shared(77) FROM unnest(v_keys) "
            "WITH ORDINALITY AS k (key, n) OFFSET 0) k\n",
        )
        lock = ("AND l.state = 0 OFFSET 0) l\n", "AND l.state = 0 OFFSET 0 FOR NO KEY UPDATE) l\n")
        await replace_text(log, "claim_jobs", dict((snapshot, lock)))
    else:
        await replace_text(log, "claim_jobs", {"FOR v_job IN\n": wait})
    async with log.connected() as con, log.connected() as first, log.connected() as slow:
        q = await queue(con, log)
        late = slow.transaction()
        await late.start()
        await q.enqueue(slow, ("k", 0))
        await q.enqueue(con, ("k", 1), ("k", 2))
        assert await q.claim(con, lanes=0) == []  # creates the lane
        await con.fetchval("SELECT pg_advisory_lock(77)")
        begun = asyncio.create_task(q.claim(first))
        await waits_for_a_lock(log, first)
        handled = []
        for number in range(2):
            jobs = await q.claim(con, per=1)
            handled += payloads(jobs)
            if jobs:
                await q.settle(con, jobs)
            if number == 0:
                await late.commit()
        await con.fetchval("SELECT pg_advisory_unlock(77)")
        handled += payloads(await begun)
        assert handled == ([1, 0, 1, 2] if in_one_statement else [0, 1, 2])
