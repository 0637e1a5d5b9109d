"""Claims of a source that settles records one by one: which records they report.

White box: the tracker of one claim.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.consumer.progress.tracker import Tracker


def test_what_was_settled_is_told_once_and_out_of_order() -> None:
    """consumer/C:C7: each settled record is reported once, also behind an unfinished one."""
    tracker = Tracker(10, tells_each=True)
    tracker.admit(10, 12, 3)
    tracker.admit(20, 21, 2)
    tracker.done(1)
    tracker.give_up(4)
    tracker.done(4)
    assert tracker.has_untold
    assert tracker.take_settled() == ([11, 21], frozenset({21}))
    assert not tracker.has_untold
    assert tracker.take_settled() == ([], frozenset())
    assert not tracker.done(1)
    tracker.give_up(1)
    tracker.done(0)
    tracker.done(3)
    assert tracker.take_settled() == ([10, 20], frozenset())
    assert tracker.seen_position() == 12
    assert (tracker.unfinished, tracker.span) == (1, 3)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=12), st.data()
)
def test_everything_settled_is_told_once(gaps: list[tuple[int, int]], data: st.DataObject) -> None:
    """consumer/C:C7: with holes, and with any order of settlements and reports."""
    tracker, offsets, at = Tracker(0, tells_each=True), list[int](), 0
    for hole, count in gaps:
        at += hole
        if count:
            tracker.admit(at, at + count - 1, count)
            offsets += range(at, at + count)
            at += count
    told: list[int] = []
    for index in data.draw(st.permutations(range(len(offsets)))):
        tracker.done(index)
        if data.draw(st.booleans()):
            told += tracker.take_settled()[0]
    told += tracker.take_settled()[0]
    assert sorted(told) == offsets
    assert tracker.unfinished == tracker.span == 0
