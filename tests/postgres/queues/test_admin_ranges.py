"""Manual sticky routing: ranges are assigned and moved, and become automatic again.

White box: the arithmetic of ranges, and the administration of routing.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.postgres.queues.operated_help import operated

from sluicegate import ConfigError
from sluicegate.postgres.queues.ring import PART, SLOTS, SlotRange, after_move, gaps, in_parts

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.postgres.queues.routing import RangeAdmin

pytestmark = pytest.mark.usefixtures("real_clock")
LAST = SLOTS - 1


def owners(ranges: list[SlotRange]) -> list[str | None]:
    """The owner of each slot."""
    found: list[str | None] = [None] * SLOTS
    for lo, hi, consumer in ranges:
        assert found[lo : hi + 1] == [None] * (hi - lo + 1), "ranges overlap"
        found[lo : hi + 1] = [consumer] * (hi - lo + 1)
    return found


@st.composite
def layouts(draw: st.DrawFn) -> list[SlotRange]:
    cuts = sorted({0, SLOTS, *draw(st.lists(st.integers(1, LAST), max_size=6))})
    ranges = [SlotRange(lo, hi - 1, draw(st.sampled_from("abc"))) for lo, hi in pairwise(cuts)]
    return [each for each in ranges if draw(st.booleans())]


@given(layouts(), st.integers(0, LAST), st.integers(0, LAST))
def test_a_move_changes_its_slots_and_no_other(ranges: list[SlotRange], one: int, two: int) -> None:
    """Q3: whole ranges are assigned, so none overlaps partially."""
    lo, hi = sorted((one, two))
    assigned = after_move(ranges, SlotRange(lo, hi, "new"))
    untouched = [each for each in ranges if each.hi < lo or hi < each.lo]
    expected = owners(ranges)
    expected[lo : hi + 1] = ["new"] * (hi - lo + 1)
    assert owners([*untouched, *assigned]) == expected


@given(layouts())
def test_gaps_are_the_slots_without_a_range(ranges: list[SlotRange]) -> None:
    found = owners([*ranges, *(SlotRange(lo, hi, "gap") for lo, hi in gaps(r[:2] for r in ranges))])
    assert None not in found


@given(layouts())
def test_parts_are_whole_and_go_to_an_owner_of_theirs(ranges: list[SlotRange]) -> None:
    before = owners(ranges)
    for lo, hi, consumer in in_parts(ranges):
        assert lo % PART == 0
        assert hi == lo + PART - 1
        assert consumer in before[lo : hi + 1]


async def layout(routing: RangeAdmin) -> list[tuple[int, int, str]]:
    return [(each.lo, each.hi, each.consumer) for each in await routing.ranges()]


async def test_ranges_are_assigned_and_moved(log: Log) -> None:
    """Q-T3: a move splits the ranges it cuts; the remaining parts do not drain."""
    async with operated(log) as (con, admin):
        await admin.create("mails", sticky=True)
        routing = await admin.routing("mails", "g")
        await routing.assign([(0, 29_999, "A"), (30_000, LAST, "B")])
        await con.execute(f"UPDATE {log.sql}.ring_range SET draining = false")
        moved = await routing.move(100, 199, "B")
        assert moved == [(0, 99, "A"), (100, 199, "B"), (200, 29_999, "A")]
        assert await layout(routing) == [*moved, (30_000, LAST, "B")]
        assert [each.is_draining for each in await routing.ranges()] == [False, True, False, False]
        assert await routing.move(0, LAST, "A") == [(0, LAST, "A")]


@pytest.mark.parametrize(
    ("ranges", "rule"),
    [
        ([(0, 10, "A")], "gap at slot 11"),
        ([(0, 50, "A"), (50, LAST, "B")], "overlap"),
        ([(10, 0, "A")], "lo=10: must not be above hi=0"),
        ([(0, SLOTS, "A")], "hi=65536: must be below 65536"),
        ([(0, LAST, "")], "consumer='': must be text"),
        ([], "must be at least one"),
    ],
)
async def test_bad_ranges_change_nothing(log: Log, ranges: Any, rule: str) -> None:
    """Q3: overlaps and gaps are reported."""
    async with operated(log) as (_, admin):
        await admin.create("mails", sticky=True)
        routing = await admin.routing("mails", "g")
        await routing.move(0, LAST, "A")
        with pytest.raises(ConfigError, match=rule):
            await (await admin.routing("mails", "other")).assign(ranges)
        assert await layout(routing) == [(0, LAST, "A")]
        with pytest.raises(ConfigError, match="overlaps only in part"):
            await routing.assign([(0, 10, "B")], complete=False)


async def test_ranges_follow_consumers_again(log: Log) -> None:
    """An assignment is manual until `balance`, which returns the ranges to the consumers."""
    async with operated(log) as (con, admin):
        await admin.create("mails", sticky=True)

        async def balanced(*consumers: str) -> int:
            for each in consumers:
                await con.fetch(f"SELECT {log.sql}.seen_consumer('mails', 'g', $1, 60)", each)
            moved = await con.fetchval(f"SELECT {log.sql}.balance_ranges('mails', 'g', 0)")
            return int(moved)

        assert await balanced("A", "B") == 256
        routing = await admin.routing("mails", "g")
        await routing.move(100, 1100, "C")
        assert await balanced("A", "B") == 0
        await routing.balance()
        found = await layout(routing)
        assert [lo for lo, _, _ in found] == [*range(0, SLOTS, PART)]
        assert [consumer for _, _, consumer in found[:5]].count("C") == 4
        assert await balanced("A", "B") >= 4
        assert "C" not in {consumer for _, _, consumer in await layout(routing)}


async def test_a_queue_that_is_not_sticky_has_no_ranges(log: Log) -> None:
    """Q1."""
    async with operated(log) as (_, admin):
        await admin.create("mails")
        with pytest.raises(ConfigError, match="is not sticky"):
            await admin.routing("mails", "g")


async def test_ranges_are_stored_and_inactive_while_ordering_is_required(log: Log) -> None:
    """Q1: they become active once `ordering_required` is switched off."""
    async with operated(log) as (_, admin):
        await admin.create("line", sticky=True, ordering_required=True, poison="block")
        routing = await admin.routing("line", "g")
        await routing.assign([(0, SLOTS - 1, "A")])
        await routing.move(100, 200, "B")
        stored = [(0, 99, "A"), (100, 200, "B"), (201, SLOTS - 1, "A")]
        assert await layout(routing) == stored
        report = await admin.explain("line")
        assert not report.is_routed
        assert "ordering_required makes sticky routing and its ranges inactive" in report.notes
        await admin.alter("line", ordering_required=False)
        assert (await admin.explain("line")).is_routed
        assert await layout(routing) == stored
