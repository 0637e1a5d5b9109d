"""The messages that may be handled now. No clock, no task, no I/O.

1. A message is *ready*, *running*, *backing off*, *blocked*, or *waiting* in its lane behind one of
   these. All of them are in the window.
2. `ready` contains the first message of each lane that may start, once and in the order in which
   they became ready, so each ready key starts within one round. A worker that takes a message from
   it runs it, and ends its turn by `finish`, `back_off`, `block` or `put_back`. After the last
   three, the message runs again with its record's own value.
3. A message that backs off or is blocked keeps its key: no later message of the key starts before
   it. With `keeps_key=False` it releases its key, and enters its lane again when it is due.
4. With `form_batches`, the batch former takes ready messages and the messages behind them. These
   count as running, except that they leave with their claims.
5. Messages removed with their claims free their places. Running messages keep their key until they
   end, even beyond the end of their claim.
"""

from __future__ import annotations

from collections import defaultdict, deque
from heapq import heappop, heappush
from itertools import count
from math import inf, isnan
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from ..._core.order.keys import PLAIN
from ..._core.order.lanes import Lanes
from ..._core.runtime.loops import Exit
from ..._core.source import UndecodableRecord
from .batches import BatchFormer
from .held import CompletedJobs, CrowdedKeys, ParkedKeys
from .keys import alone
from .message import Message
from .window import RecordSizes

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Hashable,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from ..._core.source import SourceRecord, TopicPartition
    from ..progress.claim import Claim
    from .batches import BatchLimits
    from .held import ParkedKey
    from .keys import KeyRules
    from .window import Window

E = TypeVar("E")
G = TypeVar("G", bound="Hashable")


class BackingOff(NamedTuple):
    """A message in backoff."""

    message: Message
    keeps_key: bool


class Schedule:
    """The unsettled messages of a consumer, and the order in which they are handled."""

    message_type: type[Message] = Message

    def __init__(
        self,
        keys: KeyRules,
        window: Window,
        size_of: Callable[[SourceRecord], int] | None = None,
        *,
        max_per_key: int | None = None,
    ) -> None:
        self.ready: deque[Message] = deque()
        self.window = window
        self.retries: RetryHeap[BackingOff] = RetryHeap()
        self.blocked: dict[Message, BaseException] = {}
        """Blocked messages, with their errors."""
        self.parked = ParkedKeys()
        self.crowded = None if max_per_key is None else CrowdedKeys(max_per_key)
        """Keys with more waiting messages than `max_per_key`; `None` without that limit."""
        self.former: BatchFormer | None = None
        self.completed = CompletedJobs(self.ready)
        self._followed: list[Message] | None = None
        self._keys = keys
        self._takes_record_key = keys.takes_record_key
        self._lane_of = keys.lane_of
        self.sizes = RecordSizes(size_of)
        """Sizes of records, and the errors of records without a size."""
        self._lanes: dict[Hashable, Lanes[Message]] = {}
        self.has_undecodable = False
        """Whether an unsettled message may have a record that could not be decoded, or be cancelled
        (`refused`).
        """

    @property
    def acknowledged(self) -> int:
        """Number of messages settled by an acknowledgement."""
        return self.window.released

    # -- batches -----------------------------------------------------------------------------------

    def form_batches(self, limits: BatchLimits) -> BatchFormer:
        """Let a batch former take ready messages from now on."""
        self._followed = []
        self.former = BatchFormer(limits, self.ready, self._followed)
        return self.former

    @property
    def formed(self) -> list[Message]:
        """Messages of batches that are being formed or wait for a worker."""
        return [] if self.former is None else self.former.messages

    def stall(self, *, is_stalled: bool) -> None:
        """Record whether no message can be admitted before others leave."""
        if self.former is not None:
            self.former.stall(is_stalled=is_stalled)

    def complete(self, now: float) -> None:
        """Record that no further messages will be admitted."""
        if self.former is not None:
            self.former.hurry(now)

    def next_due(self, now: float) -> float:
        """Return when the next backoff ends or the next batch is due; infinite if never.

        A batch that is already due waits for a worker, not for its time.
        """
        retry, batch = self.retries.next_due, None if self.former is None else self.former.next_due
        times = [retry, batch if batch is not None and batch > now else None]
        return min((due for due in times if due is not None), default=inf)

    # -- claims ------------------------------------------------------------------------------------

    def lanes_for(self, partition: TopicPartition) -> Lanes[Message]:
        """Return the lanes of a partition's scope; an earlier claim's while they are active."""
        return self._lanes.setdefault(self._keys.scope_of(partition), Lanes())

    def forget_idle_lanes(self, claims: Iterable[Claim]) -> None:
        """Drop the lanes without an active key, except those of these claims."""
        if len(self._lanes) > 1:
            used = {id(claim.lanes) for claim in claims}
            kept = [(scope, it) for scope, it in self._lanes.items() if it.active or id(it) in used]
            self._lanes = dict(kept)

    @property
    def active(self) -> int:
        """Number of keys that have a running turn, are held, or have waiting messages."""
        return sum(map(len, self._lanes.values()))

    # -- in ----------------------------------------------------------------------------------------

    def admit(self, claim: Claim, records: Sequence[SourceRecord]) -> Admitted:
        """Admit the next records of an open claim, as many as the window has room for."""
        fresh = claim.new_of(records)
        if not fresh:
            return Admitted(len(records), [])
        known = len(records) - len(fresh)
        if UndecodableRecord in map(type, fresh):
            self.has_undecodable = True
        sizes = self.sizes.of(fresh)
        count = self.window.fitting(sizes)
        if count == 0:
            return Admitted(known, [])
        if count < len(fresh):
            fresh, sizes = fresh[:count], sizes[:count]
        first, last = fresh[0].offset, fresh[-1].offset
        index = claim.tracker.admit(first, last, count, lambda: [record.offset for record in fresh])
        indices: Sequence[int] = range(index, index + count)
        if claim.replay.end > first:
            fresh, sizes, indices = claim.unsettled(fresh, sizes, indices)
        broken = self._enter(claim, fresh, sizes, indices)
        if self.crowded is not None:
            self.crowded.look(claim, index)
        self.window.take(len(fresh), sum(sizes))
        active = claim.lanes.active
        is_news = None in active and self._keys.has_first_keyless(active)
        return Admitted(known + count, broken, is_news)

    def _enter(
        self,
        claim: Claim,
        records: Sequence[SourceRecord],
        sizes: Sequence[int],
        indices: Sequence[int],
    ) -> list[Broken]:
        """Let each record begin the turn of its key, or wait in its lane behind others."""
        keys, broken = self._keys_of(records), list[Broken]()
        if keys is None:
            records, sizes, indices, keys = self._without_broken(
                claim, records, sizes, indices, broken
            )
        if self.former is not None and self.former.takes_arrivals and not claim.attempts:
            self._join(claim, keys, records, sizes, indices)
        else:
            self._queue(claim, keys, records, sizes, indices)
        return broken

    def _keys_of(self, records: Sequence[SourceRecord]) -> list[Hashable] | None:
        """Return the keys of the lanes of records; `None` if one of them is broken."""
        if self.sizes.errors:
            return None
        try:
            if self._takes_record_key and not self.has_undecodable:
                keys: list[Hashable] = [record.key for record in records]
                if PLAIN.issuperset(map(type, keys)):
                    return keys
            return [*map(self._lane_of, records)]
        except BaseException as error:
            if isinstance(error, Exit):
                raise
            return None

    def _without_broken(
        self,
        claim: Claim,
        records: Sequence[SourceRecord],
        sizes: Sequence[int],
        indices: Sequence[int],
        broken: list[Broken],
    ) -> tuple[list[SourceRecord], list[int], list[int], list[Hashable]]:
        """Return the records that have a key and a size, and their keys; add the messages of the
        others to `broken`.
        """
        good: list[tuple[SourceRecord, int, int, Hashable]] = []
        for record, size, index in zip(records, sizes, indices, strict=True):
            error = self.sizes.errors.get(record.offset)
            try:
                key = self._lane_of(record)
            except BaseException as raised:  # it becomes the reason of a dead letter
                if isinstance(raised, Exit):
                    raise
                key, error = alone(record), error or raised
            if error is None:
                good.append((record, size, index, key))
            else:
                broken.append(Broken(self._broken(key, size, record, claim, index), error))
        return (
            [each[0] for each in good],
            [each[1] for each in good],
            [each[2] for each in good],
            [each[3] for each in good],
        )

    def _broken(
        self, key: Hashable, size: int, record: SourceRecord, claim: Claim, index: int
    ) -> Message:
        """Return the message of a record without a key or a size, in a lane of its own."""
        del key
        message = Message(alone(record), size, record, claim, index)
        claim.lanes.active.add(message.lane_key)
        return message

    def _queue(
        self,
        claim: Claim,
        keys: Sequence[Hashable],
        records: Sequence[SourceRecord],
        sizes: Sequence[int],
        indices: Sequence[int],
    ) -> None:
        """Queue each record in `ready`, or behind others of its key. The hot path."""
        active, ready = claim.lanes.active, self.ready
        wait = _noting(claim.lanes.wait, self._looks())
        for key, record, size, index in zip(keys, records, sizes, indices, strict=True):
            message = Message(key, size, record, claim, index)
            if key in active:
                wait(message)
            else:
                active.add(key)
                ready.append(message)

    def _join(
        self,
        claim: Claim,
        keys: Sequence[Hashable],
        records: Sequence[SourceRecord],
        sizes: Sequence[int],
        indices: Sequence[int],
    ) -> None:
        """Let each record join the open batch, or wait behind others of its key. The hot path."""
        lanes, former = claim.lanes, self.former
        assert former is not None
        active, waiting = lanes.active, lanes.waiting_lanes
        wait = _noting(lanes.wait, [self.parked.note] if self.parked else [])
        messages, counts, room = former.open(lanes)
        for key, record, size, index in zip(keys, records, sizes, indices, strict=True):
            message = Message(key, size, record, claim, index)
            if key not in active:
                active.add(key)
                counts[key] = 1
            elif key in counts and key not in waiting:
                counts[key] += 1
            else:
                wait(message)
                continue
            messages.append(message)
            room -= 1
            if not room:
                former.close()
                messages, counts, room = former.open(lanes)
        former.close()

    def _looks(self) -> list[Callable[[Message], None]]:
        """Return the functions to call for each waiting record; none on the fast path."""
        looks: list[Callable[[Message], None]] = []
        if self._followed is not None:
            looks.append(self._followed.append)
        if self.parked:
            looks.append(self.parked.note)
        return looks

    # -- the end of a turn -------------------------------------------------------------------------

    def acknowledge(self, message: Message) -> bool:
        """Settle a handled message and `finish` it; return whether that has an effect.

        The hot path: once per message.
        """
        claim = message.claim
        tracker, lanes, key = claim.tracker, claim.lanes, message.lane_key
        at = message.index - tracker.base
        if claim.is_closed or at < 0 or tracker.bits[at]:
            return False
        tracker.bits[at] = 1
        if claim.attempts:
            claim.attempts.pop(message.index, None)
        if key in lanes.waiting_lanes:
            following = lanes.leave(key)
            if following is not None:
                self.ready.append(following)
            else:
                self.completed.go_on(lanes, key)
        else:
            lanes.active.remove(key)
        self.window.release(message.size)
        return True

    def acknowledge_all(self, batch: Sequence[Message]) -> bool:
        """Like `acknowledge`, for all messages of the turns of their keys.

        Returns false, and changes nothing, if one of them is settled or its claim has ended.
        """
        by_claim = _grouped(batch, lambda claim: claim)
        settled = {claim: [each.index for each in own] for claim, own in by_claim.items()}
        for claim, indices in settled.items():
            if claim.is_closed or not claim.tracker.are_unfinished(indices):
                return False
        for claim, indices in settled.items():
            claim.tracker.done_all(indices)
            if claim.attempts:
                for index in indices:
                    claim.attempts.pop(index, None)
        self._end_turns(batch)
        self.window.release_all(len(batch), sum([message.size for message in batch]))
        return True

    def _end_turns(self, batch: Sequence[Message]) -> None:
        """Free the keys of messages for the next messages of their lanes."""
        for lanes, messages in _grouped(batch, lambda claim: claim.lanes).items():
            following, _held = lanes.leave_all([message.lane_key for message in messages])
            self.ready += following

    def finish(self, message: Message) -> None:
        """Free the key and the place of a message that is settled, or left to a later claim."""
        context = self.completed.contexts.pop(message, None)
        if context is None or not context.turn.leave():
            self.end_turn(message)
        self.window.give(1, message.size)

    def end_turn(self, message: Message) -> None:
        """Free the key of a message for the next message of its lane."""
        lanes, key = message.claim.lanes, message.lane_key
        following = lanes.leave(key)
        if following is not None:
            self.ready.append(following)
        elif lanes.held:
            self.completed.go_on(lanes, key)

    def back_off(self, message: Message, due: float, *, keeps_key: bool = True) -> None:
        """Run a message again at `due`."""
        message.begin_again()
        self.retries.push(due, BackingOff(message, keeps_key))
        if not keeps_key:
            self.end_turn(message)

    def release_due(self, now: float) -> None:
        """Make ready the messages whose backoff has ended."""
        for message, keeps_key in self.retries.pop_due(now):
            if keeps_key or message.claim.lanes.enter(message):
                self._start(message)
            else:
                for look in self._looks():
                    look(message)
                if self.crowded is not None:
                    self.crowded.note(message)

    def block(self, message: Message, error: BaseException) -> None:
        """Keep a message and its key until `unblock`."""
        message.begin_again()
        self.blocked[message] = error

    def unblock(self, message: Message) -> None:
        """Make a blocked message ready."""
        del self.blocked[message]
        self._start(message)

    def _start(self, message: Message) -> None:
        """Begin the next attempt of a message."""
        self.ready.append(message)

    def take_blocked(self, message: Message) -> None:
        """Begin the turn of a blocked message outside the ready queue."""
        del self.blocked[message]

    def refuse_some(self) -> None:
        """Note that some messages may be cancelled."""
        self.has_undecodable = True

    def replay(self, message: Message) -> None:
        """Begin the turn of a message from the park store, whose key is parked."""
        lanes, key = message.claim.lanes, message.lane_key
        lanes.put_back(key, [message])
        lanes.take_held(key, 1)
        self.window.take(1, message.size)
        self.has_undecodable = True
        self.ready.append(message)

    def begin_parking(self, message: Message) -> None:
        """Begin to park the key of a message whose turn continues."""

    def release(self, parked: ParkedKey) -> None:
        """Let a parked key continue."""
        following = self.parked.forget(parked) if parked in self.parked else None
        if following is not None:
            self.ready.append(following)

    def acknowledge_first(self, message: Message) -> bool:
        """Like `acknowledge`, but the turn of the key continues with the messages behind."""
        has_effect = message.claim.settle(message.index)
        if has_effect:
            self.window.release(message.size)
        else:
            self.window.give(1, message.size)
        return has_effect

    def leave_first(self, message: Message) -> None:
        """Leave a message to a later claim; the turn of its key continues."""
        self.window.give(1, message.size)

    @property
    def is_stuck(self) -> bool:
        """Whether every unsettled message is blocked, or waits behind a blocked one."""
        behind = [message.claim.lanes.length(message.lane_key) for message in self.blocked]
        return self.window.messages == len(self.blocked) + sum(behind)

    def put_back(self, key: Hashable, messages: Sequence[Message]) -> None:
        """Put unsettled messages back at the front of their lane."""
        for message in messages:
            message.begin_again()
        if messages:
            messages[0].claim.lanes.put_back(key, messages)

    # -- out ---------------------------------------------------------------------------------------

    def drop(
        self, claims: Collection[Claim], *, keep_batch: bool = False, keep_jobs: bool = False
    ) -> list[Message]:
        """Remove and return all messages of these claims except running ones.

        With `keep_batch`, the batch being formed stays. With `keep_jobs`, events that wait to be
        finalised stay, except failed ones.
        """
        dead = set(map(id, claims))

        def is_dead(message: Message) -> bool:
            return id(message.claim) in dead and not (keep_jobs and message.finalise)

        waiting = [
            message
            for lanes in {id(claim.lanes): claim.lanes for claim in claims}.values()
            for message in lanes.drop_where(is_dead)
        ]
        backing_off = self.retries.remove_where(lambda entry: id(entry.message.claim) in dead)
        blocked = [message for message in self.blocked if id(message.claim) in dead]
        for message in blocked:
            del self.blocked[message]
        heads = [message for message in self.ready if is_dead(message)]
        heads += [entry.message for entry in backing_off if entry.keeps_key]
        heads += blocked
        gone = [entry.message for entry in backing_off if not entry.keeps_key]
        if self.former is not None:
            formed = self.former.drop(is_dead, keep_next=keep_batch)
            heads += formed.heads
            gone += formed.others
        left = [message for message in self.ready if not is_dead(message)]
        self.ready.clear()  # in place, since workers hold a reference
        self.ready.extend(left)
        for message in heads:
            self.end_turn(message)
        if self.crowded is not None:
            self.crowded.end(claims)
        self.ready.extend(self.parked.end(claims))
        gone += [*waiting, *heads]
        self.completed.forget(gone)
        self.window.give(len(gone), sum([message.size for message in gone]))
        return gone

    @property
    def waiting(self) -> int:
        """Number of messages that wait in lanes."""
        return sum([lanes.waiting for lanes in tuple(self._lanes.values())])

    def waiting_behind(self) -> Iterable[Message]:
        """Yield the messages in lanes, in order per lane."""
        for lanes in self._lanes.values():
            for _, lane in lanes.lanes():
                yield from lane


def _grouped(batch: Sequence[Message], of: Callable[[Claim], G]) -> Mapping[G, Sequence[Message]]:
    """Group messages by their claims, or by a property of these, in order."""
    claims = {message.claim for message in batch}
    if len(claims) == 1:
        return {of(claims.pop()): batch}
    found: defaultdict[G, list[Message]] = defaultdict(list)
    for message in batch:
        found[of(message.claim)].append(message)
    return found


def _noting(
    wait: Callable[[Message], None], looks: Sequence[Callable[[Message], None]]
) -> Callable[[Message], None]:
    """Return `wait`, or a function that also calls `looks`."""

    def wait_and_note(message: Message) -> None:
        wait(message)
        for look in looks:
            look(message)

    return wait_and_note if looks else wait


class Broken(NamedTuple):
    """A message without a usable key or size; no worker runs it."""

    message: Message
    error: BaseException


class Admitted(NamedTuple):
    """The number of admitted records, and those among them that could not be decoded."""

    taken: int
    broken: list[Broken]
    has_first_keyless: bool = False
    """Whether these are the first records without a key, which are handled one after another."""


class RetryHeap(Generic[E]):
    """Entries in the order of their due times; entries with the same due time keep their arrival
    order.

    Times are seconds of the caller's clock. Entries need neither an order nor a hash.
    """

    __slots__ = ("_arrivals", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, E]] = []
        self._arrivals = count()

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[tuple[float, E]]:
        """Iterate over all entries with their due times, in order."""
        return ((due, entry) for due, _, entry in sorted(self._heap))

    def push(self, due: float, entry: E) -> None:
        """Add an entry. Raises `ValueError` for a time that is not a number."""
        if isnan(due):  # NaN is neither before nor after any time
            message = f"due={due}: must be a time"
            raise ValueError(message)
        heappush(self._heap, (due, next(self._arrivals), entry))

    @property
    def next_due(self) -> float | None:
        """The due time of the first entry; `None` if there is none."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[E]:
        """Remove and return the entries that are due at `now`, in order."""
        heap = self._heap
        due: list[E] = []
        while heap and heap[0][0] <= now:
            due.append(heappop(heap)[2])
        return due

    def remove_where(self, predicate: Callable[[E], bool]) -> list[E]:
        """Remove and return, in order, the entries for which `predicate` is true. Nothing changes
        if it raises.
        """
        kept: list[tuple[float, int, E]] = []
        removed: list[tuple[float, int, E]] = []
        for each in sorted(self._heap):
            (removed if predicate(each[2]) else kept).append(each)
        self._heap[:] = kept
        return [entry for _, _, entry in removed]
