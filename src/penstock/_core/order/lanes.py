"""Order per key, parallelism across keys: what may go now, and what waits behind it. Pure, and O(1)
per item.

A key is *going* while something of it is on its way; what comes meanwhile waits in the key's
*lane*. Whoever uses this keeps what goes (in a ready queue, a batch, a task), and tells when it has
ended; that gives the next of the lane.

1. The first of an idle key goes at once; nothing is made for it but its place in a set. A lane
   exists only while something waits in it, or while it is held. An idle key leaves nothing behind,
   and no key has a task, a lock or a container of its own: what waits hangs on one another.
2. At most one *turn* of a key is going at a time: from `enter` (or from what `leave` or `let_go`
   returned) to `leave`. `next` lets more of the lane go along with a turn that has not ended.
3. What is put back is in front of its lane again, in its old order.
4. A held lane keeps what it has, and what comes, until `let_go`; it is remembered even when it is
   empty.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterator, Sequence


class Entry:
    """Something that may have to wait in a lane. Subclass it to carry what it stands for."""

    __slots__ = ("behind", "key", "size")

    def __init__(self, key: Hashable, size: int = 0) -> None:
        self.key = key
        self.size = size
        self.behind: Self | None = None
        """The next of its lane."""


E = TypeVar("E", bound=Entry)


class Lane(Generic[E]):
    """What waits of one key."""

    __slots__ = ("first", "going", "held", "last", "length")

    def __init__(self, *, going: bool) -> None:
        self.first: E | None = None
        self.last: E | None = None
        self.length = 0
        self.going = going
        self.held = False

    def __iter__(self) -> Iterator[E]:
        entry = self.first
        while entry is not None:
            yield entry
            entry = entry.behind


class Lanes(Generic[E]):
    """The lanes of all active keys. `ages` keeps what `oldest` needs."""

    def __init__(self, *, ages: bool = False) -> None:
        self.active: set[Hashable] = set()
        """Every key that is going, held, or waited for.

        `key not in active` says that a key is idle, and `active.add(key)` that it is going: the
        short form of `enter`.
        """
        self._lanes: dict[Hashable, Lane[E]] = {}
        """Those of them in which something waits, or that are held."""
        self.waiting = 0
        """How many wait, in all lanes."""
        self.waiting_size = 0
        self.held = 0
        """How many lanes are held."""
        self._arrivals: OrderedDict[E, None] | None = OrderedDict() if ages else None

    def __len__(self) -> int:
        return len(self.active)

    def lanes(self) -> Iterator[tuple[Hashable, Lane[E]]]:
        """The lanes in which something waits, or that are held, with their keys."""
        return iter(tuple(self._lanes.items()))

    def lane(self, key: Hashable) -> Lane[E] | None:
        """The key's lane, if something waits in it, or it is held."""
        return self._lanes.get(key)

    @property
    def oldest(self) -> E | None:
        """Of all that wait, what came in first. Needs `ages`."""
        return next(iter(self._arrivals), None) if self._arrivals else None

    def firsts(self) -> list[E]:
        """The oldest waiting entry, with `ages`; otherwise the first of each lane."""
        if self._arrivals:
            return [next(iter(self._arrivals))]
        return [lane.first for _, lane in self.lanes() if lane.first is not None]

    # -- in and out --------------------------------------------------------------------------------

    def enter(self, entry: E) -> bool:
        """Whether `entry` may go at once, and its key is going then; otherwise it waits in its
        lane.
        """
        if entry.key in self.active:
            self.wait(entry)
            return False
        self.active.add(entry.key)
        return True

    def wait(self, entry: E) -> None:
        """Put `entry` at the end of the lane of its key, which is active."""
        lane = self._lanes.get(entry.key) or self._open(entry.key)
        if lane.last is None:
            lane.first = entry
        else:
            lane.last.behind = entry
        lane.last = entry
        lane.length += 1
        self.waiting += 1
        self.waiting_size += entry.size
        if self._arrivals is not None:
            self._arrivals[entry] = None

    def put_back(self, key: Hashable, entries: Sequence[E]) -> None:
        """What has gone, and was not applied, is in front of its lane again; `entries` in their old
        order. The turn has not ended by that.
        """
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
        self.waiting_size += sum([entry.size for entry in entries])

    def leave(self, key: Hashable) -> E | None:
        """A turn has ended. What is returned may go now, and begins the next; `None` if nothing
        may.
        """
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
        """As `leave` of each of these keys, once: what may go now, and the keys that are held."""
        lanes = (
            {key: lane for key in dict.fromkeys(keys) if (lane := self._lanes.get(key)) is not None}
            if self._lanes
            else {}
        )
        self.active.difference_update(keys)
        self.active.update(lanes)
        may_go: list[E] = []
        held: list[Hashable] = []
        for key, lane in lanes.items():
            if lane.held:
                lane.going = False
                held.append(key)
            elif lane.first is not None:
                may_go.append(self._pop(key, lane, lane.first))
        return may_go, held

    def next(self, key: Hashable) -> E | None:
        """The next of a lane, to go along with the turn that its key has; `None` if nothing waits,
        or it is held.
        """
        lane = self._lanes.get(key)
        return (
            None
            if lane is None or lane.held or lane.first is None
            else self._pop(key, lane, lane.first)
        )

    def next_many(self, key: Hashable, most: int) -> list[E]:
        """As `next`, again and again: at most so many."""
        lane = self._lanes.get(key)
        return [] if lane is None or lane.held else self._pop_many(key, lane, most)

    def first(self, key: Hashable) -> E | None:
        """What `next` would return."""
        lane = self._lanes.get(key)
        return None if lane is None or lane.held else lane.first

    def drop_first(self, key: Hashable) -> E | None:
        """Give up the first that waits of a key; `None` if nothing does."""
        lane = self._lanes.get(key)
        return None if lane is None or lane.first is None else self._pop(key, lane, lane.first)

    # -- held lanes --------------------------------------------------------------------------------

    def hold(self, key: Hashable) -> None:
        """Let nothing more of an active key go, until `let_go`."""
        lane = self._lanes.get(key) or self._open(key)
        if not lane.held:
            lane.held = True
            self.held += 1

    def is_held(self, key: Hashable) -> bool:
        """Whether the key's lane is held."""
        lane = self._lanes.get(key)
        return lane is not None and lane.held

    def take_held(self, key: Hashable, most: int) -> list[E]:
        """Let the first of a held lane go all the same, as a turn of its key; it stays held."""
        lane = self._lanes[key]
        assert lane.held
        assert not lane.going
        lane.going = True
        return self._pop_many(key, lane, most)

    def drop_all(self, key: Hashable) -> list[E]:
        """Give up everything that waits of a key."""
        lane = self._lanes.get(key)
        return [] if lane is None else self._pop_many(key, lane, lane.length)

    def let_go(self, key: Hashable) -> E | None:
        """The lane is held no longer. What is returned may go now, and begins a turn; `None` if
        nothing may.
        """
        lane = self._lanes.get(key)
        if lane is None or not lane.held:
            return None
        lane.held = False
        self.held -= 1
        if lane.going:
            if lane.first is None:
                del self._lanes[key]
            return None
        if lane.first is None:
            del self._lanes[key]
            self.active.remove(key)
            return None
        lane.going = True
        return self._pop(key, lane, lane.first)

    def clear(self) -> list[E]:
        """Give up everything that waits, each lane's in its order; return it. Who is going, and who
        is held, stays so.
        """
        gone = [entry for _, lane in self.lanes() for entry in lane]
        for key, lane in self.lanes():
            lane.first = lane.last = None
            lane.length = 0
            if not lane.held:
                del self._lanes[key]
        for entry in gone:
            entry.behind = None
        self.waiting = self.waiting_size = 0
        if self._arrivals is not None:
            self._arrivals.clear()
        return gone

    def _open(self, key: Hashable) -> Lane[E]:
        lane = self._lanes[key] = Lane(going=True)
        return lane

    def _pop(self, key: Hashable, lane: Lane[E], first: E) -> E:
        lane.first = first.behind
        first.behind = None
        if lane.first is None:
            lane.last = None
            if not lane.held:
                del self._lanes[key]  # the key is going, or nothing of it could wait
        lane.length -= 1
        self.waiting -= 1
        self.waiting_size -= first.size
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
        lane.length -= len(gone)
        self.waiting -= len(gone)
        self.waiting_size -= sum([entry.size for entry in gone])
        if self._arrivals is not None:
            for each in gone:
                del self._arrivals[each]
        return gone
