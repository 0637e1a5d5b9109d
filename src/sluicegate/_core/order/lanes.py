"""Order per key, parallelism across keys. Pure, and O(1) per item.

A key is *going* while one of its entries is in flight; later entries wait in the key's *lane*. The
caller owns the entries in flight (in a ready queue, a batch, a task) and reports their end; this
returns the next entry of the lane.

1. The first entry of an idle key goes immediately, and costs only an entry in a set. A lane exists
   only while it is held or an entry waits in it. An idle key uses no memory, and no key has its own
   task, lock or container: waiting entries form a linked list.
2. At most one *turn* of a key is in progress at a time, from `enter` (or from the entry that
   `leave` or `let_go` returned) to `leave`. `next` adds entries of the lane to the current turn.
3. Entries that are put back are again at the front of their lane, in their previous order.
   Entries that are put ahead overtake the waiting ones, but not one another.
4. A held lane keeps its current and later entries until `let_go`, and exists even when empty.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence


class Entry:
    """An element of a lane. Subclasses add a payload."""

    __slots__ = ("behind", "lane_key")

    def __init__(self, lane_key: Hashable) -> None:
        self.lane_key = lane_key
        self.behind: Self | None = None  # the next entry of its lane


E = TypeVar("E", bound=Entry)


class Lane(Generic[E]):
    """The waiting entries of one key."""

    __slots__ = ("ahead", "first", "going", "held", "last", "length")

    def __init__(self, first: E | None) -> None:
        self.first = self.last = first
        self.ahead: E | None = None
        """The last waiting entry that was put ahead."""
        self.length = 0 if first is None else 1
        self.going = True
        self.held = False

    def __iter__(self) -> Iterator[E]:
        entry = self.first
        while entry is not None:
            yield entry
            entry = entry.behind


class Lanes(Generic[E]):
    """The lanes of all active keys. With `ages`, arrivals are recorded for `oldest`."""

    def __init__(self, *, ages: bool = False) -> None:
        self.active: set[Hashable] = set()
        """Keys that have a turn in progress, are held, or have a lane. Adding an idle key is
        equivalent to `enter`.
        """
        self._lanes: dict[Hashable, Lane[E]] = {}  # non-empty or held
        self.waiting_lanes: Mapping[Hashable, Lane[E]] = self._lanes
        """Lanes by key. For a key without a lane, `leave` is equivalent to `active.remove(key)`."""
        self.waiting = 0  # waiting entries in all lanes
        self.held = 0  # held lanes
        self._arrivals: OrderedDict[E, None] | None = OrderedDict() if ages else None

    def __len__(self) -> int:
        return len(self.active)

    def length(self, key: Hashable) -> int:
        """Return the number of waiting entries of a key."""
        lane = self._lanes.get(key)
        return 0 if lane is None else lane.length

    def lanes(self) -> Iterator[tuple[Hashable, Lane[E]]]:
        return iter(tuple(self._lanes.items()))

    def lane(self, key: Hashable) -> Lane[E] | None:
        return self._lanes.get(key)

    @property
    def oldest(self) -> E | None:
        """The oldest waiting entry. Needs `ages`."""
        return next(iter(self._arrivals), None) if self._arrivals else None

    def firsts(self) -> list[E]:
        """Return the oldest waiting entry if `ages`; otherwise the first entry of each lane."""
        if self._arrivals:
            return [next(iter(self._arrivals))]
        return [lane.first for _, lane in self.lanes() if lane.first is not None]

    # -- in and out --------------------------------------------------------------------------------

    def enter(self, entry: E) -> bool:
        """Begin a turn with `entry`, or append it to its lane; return whether the turn began."""
        if entry.lane_key in self.active:
            self.wait(entry)
            return False
        self.active.add(entry.lane_key)
        return True

    def wait(self, entry: E) -> None:
        """Append `entry` to the lane of its active key."""
        lane = self._lanes.get(entry.lane_key)
        if lane is None:
            self._lanes[entry.lane_key] = Lane(entry)
        else:
            if lane.last is None:
                lane.first = entry
            else:
                lane.last.behind = entry
            lane.last = entry
            lane.length += 1
        self.waiting += 1
        if self._arrivals is not None:
            self._arrivals[entry] = None

    def wait_all(self, entries: Sequence[E]) -> None:
        """Like `wait`, for several entries."""
        lanes = self._lanes
        for entry in entries:
            lane = lanes.get(entry.lane_key)
            if lane is None:
                lanes[entry.lane_key] = Lane(entry)
            else:
                if lane.last is None:
                    lane.first = entry
                else:
                    lane.last.behind = entry
                lane.last = entry
                lane.length += 1
        self.waiting += len(entries)
        if self._arrivals is not None:
            self._arrivals.update(dict.fromkeys(entries))

    def put_back(self, key: Hashable, entries: Sequence[E]) -> None:
        """Return unapplied entries, in their previous order, to the front; the turn continues."""
        if not entries:
            return
        lane = self._lanes.get(key) or self._open(key)
        for entry in reversed(entries):
            entry.behind = lane.first
            lane.first = entry
            if lane.last is None:
                lane.last = entry
            if self._arrivals is not None:
                self._arrivals[entry] = None
                self._arrivals.move_to_end(entry, last=False)
        lane.length += len(entries)
        self.waiting += len(entries)

    def put_ahead(self, entry: E) -> None:
        """Let an entry of an active key overtake the waiting ones that were not put ahead. Not with
        `ages`.
        """
        assert self._arrivals is None
        lane = self._lanes.get(entry.lane_key) or self._open(entry.lane_key)
        before = lane.ahead
        if before is None:
            entry.behind, lane.first = lane.first, entry
        else:
            entry.behind, before.behind = before.behind, entry
        if entry.behind is None:
            lane.last = entry
        lane.ahead = entry
        lane.length += 1
        self.waiting += 1

    def leave(self, key: Hashable) -> E | None:
        """End a turn; return the entry that begins the next one, or `None` without any."""
        lane = self._lanes.get(key)
        if lane is None:
            self.active.remove(key)
            return None
        if lane.held:
            lane.going = False
            return None
        assert lane.first is not None
        return self._pop(key, lane, lane.first)

    def leave_all(self, keys: Collection[Hashable]) -> tuple[list[E], list[Hashable]]:
        """Like `leave`, for several keys; return the entries that begin turns, and the held
        keys.
        """
        known = self._lanes
        lanes = {key: known[key] for key in dict.fromkeys(keys) if key in known} if known else {}
        self.active.difference_update(keys)
        self.active.update(lanes)
        ready: list[E] = []
        held: list[Hashable] = []
        for key, lane in lanes.items():
            if lane.held:
                lane.going = False
                held.append(key)
            elif lane.first is not None:
                ready.append(self._pop(key, lane, lane.first))
        return ready, held

    def next(self, key: Hashable) -> E | None:
        """Add the first entry of a lane to the current turn; `None` if it is empty or held."""
        lane = self._lanes.get(key)
        if lane is None or lane.held or lane.first is None:
            return None
        return self._pop(key, lane, lane.first)

    def next_many(self, key: Hashable, most: int) -> list[E]:
        lane = self._lanes.get(key)
        return [] if lane is None or lane.held else self._pop_many(key, lane, most)

    def with_followers(self, entries: Sequence[E], place: int, most: int) -> list[E]:
        """Return entries that begin turns, each followed by entries of its lane for the same batch.

        The current batch has room for `place` entries, each later one for `most`.
        """
        found: list[E] = []
        for entry in entries:
            followers = self.next_many(entry.lane_key, place - 1)
            found.append(entry)
            found += followers
            place = (place - 1 - len(followers)) or most
        return found

    def first(self, key: Hashable) -> E | None:
        lane = self._lanes.get(key)
        return None if lane is None or lane.held else lane.first

    def drop_first(self, key: Hashable) -> E | None:
        """Remove and return the first waiting entry of a key; `None` without any."""
        lane = self._lanes.get(key)
        return None if lane is None or lane.first is None else self._pop(key, lane, lane.first)

    def drop(self, entry: E) -> bool:
        """Remove a waiting entry; return whether it was waiting. O(1) at the front of its lane."""
        lane = self._lanes.get(entry.lane_key)
        before, each = None, None if lane is None else lane.first
        while each is not None and each is not entry:
            before, each = each, each.behind
        if lane is None or each is None:
            return False
        if before is None:
            self._pop(entry.lane_key, lane, entry)
            return True
        before.behind, entry.behind = entry.behind, None
        lane.last = before if lane.last is entry else lane.last
        lane.ahead = before if lane.ahead is entry else lane.ahead
        lane.length -= 1
        self._left([entry])
        return True

    # -- held lanes --------------------------------------------------------------------------------

    def hold(self, key: Hashable) -> None:
        """Stop an active key until `let_go`."""
        lane = self._lanes.get(key) or self._open(key)
        if not lane.held:
            lane.held = True
            self.held += 1

    def is_held(self, key: Hashable) -> bool:
        lane = self._lanes.get(key)
        return lane is not None and lane.held

    def take_held(self, key: Hashable, most: int) -> list[E]:
        """Begin a turn with the first entries of a held lane; the lane stays held."""
        lane = self._lanes[key]
        assert lane.held
        assert not lane.going
        lane.going = True
        return self._pop_many(key, lane, most)

    def drop_all(self, key: Hashable) -> list[E]:
        """Remove and return all waiting entries of a key."""
        lane = self._lanes.get(key)
        return [] if lane is None else self._pop_many(key, lane, lane.length)

    def let_go(self, key: Hashable) -> E | None:
        """Release a held lane; return the entry that begins a turn, or `None` without any."""
        lane = self._lanes.get(key)
        if lane is None or not lane.held:
            return None
        lane.held = False
        self.held -= 1
        if lane.first is None:
            del self._lanes[key]
            if not lane.going:
                self.active.remove(key)
            return None
        if lane.going:
            return None
        lane.going = True
        return self._pop(key, lane, lane.first)

    # -- from all lanes ----------------------------------------------------------------------------

    def drop_where(self, predicate: Callable[[E], bool]) -> list[E]:
        """Remove and return matching waiting entries, in order per lane; turns and holds remain.

        If `predicate` raises, nothing is changed.
        """
        found = [
            (key, lane, [(entry, predicate(entry)) for entry in lane]) for key, lane in self.lanes()
        ]
        gone: list[E] = []
        for key, lane, judged in found:
            dropped = [entry for entry, matches in judged if matches]
            if dropped:
                self._keep(key, lane, judged)
                gone += dropped
        for entry in gone:
            entry.behind = None
        self._left(gone)
        return gone

    def clear(self) -> list[E]:
        """Remove and return all waiting entries, in order per lane; turns and holds remain."""
        gone = [entry for _, lane in self.lanes() for entry in lane]
        for key, lane in self.lanes():
            lane.first = lane.last = lane.ahead = None
            lane.length = 0
            if not lane.held:
                del self._lanes[key]
        for entry in gone:
            entry.behind = None
        self.waiting = 0
        if self._arrivals is not None:
            self._arrivals.clear()
        return gone

    def _open(self, key: Hashable) -> Lane[E]:
        lane: Lane[E] = Lane(None)
        self._lanes[key] = lane
        return lane

    def _pop(self, key: Hashable, lane: Lane[E], first: E) -> E:
        lane.first = first.behind
        first.behind = None
        if lane.ahead is first:
            lane.ahead = None
        if lane.first is None:
            lane.last = None
            if not lane.held:
                del self._lanes[key]  # the key is going
        lane.length -= 1
        self.waiting -= 1
        if self._arrivals is not None:
            del self._arrivals[first]
        return first

    def _pop_many(self, key: Hashable, lane: Lane[E], most: int) -> list[E]:
        gone: list[E] = []
        entry = lane.first
        while entry is not None and len(gone) < most:
            gone.append(entry)
            behind = entry.behind
            entry.behind = None
            entry = behind
        lane.first = entry
        if entry is None:
            lane.last = None
            if not lane.held:
                del self._lanes[key]
        if lane.ahead is not None and lane.ahead in gone:
            lane.ahead = None
        lane.length -= len(gone)
        self._left(gone)
        return gone

    def _keep(self, key: Hashable, lane: Lane[E], judged: Sequence[tuple[E, bool]]) -> None:
        """Keep only the entries of a lane that do not match."""
        kept = [entry for entry, matches in judged if not matches]
        if lane.ahead is not None:
            overtaking = [entry for entry, _ in judged].index(lane.ahead) + 1
            ahead = [entry for entry, matches in judged[:overtaking] if not matches]
            lane.ahead = ahead[-1] if ahead else None
        lane.first, lane.last = (kept[0], kept[-1]) if kept else (None, None)
        for entry, behind in zip(kept, [*kept, None][1:], strict=True):
            entry.behind = behind
        lane.length = len(kept)
        if not kept and not lane.held:
            del self._lanes[key]

    def _left(self, gone: Sequence[E]) -> None:
        """Count entries that have left their lanes."""
        self.waiting -= len(gone)
        if self._arrivals is not None:
            for each in gone:
                del self._arrivals[each]
