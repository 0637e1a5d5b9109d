"""Changes that wait for their position: the stored state is what the events before it produced.

White box: the log of changes and the store, without a consumer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.consumer import TopicPartition
from sluicegate.flow.state.changes import ChangeLog
from sluicegate.flow.state.store import JsonState, KeptStore
from sluicegate.kafka.state.topic import StateContent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluicegate.flow.state.changes import Stored

KEYS = "abc"
P0 = TopicPartition("t", 0)


class Access(NamedTuple):
    """One access of a turn: it reads keys, and sets or deletes one depending on the values read."""

    reads: str
    key: str
    deletes: bool
    is_range: bool


class Turn(NamedTuple):
    """A turn of an event, or of an interjection if `None`."""

    event: int | None
    accesses: list[Access]
    fails: bool


def run(store: KeptStore, turns: Iterable[tuple[int, Turn]]) -> None:
    """Run turns whose values depend on everything they have read."""
    for number, turn in turns:
        store.begin_turn(turn.event)
        for each in turn.accesses:
            seen = [store.get(key) for key in each.reads]
            if each.is_range:
                seen.append([*store.range("a", "c")])
            if each.deletes:
                store.delete(each.key)
            else:
                store.put(each.key, crc32(repr((number, seen)).encode()) % 1000)
        store.end_turn(counts=not turn.fails)


def store_of() -> KeptStore:
    """An empty store."""
    return KeptStore(P0, {}, ChangeLog(1000, 1 << 20), JsonState(), lambda key, stored: None)


def content(store: KeptStore) -> dict[str, object]:
    """The whole content of a store."""
    store.begin_turn(None)
    try:
        return dict(store.range())
    finally:
        store.end_turn(counts=False)


accesses = st.builds(
    Access,
    st.text(KEYS, max_size=1),
    st.sampled_from(KEYS),
    st.booleans(),
    st.integers(0, 9).map(lambda n: n == 0),
)
turns = st.builds(
    Turn,
    st.integers(0, 4),
    st.lists(accesses, min_size=1, max_size=2),
    st.integers(0, 4).map(lambda n: n == 0),
)
ticks = st.builds(Turn, st.none(), st.lists(accesses, max_size=2), st.just(False))


class Database:
    """The stored state and the position."""

    def __init__(self) -> None:
        self.entries: dict[str, object] = {}
        self.stored: dict[str, Stored] = {}
        self.content = StateContent()
        self.position = 0

    def commit(self, store: KeptStore, done: int) -> None:
        """Store all storable changes of the events before `done`."""
        self.position = store.bound(done)
        taken = store.log.take(self.position)
        for key, value in taken.changes.items():
            assert taken.replaced[key] == self.stored.get(key)
            if value is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = value
        self.entries = {key: JsonState().decode(str(each)) for key, each in self.stored.items()}
        self.content = self.content.after(taken.replaced, taken.changes)
        assert self.content == StateContent().plus(self.stored.items())
        store.log.confirm(taken)


def first_incomplete(history: list[Turn], place: int) -> int:
    """The first event with a turn at or behind this place: the position cannot pass it."""
    return min([turn.event for turn in history[place:] if turn.event is not None], default=5)


@given(st.lists(turns, max_size=10), st.integers(0, 10))
@settings(deadline=None, max_examples=200)
def test_what_is_stored_is_a_replay(history: list[Turn], place: int) -> None:
    """G-T24: the stored state is that of the turns of the events before the position, as if no
    other turn had run, whichever turns of later events ran between them.
    """
    store, database = store_of(), Database()
    numbered = list(enumerate(history))
    run(store, numbered[:place])
    database.commit(store, first_incomplete(history, place))
    replay = store_of()
    before = [each for each in numbered if (each[1].event or 0) < database.position]
    run(replay, before)
    assert database.entries == content(replay)


@given(st.lists(turns | ticks, max_size=14), st.lists(st.integers(0, 14), max_size=4))
@settings(deadline=None, max_examples=150)
def test_in_the_end_everything_is_stored(history: list[Turn], commits: list[int]) -> None:
    """At the end everything is stored, including interjections, whatever was stored before."""
    store, database = store_of(), Database()
    numbered, at = list(enumerate(history)), 0
    for place in sorted({min(each, len(history)) for each in commits}):
        run(store, numbered[at:place])
        database.commit(store, first_incomplete(history, place))
        at = place
    run(store, numbered[at:])
    database.commit(store, 5)
    assert database.position == 5
    assert database.entries == content(store)
    assert len(store.log) == 0


def test_a_turn_that_fails_is_undone() -> None:
    store = store_of()
    store.begin_turn(0)
    store.put("a", 1)
    store.put("b", 1)
    store.end_turn(counts=True)
    store.begin_turn(1)
    store.put("a", 2)
    store.delete("b")
    store.put("c", 3)
    store.end_turn(counts=False)
    assert content(store) == {"a": 1, "b": 1}
    assert store.log.take(2).changes == {"a": "1", "b": "1"}


def test_a_finaliser_that_has_read_a_later_event_waits_for_it() -> None:
    """Otherwise the state of the later event would be stored and the event repeated."""
    store = store_of()
    for event in (1, 0):
        store.begin_turn(event)
        store.put("all", store.get("all", 0) + 1)
        store.end_turn(counts=True)
    assert store.bound(1) == 0
    assert store.is_crowded
    assert store.bound(2) == 2
    assert not store.is_crowded
    assert store.log.take(2).changes == {"all": "2"}


def test_an_interjection_is_stored_with_what_it_has_touched() -> None:
    store = store_of()
    store.begin_turn(4)
    store.put("a", 1)
    store.end_turn(counts=True)
    for key in ("a", "b"):
        store.begin_turn(None)
        store.put(key, store.get(key, 0) + 1)
        store.end_turn(counts=True)
    assert store.log.take(4).changes == {"b": "1"}
    assert store.owes(0)
    assert store.log.take(5).changes == {"a": "2", "b": "1"}


def test_values_are_read_as_after_a_restart() -> None:
    """Changing an object after it was put or read has no effect on the state."""
    store, value = store_of(), {"n": [1]}
    store.begin_turn(0)
    store.put("a", value)
    value["n"].append(2)
    store.get("a")["n"].append(3)
    assert store.get("a") == {"n": [1]}
    store.put("b", (1e16, "\0"))
    assert store.get("b") == [1e16, "\0"]
    assert isinstance(store.get("b")[0], float)
