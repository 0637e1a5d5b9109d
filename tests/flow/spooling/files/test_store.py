"""White box: the files of a spool against a model, over restarts and small segments."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from spooling.files.store_help import files, opened, put, settle, unsettled

from sluicegate.flow.spooling.ranges import Ranges, ranges_of
from sluicegate.flow.spooling.segment import Extent
from sluicegate.flow.spooling.store import MOST_CONNECTED, MOST_FILES, Work

PAIR = st.tuples(st.integers(0, 40), st.integers(1, 9))


@given(st.lists(PAIR, max_size=20))
def test_ranges_are_a_set_of_offsets(pairs: list[tuple[int, int]]) -> None:
    """Whatever overlaps or touches is one range."""
    ranges, model = Ranges(), set[int]()
    for first, size in pairs:
        model |= {*range(first, first + size)}
        low, high = ranges.add(first, first + size)
        assert {*range(low, high)} <= model
        assert not {low - 1, high} & model
        assert [*ranges] == [*ranges_of(sorted(model))]
        assert ranges.total == len(model)
    for offset in range(60):
        assert (offset in ranges) == (offset in model)
        assert ranges.end_of(offset) == next(at for at in range(offset, 99) if at not in model)
        starts = [first for first, _ in ranges if first > offset]
        assert ranges.next_after(offset) == min(starts, default=None)


class StoreMachine(RuleBasedStateMachine):
    """Puts, settles, extents and restarts. A file has a few items of up to a quarter of it."""

    def __init__(self) -> None:
        super().__init__()
        self.place = TemporaryDirectory()
        self.folder = Path(self.place.name) / "spool"
        self.model: dict[int, bytes] = {}
        self.extents: dict[str, list[int]] = {}
        self.next = 0
        self.store = opened(self.folder)

    @rule(sizes=st.lists(st.integers(0, 1 << 14), min_size=1, max_size=8))
    def put(self, sizes: list[int]) -> None:
        values = [b"%d" % (self.next + at) + bytes(size) for at, size in enumerate(sizes)]
        assert put(self.store, *values).first == self.next
        self.model |= dict(enumerate(values, self.next))
        self.next += len(values)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def settle(self, data: Any) -> None:
        some = data.draw(st.sets(st.sampled_from(sorted(self.model)), min_size=1))
        settle(self.store, ranges_of(sorted(some)))
        self._forget(some)

    @rule()
    def settle_all(self) -> None:
        settle(self.store, ranges_of(sorted(self.model)))
        self._forget({*self.model})

    def _forget(self, some: set[int]) -> None:
        for offset in some:
            del self.model[offset]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), name=st.sampled_from("abc"))
    def keep_extent(self, data: Any, name: str) -> None:
        offsets = data.draw(st.permutations(sorted(self.model)))[:5]
        if name not in self.extents:
            self.store.apply([Work(keeps=Extent(name, offsets))])
            self.extents[name] = offsets

    @rule(name=st.sampled_from("abc"))
    def end_batch(self, name: str) -> None:
        """Its items and its extent go together."""
        if (offsets := self.extents.pop(name, None)) is not None:
            left = {*offsets} & self.model.keys()
            work = Work(settles=[*ranges_of(sorted(left))], drops=Extent(name, offsets))
            self.store.apply([work])
            assert work.error is None
            self._forget(left)

    @rule(by_others=st.booleans())
    def restart(self, *, by_others: bool) -> None:
        """By the next process, which may only write or only send before one that does both."""
        self.store.close()
        if by_others:
            opened(self.folder, sends=False).close()
            sender = opened(self.folder, writes=False)
            sender.adopt()
            assert unsettled(sender) == self.model
            sender.close()
        self.store = opened(self.folder)

    @rule(room=st.integers(1, 1 << 15))
    def find(self, room: int) -> None:
        assert unsettled(self.store, room=room) == self.model
        some = sorted(self.model)[::3]
        assert [item.value for item in self.store.find(some)] == [self.model[at] for at in some]

    @invariant()
    def all_unsettled_items_are_read_once_in_order(self) -> None:
        assert unsettled(self.store) == self.model
        assert self.store.unsettled == len(self.model)
        assert self.store.end == self.next, "an offset is used twice, or left out"
        assert self.store.start == min(self.model, default=self.next)

    @invariant()
    def interrupted_batches_are_known(self) -> None:
        """While one of their first item's file is left."""
        found = {extent.batch: [*extent.offsets] for extent in self.store.extents()}
        needed = {name for name, each in self.extents.items() if min(each) in self.model}
        assert needed <= found.keys()
        assert all(found[name] == self.extents[name] for name in found)

    @invariant()
    def settled_files_are_deleted(self) -> None:
        names = [segment.path.name for segment in self.store.segments]
        assert files(self.folder) == names
        for segment in self.store.segments[:-1]:
            assert any(segment.first <= offset < segment.end for offset in self.model)

    def teardown(self) -> None:
        self.store.close()
        self.place.cleanup()


@pytest.mark.hypothesis
def test_the_files_against_a_model() -> None:
    """Every rule and invariant above."""
    run_state_machine_as_test(StoreMachine)


def test_many_files_have_few_connections(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(40):
        put(store, b"%d" % number)
        store.apply([Work(seals=True)])
    store.close()
    store = opened(tmp_path)
    assert len(files(tmp_path)) == 41
    assert [*unsettled(store).values()] == [b"%d" % number for number in range(40)]
    assert sum(each.is_connected for each in store.segments) <= MOST_CONNECTED + 1
    settle(store, [(5, 35)])
    assert len(files(tmp_path)) == 11
    assert sum(each.is_connected for each in store.segments) <= MOST_CONNECTED + 1
    store.close()


def test_files_grow_while_many_wait_for_the_sender(tmp_path: Path) -> None:
    store = opened(tmp_path, sends=False)
    for number in range(MOST_FILES + 6):
        put(store, b"%d" % number)
        store.apply([Work(seals=True)])
    assert len(files(tmp_path)) == MOST_FILES + 1
    store.close()
