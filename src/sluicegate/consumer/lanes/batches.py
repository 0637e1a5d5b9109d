"""The messages that form a batch, and the time at which it is due. No clock, no task, no I/O.

1. A message joins a batch when it becomes ready, together with the messages behind it in its lane,
   in order and up to `max_per_key`. Later messages of the key join while the batch is open. So a
   key is in at most one batch, and messages of busy keys neither fill a batch nor start its time.
   If a number of messages is the only limit (`takes_arrivals`), messages join as they are admitted,
   and never become ready first.
2. A batch is full when it has `size` messages or `max_bytes`, or when the next message would exceed
   `max_bytes`. A message larger than that is a batch by itself. A full batch is due.
3. An open batch is due when its first message has waited for `max_wait`, when no more messages will
   be admitted (`hurry`), or when none can be admitted because the window is full (`is_stalled`).
4. With `one_lane`, each lane has its own batch.
5. A *suspect* is a message of a batch whose handler raised. Suspects form separate batches of at
   most half that size, which do not wait to become full.
6. A message that comes from the park store is a batch by itself, and does not wait.
7. Every message is examined once when it becomes ready or follows another one in a batch, and once
   when it joins. Messages that only wait are never examined.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ..._core.order.lanes import Lanes
    from .message import Message


LaneId: TypeAlias = "tuple[Lanes[Any], Hashable]"
Group: TypeAlias = "LaneId | int"

OnMismatch = Literal["terminate", "retry"]
ON_MISMATCH: tuple[OnMismatch, ...] = ("terminate", "retry")


class OpenBatch:
    """A batch that is being formed."""

    __slots__ = ("bytes", "group", "is_sealed", "limit", "messages", "per_lane", "since")

    def __init__(self, group: Group, limit: int, since: float) -> None:
        self.group = group
        self.limit = limit
        """Maximum number of messages if these are suspects, else 0."""
        self.since = since
        """The time of its first message; infinite until `take_in`, if it joined on arrival."""
        self.messages: list[Message] = []
        self.bytes = 0
        """The size of its messages, except those that joined on arrival."""
        self.per_lane: dict[Lanes[Any], dict[Hashable, int]] = {}
        """Number of messages by key, in each scope."""
        self.is_sealed = False

    def add(self, message: Message) -> None:
        """Append a message. The hot path: once per message."""
        self.messages.append(message)
        self.bytes += message.size
        lanes, key = message.claim.lanes, message.lane_key
        keys = self.per_lane.get(lanes)
        if keys is None:
            keys = self.per_lane[lanes] = {}
        keys[key] = keys.get(key, 0) + 1

    def count(self, message: Message) -> int:
        """Return the number of messages of this one's lane."""
        keys = self.per_lane.get(message.claim.lanes)
        return 0 if keys is None else keys.get(message.lane_key, 0)

    def begin(self, now: float) -> None:
        """Start its time."""
        self.since = now

    def seal(self) -> None:
        """Accept no more messages."""
        self.is_sealed = True

    def drop(self, is_dead: Callable[[Message], bool]) -> Unformed:
        """Remove messages; return which of them were the last of their lanes in this batch."""
        gone = [message for message in self.messages if is_dead(message)]
        self.messages = [message for message in self.messages if not is_dead(message)]
        heads: list[Message] = []
        others: list[Message] = []
        for message in gone:
            keys = self.per_lane[message.claim.lanes]
            keys[message.lane_key] -= 1
            self.bytes -= message.size
            if keys[message.lane_key]:
                others.append(message)
            else:
                del keys[message.lane_key]
                heads.append(message)
        return Unformed(heads, others)


class Unformed(NamedTuple):
    """Messages removed from batches."""

    heads: list[Message]
    """One message of each lane that is no longer in a batch: its turn must be ended."""
    others: list[Message]


class BatchFormer:
    """Groups ready messages into batches."""

    def __init__(self, limits: BatchLimits, ready: deque[Message], followed: list[Message]) -> None:
        self._limits = limits
        self._ready = ready
        self._followed = followed
        """Messages that entered the lane of an active key since the last `take_in`."""
        self._open: dict[Group, OpenBatch] = {}
        """Open batches, in the order in which they were opened."""
        self._suspects: list[OpenBatch] = []
        self._sealed: deque[OpenBatch] = deque()
        self._hurries = False
        self.takes_arrivals = (
            not limits.one_lane and limits.max_bytes == limits.max_per_key == math.inf
        )
        """Whether messages join by `open` and `close` as they are admitted."""
        self.is_stalled = False
        """Whether nothing can be admitted before a batch has been handled."""

    def stall(self, *, is_stalled: bool) -> None:
        """Record whether the window is full."""
        self.is_stalled = is_stalled

    def hurry(self, now: float) -> None:
        """Record that no more messages will be admitted, so that no batch waits any longer."""
        self.take_in(now)
        self._hurries = True

    def open(self, lanes: Lanes[Any]) -> tuple[list[Message], dict[Hashable, int], int]:
        """Return the messages of the open batch, the number of its messages by key in these lanes,
        and the number of messages until it is full. The caller adds messages, and then calls
        `close`.
        """
        batch = self._open.get(0)
        if batch is None:
            batch = self._open[0] = OpenBatch(0, 0, math.inf)
        return (
            batch.messages,
            batch.per_lane.setdefault(lanes, {}),
            self._limits.size - len(batch.messages),
        )

    def close(self) -> None:
        """Seal the open batch if it is full; drop it if it is empty."""
        batch = self._open[0]
        if len(batch.messages) >= self._limits.size:
            self._seal(batch)
        elif not batch.messages:
            del self._open[0]

    def take_in(self, now: float) -> bool:
        """Let all ready messages join batches; return whether `next_due` has changed."""
        ready, before = self._ready, self._oldest
        if before is not None and before.since == math.inf:
            before.begin(now)
            before = None
        while ready:
            self._begin(ready.popleft(), now)
        for message in self._followed:
            batch = self._open.get(lane_of(message) if self._limits.one_lane else 0)
            if batch is not None and batch.count(message):
                self._pull(batch, message)
        self._followed.clear()
        for batch in self._suspects:
            if not batch.is_sealed:
                self._seal(batch)
        self._suspects.clear()
        return self._oldest is not before

    def is_due(self, now: float, *, is_idle: bool) -> bool:
        """Return whether a batch is due; `is_idle` states that none is being handled."""
        if self._sealed:
            return True
        oldest = self._oldest
        if oldest is None:
            return False
        is_late = now >= oldest.since + self._limits.max_wait
        return is_late or self._hurries or (is_idle and self.is_stalled)

    def take(self, now: float, *, is_idle: bool) -> list[Message] | None:
        """Remove and return the batch that is due, full ones first; `None` without one."""
        if not self.is_due(now, is_idle=is_idle):
            return None
        if not self._sealed and (oldest := self._oldest) is not None:
            self._seal(oldest)
        return self._sealed.popleft().messages

    @property
    def next_due(self) -> float | None:
        """The time at which the oldest open batch is due; `None` without one or without a time
        limit.
        """
        oldest = self._oldest
        due = None if oldest is None else oldest.since + self._limits.max_wait
        return None if due == float("inf") else due

    @property
    def messages(self) -> list[Message]:
        """Messages in batches that no worker has taken yet."""
        return [message for batch in self._all for message in batch.messages]

    @property
    def full(self) -> list[Message]:
        """Messages in full batches, which wait for a worker."""
        return [message for batch in self._sealed for message in batch.messages]

    @property
    def forming(self) -> list[tuple[float, list[Message]]]:
        """Messages of each batch that is not full, and its due time; infinite without a
        time limit.
        """
        wait = self._limits.max_wait
        return [(batch.since + wait, list(batch.messages)) for batch in self._open.values()]

    def drop(self, is_dead: Callable[[Message], bool], *, keep_next: bool = False) -> Unformed:
        """Remove messages; with `keep_next`, except those of the next batch (with `one_lane`, of
        each lane's next batch).
        """
        dropped = Unformed([], [])
        kept: set[object] = set()
        for batch in self._all:
            scope = batch.group if self._limits.one_lane else None
            if keep_next and scope not in kept:
                kept.add(scope)
                continue
            heads, others = batch.drop(is_dead)
            dropped.heads.extend(heads)
            dropped.others.extend(others)
        self._sealed = deque([batch for batch in self._sealed if batch.messages])
        self._open = {group: batch for group, batch in self._open.items() if batch.messages}
        return dropped

    # -- inside ------------------------------------------------------------------------------------

    @property
    def _all(self) -> list[OpenBatch]:
        """All batches; the next one comes first."""
        return [*self._sealed, *self._open.values()]

    @property
    def _oldest(self) -> OpenBatch | None:
        return next(iter(self._open.values()), None)

    def _begin(self, message: Message, now: float) -> None:
        """Begin a key's turn in a batch. The hot path: once per key and batch."""
        limits, claim, size = self._limits, message.claim, message.size
        limit = limit_of(message) if claim.attempts or message.index < 0 else 0
        group = lane_of(message) if limits.one_lane else limit
        batch = self._open.get(group)
        if batch is not None and batch.bytes + size > limits.max_bytes:
            self._seal(batch)
            batch = None
        if batch is None:
            batch = self._open[group] = OpenBatch(group, limit, now)
            if limit:
                self._suspects.append(batch)
        batch.add(message)
        if len(batch.messages) >= (limit or limits.size) or batch.bytes >= limits.max_bytes:
            self._seal(batch)
        elif message.lane_key in claim.lanes.waiting_lanes:
            self._pull(batch, message)

    def _pull(self, batch: OpenBatch, member: Message) -> None:
        """Add the messages behind those of a batch, in the order of their key."""
        limits, lanes, key = self._limits, member.claim.lanes, member.lane_key
        room = limits.max_per_key - batch.count(member)
        while room > 0 and not batch.is_sealed:
            following = lanes.first(key)
            if following is None or limit_of(following) != batch.limit:
                return
            if batch.bytes + following.size > limits.max_bytes:
                self._seal(batch)
                return
            lanes.next(key)
            batch.add(following)
            room -= 1
            most = batch.limit or limits.size
            if len(batch.messages) >= most or batch.bytes >= limits.max_bytes:
                self._seal(batch)

    def _seal(self, batch: OpenBatch) -> None:
        batch.seal()
        del self._open[batch.group]
        self._sealed.append(batch)


def lane_of(message: Message) -> LaneId:
    """Return a lane's identity: equal keys of two scopes are two lanes."""
    return message.claim.lanes, message.lane_key


def limit_of(message: Message) -> int:
    """Return the maximum size of a batch with this message if it is a suspect, else 0."""
    if message.is_unparked:
        return 1
    return message.attempts.batch_limit if message.claim.attempts else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The limits at which a batch is full or due."""

    size: int = 500
    max_wait: float = 0.2
    """Seconds; infinite without a time limit."""
    max_bytes: float = math.inf
    max_per_key: float = math.inf
    one_lane: bool = False
    """Whether a batch contains messages of one lane only."""
    on_mismatch: OnMismatch = "terminate"
