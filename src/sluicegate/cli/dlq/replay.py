"""Replay of dead letters, batch by batch.

1. Each batch is recorded in the store before it is sent, and its outcomes afterwards. So if a
   replay is interrupted at any moment (Ctrl-C, kill, a power cut), the next one continues where it
   stopped, and knows which letters may have been delivered: a sink with unique keys then reports
   them as duplicates instead of writing them twice.
2. An interrupted batch is built again from the same letters under the same id, so it has the same
   write key.
3. Letters of one batch have the same batcher, tenant and history. They are sent in their original
   order, those that may have been delivered before the others. Order is kept per key
   (`ReplayOrder`): a batch has one letter per key, or any number if the sink is `key_prefix_safe`.
   A letter that may have been delivered is older than the pending ones of its key, so it may be
   sent first.
4. A replay ends if the destination is unavailable, refuses everything or throttles. Unsent letters
   stay pending, and their attempts are not counted. In a replay, no `Retry` waits for a refusal to
   end.
5. A letter that fails again stays in the store: the stack's own dead-letter sinks accept nothing in
   a replay, so no letter loses its place.
6. A letter with an item that is partly a `repr` is never sent, and stops its key like a letter that
   fails again. The same holds for a letter that must not be passed to a handler.
7. A handler takes the place of the sink: see `target.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..._core.batch import Lineage, RowBatch
from ..._core.classify import cause_name, classified, code_of
from ..._core.clock import LOOP_CLOCK
from ..._core.delivery.delivery import Delivery
from ..._core.delivery.states import Tries, outcome_of
from ..._core.errors import ErrorClass, KeyStopped, PermanentError, RefusedError
from ..._core.logs import for_log, storable
from ..._core.order.keys import key_of
from ..._core.order.left_out import held_back
from ..._core.outcome import Outcome
from ..._core.send import send
from ..._core.sink import capabilities_of, classifier_of
from ..._core.text import text_of
from ...letters.letter import INTERRUPTED, PENDING, Selection
from ...letters.store import MOST_TOLD, Ending

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Callable,
        Mapping,
        Sequence,
    )

    from ..._core.sink import Sink
    from ...letters.letter import Letter, ReplayLane
    from ...letters.store import Store

LEFT = Selection(states=frozenset({PENDING, INTERRUPTED}))
BACK = frozenset({Outcome.DELIVERED, Outcome.DUPLICATE, Outcome.SPOOLED})
REPR_ONLY = "repr_only"
"""The ending of a letter that can never be sent again."""
REFUSED = "refused"
"""The ending of a letter that must not be passed to a handler."""
_NOT_NOW = frozenset(
    {ErrorClass.UNAVAILABLE, ErrorClass.REFUSED, ErrorClass.THROTTLE, ErrorClass.STOPPED}
)


class Replay:
    """One replay from an open, held store into an open sink."""

    def __init__(self, store: Store, sink: Sink[Any], rules: ReplayRules) -> None:
        self._store = store
        self._sink = sink
        self._rules = rules
        self._repeats = capabilities_of(sink).key_prefix_safe
        self.order = ReplayOrder(any_order=rules.any_order)
        self.endings: Counter[str] = Counter()
        """Number of letters by outcome, or `undecodable` or `repr_only`."""
        self.reasons: Counter[str] = Counter()
        """The errors of rejected letters, without item values; the first ones only."""
        self.refusals: Counter[str] = Counter()
        """Why letters were refused."""
        self.stopped_by: BaseException | None = None
        """The error of a destination that accepts nothing now."""

    async def run(self, selection: Selection, most: int | None) -> None:
        """Send the selected letters, at most `most`, and wait for their outcomes.

        If it is cancelled, it first notes the outcomes known by then.
        """
        async for letters in self._batches(selection, most):
            await self._send(letters)
            if self.stopped_by is not None:
                return

    async def _batches(self, selection: Selection, most: int | None) -> AsyncIterator[list[Letter]]:
        batch: list[Letter] = []
        lanes: set[ReplayLane | None] = set()
        async with (
            aclosing(self._store.letters(LEFT)) as letters,
            aclosing(self.order.meant(letters, selection)) as meant,
        ):
            async for letter in meant:
                if most is not None and self.endings.total() + len(batch) >= most:
                    break
                lane = self.order.lane(letter)
                if batch and (
                    (lane in lanes and not self._repeats) or not self._fits(letter, batch)
                ):
                    yield batch
                    batch, lanes = [], set()
                batch.append(letter)
                if lane is not None:
                    lanes.add(lane)
        if batch:
            yield batch

    def _fits(self, letter: Letter, batch: Sequence[Letter]) -> bool:
        is_full = len(batch) >= self._rules.batch_size and (
            letter.state != INTERRUPTED or letter.replay is None
        )
        return not is_full and self._kind(letter) == self._kind(batch[0])

    def _kind(self, letter: Letter) -> tuple[object, ...]:
        has_order = self.order.lane(letter) is not None
        replay = letter.replay if letter.state == INTERRUPTED else None
        return letter.batcher, str(letter.tenant), has_order, letter.may_be_delivered, replay

    async def _send(self, letters: Sequence[Letter]) -> None:
        batch, letters = self._batch(letters)
        if not letters:
            return
        await self._store.begin(batch.id, [letter.key for letter in letters])
        errors: Mapping[int, BaseException] = {}
        try:
            errors = held_back(batch, await send(self._sink, batch))
        finally:
            await self._store.end(
                batch.id,
                [
                    self._ending(batch, index, letter, errors.get(index))
                    for index, letter in enumerate(letters)
                ],
            )

    def _batch(self, letters: Sequence[Letter]) -> tuple[RowBatch[Any], list[Letter]]:
        items, kept = self._decode(letters)
        keys = [
            key_of(lane.key) for letter in kept if (lane := self.order.lane(letter)) is not None
        ] or None
        delivery = Delivery(len(items), keeps_prefix=self._repeats and keys is not None)
        now, wall = LOOP_CLOCK.now(), LOOP_CLOCK.wall_time()
        for index, letter in enumerate(kept):
            delivery.recall(
                index,
                Tries(
                    letter.attempts, _at(letter.first_at, now, wall), _at(letter.last_at, now, wall)
                ),
            )
        if not self._rules.twice:
            delivery.doubt(index for index, letter in enumerate(kept) if letter.may_be_delivered)
        first = letters[0]
        lineage = Lineage(id=_id(kept), name=first.batcher, tenant=first.tenant, is_replay=True)
        return RowBatch(items, lineage=lineage, delivery=delivery, keys=keys), kept

    def _decode(self, letters: Sequence[Letter]) -> tuple[list[Any], list[Letter]]:
        """Return the items of the letters that may be sent, and these letters."""
        items: list[Any] = []
        kept: list[Letter] = []
        for letter in letters:
            if self.order.holds(letter):
                continue
            try:
                items.append(self._rules.item_of(letter))
            except RefusedLetter as error:
                self.endings[REFUSED] += 1
                self.refusals[text_of(error)] += 1
                self.order.stop(letter, text_of(error))
            except Exception as error:
                self.endings["undecodable" if letter.replayable else REPR_ONLY] += 1
                self.order.stop(letter, f"it cannot be decoded: {for_log(error)}")
            else:
                kept.append(letter)
        return items, kept

    def _ending(
        self, batch: RowBatch[Any], index: int, letter: Letter, error: BaseException | None
    ) -> Ending:
        delivery = batch.delivery
        outcome = delivery.verdict(index)
        error = error or delivery.error(index)
        if not outcome.is_safe and error is not None:
            outcome = self._without_success(
                outcome, error, self._kind_of(error), maybe=index in delivery.maybe_applied
            )
        if isinstance(error, KeyStopped) and outcome is Outcome.UNSENT:
            self.order.holds(letter)
        else:
            self.endings[outcome.value] += 1
        if outcome not in BACK:
            self.order.stop(
                letter,
                f"{outcome.value.replace('_', '-')}" if error is None else for_log(error),
            )
        state = Ending.state_for(outcome.value, is_safe=outcome.is_safe)
        tries = delivery.tries(index)
        if outcome is not Outcome.REJECTED or error is None or tries is None:
            return Ending(key=letter.key, outcome=outcome.value, state=state)
        reason = for_log(error)
        if reason in self.reasons or len(self.reasons) < MOST_TOLD:
            self.reasons[reason] += 1
        return Ending(
            key=letter.key,
            outcome=outcome.value,
            state=state,
            attempts=tries.count,
            error_type=type(error).__name__,
            error_class=self._kind_of(error).value,
            message=storable(text_of(error)).replace("\0", "\\x00"),
            cause_type=cause_name(error),
            code=code_of(error),
            last_at=datetime.fromtimestamp(LOOP_CLOCK.wall_time(), UTC).isoformat(),
        )

    def _kind_of(self, error: BaseException) -> ErrorClass:
        """Return the error's class for the stack, except that a refusal stays a refusal.

        `Retry(on_refused="dead_letter")` would turn it into a failure of the item.
        """
        if isinstance(error, RefusedError):
            return ErrorClass.REFUSED
        return classified(error, classifier_of(self._sink))

    def _without_success(
        self, outcome: Outcome, error: BaseException, kind: ErrorClass, *, maybe: bool
    ) -> Outcome:
        task = asyncio.current_task()
        if (task is not None and task.cancelling()) or isinstance(error, KeyStopped):
            return outcome  # the verdict is exact here
        if kind in _NOT_NOW:
            self.stopped_by = self.stopped_by or error
            return Outcome.UNKNOWN if maybe else Outcome.UNSENT
        return outcome_of(error, maybe_applied=maybe)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRules:
    """Settings of a replay."""

    batch_size: int
    item_of: Callable[[Letter], Any]
    """Makes the item to send from a letter."""
    twice: bool
    """Send letters that may have been delivered as if they had not been."""
    any_order: bool = False
    """Send letters of a key even if earlier ones remain."""


class RefusedLetter(PermanentError):
    """A letter that cannot be passed to a handler."""


def item_of(decode: Callable[[Any], Any] | None, letter: Letter) -> Any:
    """Return the item to send. Raises `PermanentError` if a part of it is only a `repr`, and what
    `decode` raises.
    """
    item = letter.original()
    return item if decode is None else decode(item)


class ReplayOrder:
    """Decides which letters may be sent, in store order; with `any_order`, all of them. Pure.

    No letter overtakes an earlier letter of its key. A letter that stays in the store (it fails
    again, or cannot be decoded) *stops* its key: later letters of the key are held back. So does a
    letter that is not selected. Keys of different tenants and batchers are different. A letter
    without a key has no order.
    """

    def __init__(self, *, any_order: bool) -> None:
        self.any_order = any_order
        self.stops: dict[ReplayLane, Stop] = {}

    @property
    def held_back(self) -> int:
        """Number of selected letters that are held back."""
        return sum(stop.behind for stop in self.stops.values())

    def lane(self, letter: Letter) -> ReplayLane | None:
        """Return the letter's lane, or `None` if its order does not matter."""
        return None if self.any_order else letter.lane

    @property
    def relevant_stops(self) -> list[tuple[ReplayLane, Stop]]:
        """The stops at selected letters, or with selected letters behind them."""
        return [(lane, stop) for lane, stop in self.stops.items() if stop.was_meant or stop.behind]

    def stop(self, letter: Letter, why: str, *, was_meant: bool = True) -> None:
        """Stop the letter's lane: it stays in the store, and so do later letters."""
        lane = self.lane(letter)
        if lane is not None and lane not in self.stops:
            self.stops[lane] = Stop(letter.key, why, was_meant)

    def holds(self, letter: Letter) -> bool:
        """Return whether the letter is held back. Counts it, so call it once per held letter."""
        lane = self.lane(letter)
        stop = None if lane is None else self.stops.get(lane)
        if stop is None:
            return False
        stop.hold_one()
        return True

    async def meant(
        self, letters: AsyncGenerator[Letter], selection: Selection
    ) -> AsyncGenerator[Letter]:
        """Yield the remaining selected letters, except those held back so far."""
        async for letter in letters:
            if selection.has(letter):
                if not self.holds(letter):
                    yield letter
            elif selection.has_key_of(letter):
                self.stop(letter, "it is earlier, and is not selected", was_meant=False)


@dataclass(slots=True)
class Stop:
    """The letter at which a key has stopped."""

    letter: str
    why: str
    was_meant: bool
    behind: int = 0
    """Number of selected letters that are held back."""

    def hold_one(self) -> None:
        """Count one more letter held back."""
        self.behind += 1


def _id(letters: Sequence[Letter]) -> str:
    """Return the batch id, which is the same for the same letters."""
    digest = hashlib.blake2b("\0".join(letter.key for letter in letters).encode(), digest_size=16)
    return f"replay-{digest.hexdigest()}"


def _at(moment: datetime, now: float, wall: float) -> float:
    return now - (wall - moment.timestamp())
