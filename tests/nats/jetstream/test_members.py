"""The members of a group, and the division of the partitions among them. White box: the group.

Proven here: consumer/C:N9.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.nats.jetstream.group import (
    ANNOUNCE_EVERY,
    SILENT_AFTER,
    MemberGroup,
    Roster,
    divide,
)
from sluicegate.nats.jetstream.options import ReadOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

    from sluicegate.testing import FakeClock

names = st.sets(st.text("abcdef0123456789-", min_size=1, max_size=12), min_size=1, max_size=12)
MOST_MOVED = 3
"""Factor of the fair share that limits how much moves when a member joins or leaves."""


@given(names, st.integers(1, 64))
def test_every_partition_has_a_member_and_no_member_more_than_its_share(
    members: set[str], partitions: int
) -> None:
    """Also with more members than partitions, and for any order of the members."""
    division = divide(sorted(members), partitions)
    assert len(division) == partitions
    loads = Counter(division)
    assert loads.keys() <= members
    counts = [loads[each] for each in members]
    assert max(counts) - min(counts) <= 1
    assert divide(sorted(members, reverse=True), partitions) == division


@given(st.integers(2, 12), st.sampled_from([8, 16, 32, 64]))
def test_a_member_that_joins_or_leaves_moves_few_partitions(members: int, partitions: int) -> None:
    """At most three times the minimum number, plus two."""
    before = [f"host-{number}" for number in range(members)]
    divided_before = divide(before, partitions)
    divided_after = divide([*before, "another"], partitions)
    moved = sum(one != two for one, two in zip(divided_before, divided_after, strict=True))
    assert moved <= MOST_MOVED * -(-partitions // (members + 1)) + 2


def test_the_division_is_the_same_everywhere_and_for_ever() -> None:
    """Otherwise members of two releases would claim the same partitions."""
    assert divide(["a", "b", "c"], 8) == divide(["c", "a", "b"], 8)
    assert "".join(divide(["a", "b", "c"], 8)) == "caaabccb"


def test_members_that_are_heard_share_the_partitions() -> None:
    roster = Roster("a", 4)
    assert (roster.members, roster.mine()) == (["a"], {0, 1, 2, 3})
    assert roster.hear("b", 0.0)
    assert not roster.hear("b", 1.0), "it is known"
    assert not roster.hear("a", 1.0), "it is this one"
    other = Roster("b", 4)
    other.hear("a", 0.0)
    assert roster.members == other.members == ["a", "b"]
    assert len(roster.mine()) == len(other.mine()) == 2
    assert roster.mine() | other.mine() == {0, 1, 2, 3}
    assert roster.mine() is roster.mine(), "they are divided once, not at each announcement"


def test_a_member_that_leaves_or_is_silent_is_gone() -> None:
    roster = Roster("a", 4)
    roster.hear("b", 0.0)
    roster.hear("c", 1.0)
    roster.forget_silent(SILENT_AFTER)
    assert roster.members == ["a", "b", "c"]
    roster.forget_silent(SILENT_AFTER + 0.1)
    assert roster.members == ["a", "c"]
    assert roster.part("c")
    assert not roster.part("c")
    assert roster.mine() == {0, 1, 2, 3}


class SomeChannel:
    """A connection that can be lost."""

    def __init__(self) -> None:
        self.said: list[dict[str, str]] = []
        self.is_lost = False
        self.hear: Callable[[Any], Awaitable[None]] | None = None

    async def subscribe(self, subject: str, call: Callable[[Any], Awaitable[None]]) -> None:
        self.hear = call

    async def publish(self, subject: str, payload: bytes) -> None:
        if self.is_lost:
            raise ConnectionError("lost")
        self.said.append(json.loads(payload))


@dataclass
class Heard:
    data: bytes


async def test_a_group_outlives_what_is_no_announcement_and_a_lost_connection(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither ends the claims of this member."""
    channel, shares = SomeChannel(), list[set[int]]()
    options = ReadOptions.of(
        "orders",
        durable="d",
        member="a",
        subjects=None,
        partitions=4,
        key="subject",
        start="earliest",
        ack_wait=30.0,
        max_pending=1000,
        prefetch=100,
        double_ack=False,
        create=True,
        domain=None,
    )
    group = MemberGroup(options, channel)  # type: ignore[arg-type]
    task = asyncio.create_task(group.run(shares.append))
    await fake_clock.advance(1.0)
    assert channel.hear is not None
    for odd in (b"\xff", b"[]", b"7", b'{"is": "here"}', b'{"member": "x"}', b""):
        await channel.hear(Heard(odd))
    assert caplog.text.count("is not an announcement of a member") == 6
    channel.is_lost = True
    await fake_clock.advance(3 * ANNOUNCE_EVERY)
    await channel.hear(Heard(b'{"member": "b", "is": "here"}'))
    await group.leave()
    channel.is_lost = False
    await fake_clock.advance(ANNOUNCE_EVERY)
    assert not task.done()
    assert len(shares[0]) == 4
    assert len(shares[-1]) == 2
    task.cancel()
