"""A claim begins with the map of the claim before it."""

from __future__ import annotations

from typing import Any, cast

from consumer_help import P0
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._core.order.lanes import Lanes
from penstock._core.source import Position
from penstock.consumer import offset_map
from penstock.consumer.claim import Claim


def claim_of(position: int, ranges: list[tuple[int, int]]) -> Claim:
    stored = Position(position, offset_map.encode(position, ranges).text)
    return Claim(P0, 1, stored, Lanes(), cast("Any", None))


def deliver(claim: Claim, first: int, last: int) -> None:
    """Deliver records, and settle those that the map tells of."""
    index = claim.tracker.admit(first, last, last - first + 1)
    for offset in range(first, last + 1):
        if claim.replay.skips(offset):
            assert claim.settled(index + offset - first)


def told(claim: Claim) -> tuple[int, list[tuple[int, int]]]:
    snapshot = claim.snapshot()
    return snapshot.offset, offset_map.decode(snapshot.offset, snapshot.metadata)


def test_a_commit_keeps_the_part_of_the_map_that_was_not_delivered_again() -> None:
    """O-T5: or a second crash would run again what an earlier claim had settled."""
    claim = claim_of(5, [(6, 9), (20, 30)])
    assert told(claim) == (5, [(6, 9), (20, 30)])
    deliver(claim, 5, 7)
    assert told(claim) == (5, [(6, 9), (20, 30)])
    claim.settled(0)
    assert told(claim) == (8, [(8, 9), (20, 30)])
    deliver(claim, 8, 24)
    assert told(claim) == (9, [(20, 30)])
    deliver(claim, 25, 40)
    assert told(claim) == (9, [(20, 30)])


@settings(max_examples=100, deadline=None)
@given(
    before=st.sets(st.integers(1, 40)),
    fetches=st.lists(st.integers(1, 9), max_size=8),
    data=st.data(),
)
def test_a_claim_never_forgets_what_is_settled(
    before: set[int], fetches: list[int], data: st.DataObject
) -> None:
    """consumer/C:C1, consumer/C:C4: every commit tells of exactly the settled offsets."""
    claim = claim_of(0, list(offset_map.joined((at, at + 1) for at in sorted(before))))
    settled, end = set(before), 0
    for count in fetches:
        deliver(claim, end, end + count - 1)
        end += count
        for offset in data.draw(st.sets(st.integers(0, end - 1), max_size=6)):
            assert claim.settled(offset) is (offset not in settled)
            settled.add(offset)
        position, ranges = told(claim)
        first = next(offset for offset in range(end + 1) if offset not in settled or offset == end)
        assert position == first
        beyond = {offset for low, high in ranges for offset in range(low, high)}
        assert beyond == {offset for offset in settled if offset >= position}
