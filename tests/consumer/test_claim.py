"""A claim begins with the offset map of the previous claim.

White box: a claim without a consumer.
"""

from __future__ import annotations

from typing import Any, cast

from consumer_help import P0
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate._core.order.lanes import Lanes
from sluicegate.consumer import Position
from sluicegate.consumer.progress import offset_map
from sluicegate.consumer.progress.claim import Claim


def claim_of(position: int, ranges: list[tuple[int, int]]) -> Claim:
    stored = Position(position, offset_map.encode(position, ranges).text)
    return Claim(P0, 1, stored, Lanes(), cast("Any", None))


def deliver(claim: Claim, first: int, last: int) -> None:
    """Deliver records, and settle those that the map contains."""
    index = claim.tracker.admit(first, last, last - first + 1)
    for offset in range(first, last + 1):
        if claim.replay.skips(offset):
            assert claim.settle(index + offset - first)


def told(claim: Claim) -> tuple[int, list[tuple[int, int]]]:
    snapshot = claim.snapshot()
    return snapshot.offset, offset_map.decode(snapshot.offset, snapshot.metadata)


def test_a_commit_keeps_the_part_of_the_map_that_was_not_delivered_again() -> None:
    """O-T5: otherwise a second crash would repeat records that an earlier claim had settled."""
    claim = claim_of(5, [(6, 9), (20, 30)])
    assert told(claim) == (5, [(6, 9), (20, 30)])
    deliver(claim, 5, 7)
    assert told(claim) == (5, [(6, 9), (20, 30)])
    claim.settle(0)
    assert told(claim) == (8, [(8, 9), (20, 30)])
    deliver(claim, 8, 24)
    assert told(claim) == (9, [(20, 30)])
    deliver(claim, 25, 40)
    assert told(claim) == (9, [(20, 30)])


@settings(max_examples=100, deadline=None)
@given(
    before=st.sets(st.integers(1, 40)),
    fetches=st.lists(st.integers(1, 9), max_size=8),
    least=st.integers(1, 12),
    data=st.data(),
)
def test_a_claim_never_forgets_what_is_settled(
    before: set[int], fetches: list[int], least: int, data: st.DataObject
) -> None:
    """consumer/C:C1, consumer/C:C4, O-T5: every commit contains exactly the settled offsets,
    including those in spans that the source has passed.
    """
    claim = claim_of(0, list(offset_map.join((at, at + 1) for at in sorted(before))))
    settled, end = set(before), 0
    indices: list[int] = []
    for count in fetches:
        deliver(claim, end, end + count - 1)
        indices.extend(range(end, end + count))
        taken, end = end + count, claim.pass_settled(end + count, least)
        if data.draw(st.booleans()):  # otherwise the records before the span still wait
            taken = end
            claim.advance(end)
        for index in data.draw(st.sets(st.integers(0, len(indices) - 1), max_size=6)):
            assert claim.settle(index) is (indices[index] not in settled)
            settled.add(indices[index])
        position, ranges = told(claim)
        first = next(
            offset for offset in range(end + 1) if offset not in settled or offset == taken
        )
        assert position == first
        beyond = {offset for low, high in ranges for offset in range(low, high)}
        assert beyond == {offset for offset in settled if offset >= position}


def test_a_passed_span_stays_in_the_map_and_is_counted_when_it_is_taken_in() -> None:
    """consumer/C:N1, consumer/C:N6: the next claim learns which offsets were passed without
    delivery.

    One record is stuck, and the records around the span are delivered.
    """
    claim = claim_of(5, [(6, 50_000), (50_001, 50_004)])
    deliver(claim, 5, 9)
    assert claim.pass_settled(10, least=10_000) == 50_000
    assert told(claim) == (5, [(6, 50_000), (50_001, 50_004)])
    assert counted(claim) == (4, 0, 1)
    claim.advance(50_000)
    assert told(claim) == (5, [(6, 50_000), (50_001, 50_004)])
    assert counted(claim) == (4, 49_990, 1)
    deliver(claim, 50_000, 50_005)
    assert counted(claim) == (7, 49_990, 2)
    assert told(claim) == (5, [(6, 50_000), (50_001, 50_004)])
    claim.settle(5)  # offset 50,000
    assert told(claim) == (5, [(6, 50_004)])
    claim.settle(0)
    assert told(claim) == (50_004, [])


def test_only_a_settled_span_that_is_long_enough_is_passed() -> None:
    """An offset outside the map, a short remainder and the end of the map are not passed."""
    claim = claim_of(0, [(10, 40), (60, 70)])
    for offset in (0, 9, 40, 59, 31, 60, 70, 99):
        assert claim.pass_settled(offset, least=11) == offset
    assert claim.pass_settled(10, least=30) == 40
    assert claim.pass_settled(29, least=11) == 40


def test_a_passed_span_leaves_the_ratio_of_the_letter_circuit_alone() -> None:
    """Passed records were not delivered, so they are not successes of this claim."""
    claim = claim_of(0, [(1, 50_000)])
    deliver(claim, 0, 0)
    claim.advance(claim.pass_settled(1, least=10_000))
    deliver(claim, 50_000, 50_001)
    assert claim.tracker.settled - claim.replay.skipped == 0
    claim.settle(1)
    assert claim.tracker.settled - claim.replay.skipped == 1


def counted(claim: Claim) -> tuple[int, int, int]:
    """The number of records delivered and skipped, of offsets passed, and of records that run."""
    return claim.replay.skipped, claim.replay.passed, claim.replay.replayed
