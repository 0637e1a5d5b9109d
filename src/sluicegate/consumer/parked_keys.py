"""The parked keys of this process. No clock, no task, no I/O.

1. A parked key is *held* in its lanes: none of its records starts, and later records wait in its
   lane until they are written to the park store.
2. Its records are written or replayed one at a time; each such step is a turn of the key.
3. A key is parked here while its scope is claimed. It is forgotten with the last claim of the
   scope, and the next owner reads it from the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterator

    from .._core.order.lanes import Lanes
    from .claim import Claim
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

    def arrived(self, message: Message) -> None:
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
