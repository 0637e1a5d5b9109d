"""Key lanes alone. White box: the lanes without a batcher or a consumer."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sluicegate._core.order.lanes import Entry, Lanes

if TYPE_CHECKING:
    from collections.abc import Callable


class Item(Entry):
    __slots__ = ("number",)

    def __init__(self, key: int, number: int) -> None:
        super().__init__(key)
        self.number = number


class LanesMachine(RuleBasedStateMachine):
    """Lanes compared with a deque per key that is never removed."""

    ages = True

    def __init__(self) -> None:
        super().__init__()
        self.lanes: Lanes[Item] = Lanes(ages=self.ages)
        self.ahead: set[int] = set()
        self.waiting: dict[int, deque[int]] = {key: deque() for key in range(4)}
        self.going: dict[int, list[Item]] = {}
        self.held: set[int] = set()
        self.count = 0

    keys = st.integers(0, 3)

    @rule(key=keys)
    def enter(self, key: int) -> None:
        item = Item(key, self.count)
        self.count += 1
        went = self.lanes.enter(item)
        assert went == (key not in self.going and key not in self.held)
        if went:
            self.going[key] = [item]
        else:
            self.waiting[key].append(item.number)

    def began(self, key: int, item: Item | None) -> None:
        may = bool(self.waiting[key]) and key not in self.held
        assert (item is not None) == may
        if item is not None:
            assert item.number == self.waiting[key].popleft()
            self.going[key] = [item]

    @precondition(lambda self: self.going)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.going)))
        del self.going[key]
        self.began(key, self.lanes.leave(key))

    @precondition(lambda self: self.going)
    @rule(data=st.data())
    def leave_together(self, data: st.DataObject) -> None:
        keys = data.draw(st.lists(st.sampled_from(sorted(self.going)), max_size=6))
        ended = list(dict.fromkeys(keys))
        went, held = self.lanes.leave_all(keys)
        assert [item.lane_key for item in went] == [
            key for key in ended if self.waiting[key] and key not in self.held
        ]
        assert held == [key for key in ended if key in self.held]
        for key in ended:
            del self.going[key]
            self.began(key, next((item for item in went if item.lane_key == key), None))

    @precondition(lambda self: self.going)
    @rule(data=st.data())
    def next(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.going)))
        first = self.lanes.first(key)
        item = self.lanes.next(key)
        assert item is first
        if key in self.held or not self.waiting[key]:
            assert item is None
        else:
            assert item is not None
            assert item.number == self.waiting[key].popleft()
            self.going[key].append(item)

    @precondition(lambda self: self.going)
    @rule(data=st.data(), most=st.integers(0, 3))
    def next_many(self, data: st.DataObject, most: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.going)))
        went = self.lanes.next_many(key, most)
        waited = 0 if key in self.held else min(most, len(self.waiting[key]))
        assert [item.number for item in went] == [
            self.waiting[key].popleft() for _ in range(waited)
        ]
        self.going[key] += went

    @precondition(lambda self: self.going)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.going)))
        back = self.going[key][data.draw(st.integers(0, len(self.going[key]))) :]
        self.going[key] = self.going[key][: len(self.going[key]) - len(back)]
        self.lanes.put_back(key, back)
        self.ahead.difference_update(item.number for item in back)
        self.waiting[key].extendleft(item.number for item in reversed(back))

    @rule(key=keys)
    def hold(self, key: int) -> None:
        if key in self.lanes.active:
            self.lanes.hold(key)
            self.held.add(key)

    @rule(key=keys)
    def let_go(self, key: int) -> None:
        was_held = key in self.held
        self.held.discard(key)
        item = self.lanes.let_go(key)
        if was_held and key not in self.going:
            self.began(key, item)
        else:
            assert item is None

    @rule(key=keys)
    def drop_first(self, key: int) -> None:
        item = self.lanes.drop_first(key)
        assert (item is not None) == bool(self.waiting[key])
        if item is not None:
            assert item.number == self.waiting[key].popleft()

    @rule(key=keys, place=st.integers(0, 5))
    def drop(self, key: int, place: int) -> None:
        waiting = [*(self.lanes.lane(key) or ())]
        item = waiting[place] if place < len(waiting) else Item(key, self.count)
        assert self.lanes.drop(item) == (place < len(waiting))
        assert item.behind is None
        if place < len(waiting):
            self.waiting[key].remove(item.number)

    @rule(divisor=st.integers(1, 3), dropped=st.sets(keys))
    def drop_where(self, divisor: int, dropped: set[int]) -> None:
        def matches(number: int, key: int) -> bool:
            return number % divisor == 0 and key in dropped

        gone = self.lanes.drop_where(lambda item: matches(item.number, self.key_of(item)))
        assert len(gone) == len({item.number for item in gone})
        assert all(item.behind is None for item in gone)
        for key, waiting in self.waiting.items():
            expected = [number for number in waiting if matches(number, key)]
            assert [item.number for item in gone if item.lane_key == key] == expected
            self.waiting[key] = deque(number for number in waiting if number not in expected)

    @rule()
    def drop_where_raises(self) -> None:
        for last in range(self.lanes.waiting):
            judged: list[Item] = []

            def fail_at_last(item: Item, judged: list[Item] = judged, last: int = last) -> bool:
                judged.append(item)
                if len(judged) > last:
                    raise LookupError
                return True

            with pytest.raises(LookupError):
                self.lanes.drop_where(fail_at_last)  # nothing has changed

    @rule()
    def clear(self) -> None:
        gone = self.lanes.clear()
        for key, numbers in self.waiting.items():
            assert [item.number for item in gone if item.lane_key == key] == list(numbers)
            numbers.clear()

    @staticmethod
    def key_of(item: Item) -> int:
        assert isinstance(item.lane_key, int)
        return item.lane_key

    @invariant()
    def nothing_is_lost_or_left_behind(self) -> None:
        lanes = self.lanes
        assert set(lanes.active) == set(self.going) | self.held | {
            key for key, numbers in self.waiting.items() if numbers
        }
        assert lanes.waiting == sum(map(len, self.waiting.values()))
        assert lanes.held == len(self.held)
        for number, waiting in self.waiting.items():
            assert lanes.length(number) == len(waiting)
            assert (number in lanes.waiting_lanes) == bool(waiting or number in self.held)
        for key, lane in lanes.lanes():
            assert isinstance(key, int)
            assert [item.number for item in lane] == list(self.waiting[key])
            assert lane.length == len(self.waiting[key])
            assert lane.length or lane.held, "a lane without items is left behind"
        for key in self.going:
            assert not (self.waiting[key] and key not in lanes.active)
        for key, numbers in self.waiting.items():
            assert not numbers or key in self.going or key in self.held, (
                f"nothing will ever let key {key} go"
            )
        oldest = lanes.oldest
        assert (oldest is None) == (not (self.ages and any(self.waiting.values())))
        assert oldest is None or oldest.number in [
            numbers[0] for numbers in self.waiting.values() if numbers
        ]


class OvertakingMachine(LanesMachine):
    """The same with entries that are put ahead of others."""

    ages = False

    @precondition(lambda self: self.lanes.active)
    @rule(data=st.data())
    def put_ahead(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([key for key in range(4) if key in self.lanes.active]))
        self.lanes.put_ahead(Item(key, self.count))
        waiting = self.waiting[key]
        places = [at for at, number in enumerate(waiting) if number in self.ahead]
        waiting.insert(places[-1] + 1 if places else 0, self.count)
        self.ahead.add(self.count)
        self.count += 1


FAST = settings(
    max_examples=25, stateful_step_count=40, deadline=None, derandomize=True, database=None
)


def test_lanes_do_what_a_queue_per_key_does() -> None:
    """consumer/4.1, I4, I5: order per key, one turn per key, and nothing remains."""
    run_state_machine_as_test(LanesMachine, settings=FAST)


def test_entries_put_ahead_overtake_the_others_in_their_order() -> None:
    """consumer/4.1, I4: whatever else happens to their lanes."""
    run_state_machine_as_test(OvertakingMachine, settings=FAST)


@pytest.mark.parametrize(
    ("leave", "left"),
    [
        (lambda lanes: lanes.next(0), [1]),
        (lambda lanes: lanes.next_many(0, 1), [1]),
        (lambda lanes: lanes.drop_where(lambda item: item.number == 2), [1]),
        (lambda lanes: (lanes.hold(0), lanes.clear()), []),
    ],
)
def test_an_entry_that_has_left_is_followed_by_none_put_ahead(
    leave: Callable[[Lanes[Item]], object], left: list[int]
) -> None:
    """consumer/4.1, I4: the next entry put ahead is the first."""
    lanes: Lanes[Item] = Lanes()
    lanes.enter(Item(0, 0))
    lanes.wait(Item(0, 1))
    lanes.put_ahead(Item(0, 2))
    leave(lanes)
    for number in (3, 4):
        lanes.put_ahead(Item(0, number))
    assert [item.number for _, lane in lanes.lanes() for item in lane] == [3, 4, *left]


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_lanes_do_what_a_queue_per_key_does_for_long() -> None:
    """consumer/4.1."""
    for machine in (LanesMachine, OvertakingMachine):
        run_state_machine_as_test(
            machine, settings=settings(max_examples=5_000, stateful_step_count=80, deadline=None)
        )


@given(st.lists(st.integers(0, 5), max_size=60), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_what_goes_is_in_order_per_key_however_turns_end(
    keys: list[int], rng: random.Random
) -> None:
    """I4, I5."""
    lanes: Lanes[Item] = Lanes()
    going: list[Item] = []
    went: list[Item] = []
    for number, key in enumerate(keys):
        item = Item(key, number)
        if lanes.enter(item):
            going.append(item)
        while going and rng.random() < 0.4:
            ended = going.pop(rng.randrange(len(going)))
            went.append(ended)
            behind = lanes.leave(ended.lane_key)
            if behind is not None:
                going.append(behind)
        assert len({item.lane_key for item in going}) == len(going)
    while going:
        ended = going.pop()
        went.append(ended)
        behind = lanes.leave(ended.lane_key)
        if behind is not None:
            going.append(behind)
    assert sorted(item.number for item in went) == list(range(len(keys)))
    for key in set(keys):
        numbers = [item.number for item in went if item.lane_key == key]
        assert numbers == sorted(numbers)
    assert not lanes.active


@given(
    st.lists(st.integers(0, 2), max_size=12),
    st.sets(st.integers(0, 2)),
    st.sets(st.integers(0, 11)),
)
@settings(max_examples=100, deadline=None)
def test_dropped_entries_are_those_that_match_and_the_others_go_on_in_order(
    keys: list[int], held: set[int], dropped: set[int]
) -> None:
    """I4, I5: as if the matching entries had never entered."""
    lanes: Lanes[Item] = Lanes(ages=True)
    waiting = [
        item for number, key in enumerate(keys) if not lanes.enter(item := Item(key, number))
    ]
    held = {key for key in held if key in lanes.active}
    for key in held:
        lanes.hold(key)
    gone = lanes.drop_where(lambda item: item.number in dropped)
    kept = [item for item in waiting if item not in gone]
    assert {item.number for item in waiting} & dropped == {item.number for item in gone}
    assert set(lanes.waiting_lanes) == {item.lane_key for item in kept} | held
    assert lanes.oldest is (kept[0] if kept else None)
    assert lanes.waiting == len(kept)
    for key in sorted(set(keys)):
        assert not lanes.enter(last := Item(key, 12))
        follow = [item for item in kept if item.lane_key == key]
        assert [item for item in gone if item.lane_key == key] == [
            item for item in waiting if item.lane_key == key and item.number in dropped
        ]
        assert lanes.length(key) == len(follow) + 1
        assert lanes.drop_all(key) == [*follow, last]
    assert lanes.waiting == 0


class Counted(Entry):
    """Counts how often the entries behind it are examined."""

    __slots__ = ("_behind",)
    looks = 0

    @property
    def behind(self) -> Counted | None:
        Counted.looks += 1
        return self._behind

    @behind.setter
    def behind(self, entry: Counted | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._behind = entry


@pytest.mark.parametrize("count", [100, 10_000])
def test_a_hot_key_costs_no_more_per_item_however_much_waits(count: int) -> None:
    """consumer/4.5: at most three looks per item if all items have one key, instead of a scan."""
    lanes: Lanes[Any] = Lanes()
    Counted.looks = 0
    for _ in range(count):
        lanes.enter(Counted("hot"))
    for _ in range(count):
        lanes.leave("hot")
    assert not lanes.active
    assert Counted.looks <= 3 * count


def _once_each(count: int) -> None:
    lanes: Lanes[Item] = Lanes()
    gc.collect()
    before = len(gc.get_objects())
    for number in range(count):
        assert lanes.enter(Item(number, number))
        assert lanes.leave(number) is None
    gc.collect()
    assert len(gc.get_objects()) <= before + 100  # 10,000 keys would be visible
    assert not lanes.active


def test_keys_that_come_once_leave_nothing_behind() -> None:
    """consumer/C:O6."""
    _once_each(10_000)


@pytest.mark.soak
def test_a_million_keys_that_come_once_leave_nothing_behind() -> None:
    """consumer/C:O6."""
    _once_each(1_000_000)


def test_an_active_key_is_small() -> None:
    """consumer/4.1: less than 600 bytes, with one item in flight and one waiting."""
    count = 10_000
    items = [[Item(number, number) for number in range(count)] for _ in range(2)]
    lanes: Lanes[Item] = Lanes()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for entered in items:
        for item in entered:
            lanes.enter(item)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert lanes.waiting == count
    assert (after - before) / count < 300


def test_the_first_of_an_empty_lane_is_nothing() -> None:
    lanes: Lanes[Item] = Lanes()
    assert lanes.drop_first(1) is None
    assert lanes.let_go(1) is None
    assert not lanes.is_held(1)
    assert len(lanes) == 0
    assert lanes.oldest is None


@pytest.mark.parametrize("count", [100, 10_000])
def test_dropping_entries_costs_the_same_per_waiting_entry_however_many_wait(count: int) -> None:
    """consumer/4.5: one scan of all lanes, instead of one per dropped entry."""
    lanes: Lanes[Any] = Lanes(ages=True)
    entries = [Counted("hot") for _ in range(count + 1)]
    for entry in entries:
        lanes.enter(entry)
    chosen = {*entries[1::2]}
    Counted.looks = 0
    assert lanes.drop_where(chosen.__contains__) == entries[1::2]
    assert Counted.looks <= 2 * count
    assert lanes.waiting == count / 2


def test_the_short_form_of_leave_is_right_unless_the_key_has_a_lane() -> None:
    """I4, I5: the path of a consumer's worker, once per message."""
    lanes: Lanes[Item] = Lanes()
    lanes.active.add(1)
    assert 1 not in lanes.waiting_lanes
    lanes.active.remove(1)
    assert lanes.enter(Item(1, 1))
    assert not lanes.enter(behind := Item(1, 2))
    assert 1 in lanes.waiting_lanes
    assert lanes.leave(1) is behind
    assert 1 not in lanes.waiting_lanes
    lanes.hold(1)
    assert 1 in lanes.waiting_lanes
    assert lanes.leave(1) is None
    assert lanes.is_held(1)


@pytest.mark.parametrize("ages", [False, True])
def test_entries_that_wait_together_are_as_ones_that_wait_one_by_one(ages: bool) -> None:
    """Also in a held lane, which may be empty."""
    lanes: tuple[Lanes[Item], ...] = (Lanes(ages=ages), Lanes(ages=ages))
    for one in lanes:
        one.active.update(range(4))
        one.hold(0)
    numbers = [(0, 1), (1, 2), (0, 3), (2, 4), (1, 5), (0, 6)]
    lanes[0].wait_all([Item(key, number) for key, number in numbers])
    for key, number in numbers:
        lanes[1].wait(Item(key, number))
    for one in lanes:
        assert (one.waiting, one.length(0), one.length(1)) == (6, 3, 2)
        assert not ages or (one.oldest is not None and one.oldest.number == 1)
    left = [[entry.number for entry in one.clear()] for one in lanes]
    assert left[0] == left[1]


def test_followers_fill_the_batch_of_the_entry_before_them() -> None:
    """A turn does not span two batches: an entry that does not fit stays in its lane."""
    lanes: Lanes[Item] = Lanes()
    for key, count in ((1, 4), (2, 3), (3, 9), (4, 1)):
        for number in range(count):
            lanes.enter(Item(key, 10 * key + number))
    firsts, _ = lanes.leave_all([1, 2, 3])
    found = lanes.with_followers(firsts, 2, 5)
    batches = [[11, 12], [21, 22, 31, 32, 33]]
    assert [entry.number for entry in found] == [number for batch in batches for number in batch]
    assert (lanes.length(1), lanes.length(2), lanes.length(3)) == (1, 0, 5)
    assert lanes.with_followers([], 2, 5) == []
