"""Keys that do not simply continue with their next record. No clock, no task, no I/O.

Parked keys:

1. A parked key is *held* in its lanes: none of its records starts, and later records wait in its
   lane until they are written to the park store.
2. Its records are written or replayed one at a time; each such step is a turn of the key.
3. A key is parked here while its scope is claimed. It is dropped with the last claim of the
   scope, and the next owner reads it from the store.

Keys with more waiting records than `max_per_key`:

4. A lane accepts `max_per_key` waiting records. Later records of the key are *held back*: they keep
   the order of their arrival and count in the window, which limits them.
5. A claim with held-back records is fetched from last, so the other claims get the room first. It
   is still fetched from if room remains, so its other keys continue until the window is full.
6. A key is checked when its records arrive and must wait, and before each fetch while it is
   crowded. There is no check while fewer records wait than one lane accepts.

Events whose handlers have ended before the events are complete:

7. An event that is *out* has no turn: later events of its lane are handled. It keeps its place in
   the window, and the position does not pass it.
8. When its job is done, it returns to the front of its lane, behind the events that returned before
   it: finalisers run in the order in which the jobs were done, and exclude handlers.
9. A lane is *held* while an event waits for room for its job: no later event begins, but finalisers
   do, so that completed jobs make room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Collection, Hashable, Iterable, Iterator

    from ..._core.order.lanes import Lanes
    from ..jobs.context import EventContext
    from ..progress.claim import Claim
    from .message import Message


class ParkedKey:
    """A key whose records go to the park store."""

    __slots__ = ("is_replayed", "key", "lanes", "name")

    def __init__(self, lanes: Lanes[Message], key: Hashable, name: str) -> None:
        self.lanes = lanes
        self.key = key
        self.name = name
        """The key's name in the store."""
        self.is_replayed = False

    def replay(self, *, begins: bool) -> None:
        """Begin or end the replay of its parked records; new records wait in the lane meanwhile."""
        self.is_replayed = begins

    @property
    def is_going(self) -> bool:
        """Whether a turn of the key is running."""
        lane = self.lanes.lane(self.key)
        return lane is not None and lane.going

    def next(self) -> Message | None:
        """Begin a turn with the next record to park; return `None` without one, or during another
        turn.
        """
        if self.is_replayed or self.is_going or not self.lanes.length(self.key):
            return None
        return self.lanes.take_held(self.key, 1)[0]


class ParkedKeys:
    """The parked keys, by their lanes."""

    def __init__(self) -> None:
        self._keys: dict[tuple[int, Hashable], ParkedKey] = {}
        self._claims: dict[int, list[Claim]] = {}
        self._fed: dict[ParkedKey, None] = {}

    def __iter__(self) -> Iterator[ParkedKey]:
        return iter(tuple(self._keys.values()))

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, parked: ParkedKey) -> bool:
        return self._keys.get((id(parked.lanes), parked.key)) is parked

    def of(self, message: Message) -> ParkedKey | None:
        """Return the parked key of a message, or `None`."""
        return self._keys.get((id(message.claim.lanes), message.lane_key))

    def has(self, lanes: Lanes[Message], key: Hashable) -> bool:
        """Return whether a key is parked."""
        return (id(lanes), key) in self._keys

    def begin(self, claim: Claim) -> None:
        """Add a claim to its scope."""
        self._claims.setdefault(id(claim.lanes), []).append(claim)

    def claims_of(self, parked: ParkedKey) -> list[Claim]:
        """Return the claims in the scope of a key."""
        return self._claims.get(id(parked.lanes), [])

    def park(self, lanes: Lanes[Message], key: Hashable, name: str) -> ParkedKey:
        """Hold a key, whether it is idle or has a running turn."""
        known = self._keys.get((id(lanes), key))
        if known is not None:
            return known
        parked = self._keys[id(lanes), key] = ParkedKey(lanes, key, name)
        if lanes.length(key):
            self._fed[parked] = None
        if key in lanes.active:
            lanes.hold(key)
        else:
            lanes.active.add(key)
            lanes.hold(key)
            lanes.leave(key)
        return parked

    def forget(self, parked: ParkedKey) -> Message | None:
        """Let a key continue; return the message that begins its turn, if any."""
        del self._keys[id(parked.lanes), parked.key]
        self._fed.pop(parked, None)
        return parked.lanes.let_go(parked.key)

    def end(self, claims: Collection[Claim]) -> list[Message]:
        """Forget the keys of scopes without another claim; return the messages that begin turns."""
        for claim in claims:
            of_scope = self._claims.get(id(claim.lanes), [])
            if claim in of_scope:
                of_scope.remove(claim)
                if not of_scope:
                    del self._claims[id(claim.lanes)]
        gone = [parked for parked in self if id(parked.lanes) not in self._claims]
        found = [self.forget(parked) for parked in gone]
        return [message for message in found if message is not None]

    def note(self, message: Message) -> None:
        """Mark the key of a record that waits in its lane, if the key is parked."""
        parked = self.of(message)
        if parked is not None:
            self._fed[parked] = None

    def feed(self, parked: ParkedKey) -> bool:
        """Mark a key if its records wait for the end of its running turn; return whether
        they do.
        """
        waits = parked in self and parked.is_going and not parked.is_replayed
        if waits and (waits := parked.lanes.length(parked.key) > 0):
            self._fed[parked] = None
        return waits

    @property
    def are_fed(self) -> bool:
        """Whether records wait to be parked."""
        return bool(self._fed)

    def take_fed(self) -> list[ParkedKey]:
        """Return the marked keys and unmark them. Keys with a running turn stay marked."""
        fed = [parked for parked in self._fed if not parked.is_going]
        for parked in fed:
            del self._fed[parked]
        return fed


class CrowdedKeys:
    """The crowded keys of each claim."""

    def __init__(self, most: int) -> None:
        self.most = most
        """The limit `max_per_key`."""
        self._keys: dict[Claim, set[Hashable]] = {}

    def __bool__(self) -> bool:
        """Whether any key may be crowded."""
        return bool(self._keys)

    def note(self, message: Message) -> None:
        """Check the key of a record that waits in its lane."""
        if self._held_back(message.claim, message.lane_key):
            self._keys.setdefault(message.claim, set()).add(message.lane_key)

    def look(self, claim: Claim, first: int) -> None:
        """Check the keys of waiting records with delivery indices from `first` on.

        Only the last record of each key is checked. Costs nothing while fewer records wait than one
        lane accepts.
        """
        if claim.lanes.waiting <= self.most:
            return
        for _, lane in claim.lanes.lanes():
            last = lane.last
            if last is None or lane.length <= self.most:
                continue
            if last.claim is claim and last.index >= first:
                self.note(last)

    def holds_back(self, claim: Claim) -> bool:
        """Return whether a lane crowded by this claim still exceeds its limit."""
        keys = self._keys.get(claim)
        if keys is None:
            return False
        keys.difference_update([key for key in keys if not self._held_back(claim, key)])
        if not keys:
            del self._keys[claim]
        return bool(keys)

    def end(self, claims: Collection[Claim]) -> None:
        """Forget claims."""
        for claim in claims:
            self._keys.pop(claim, None)

    def _held_back(self, claim: Claim, key: Hashable) -> int:
        """Return the number of held-back records of a key."""
        return max(0, claim.lanes.length(key) - self.most)


class CompletedJobs:
    """The incomplete events: those that are out, those that wait to be finalised, and those whose
    turns run or are repeated.
    """

    def __init__(self, ready: deque[Message]) -> None:
        self._ready = ready
        self.contexts: dict[Message, EventContext] = {}
        """Contexts of incomplete events, from the start of their handler on."""

    @property
    def out(self) -> list[Message]:
        """The events that are out."""
        return [message for message, context in self._all() if context.turn.is_out]

    @property
    def waiting(self) -> list[Message]:
        """The events that wait for their turn to be finalised."""
        return [message for message, context in self._all() if context.turn.waits]

    def _all(self) -> tuple[tuple[Message, EventContext], ...]:
        """Return a snapshot, which other threads may use."""
        return tuple(self.contexts.items())

    def come_in(self, context: EventContext) -> bool:
        """Queue an event to be finalised; return whether its turn may begin now."""
        context.turn.come_in()
        message = context.message
        lanes, key = message.claim.lanes, message.lane_key
        if key not in lanes.active:
            lanes.active.add(key)
            self._ready.append(message)
            return True
        lanes.put_ahead(message)
        return lanes.held > 0 and self.go_on(lanes, key)

    def go_on(self, lanes: Lanes[Message], key: Hashable) -> bool:
        """Begin the turn of the next event to be finalised, if its lane is held and has no running
        turn; return whether it begins.
        """
        lane = lanes.lane(key)
        if lane is None or not lane.held or lane.going or lane.first is None:
            return False
        context = self.contexts.get(lane.first)
        if context is None or not context.turn.waits:
            return False
        self._ready += lanes.take_held(key, 1)
        return True

    def drop_after(self, message: Message) -> list[Message]:
        """Remove and return the later messages of the same lane and claim."""
        claim, key = message.claim, message.lane_key

        def is_later(other: Message) -> bool:
            return other.claim is claim and other.lane_key == key and other.index > message.index

        gone = claim.lanes.drop_where(is_later)
        self.forget(gone)
        return gone

    def forget(self, gone: Iterable[Message]) -> None:
        """Forget events that leave with their claims."""
        for message in gone:
            self.contexts.pop(message, None)
