"""Dead letters on their way back, batch by batch.

1. What is about to be sent is noted before it is, and its outcomes after. So a replay that is cut
   off at any moment (Ctrl-C, kill, a power cut) is taken up by the next one where it stopped, and
   that one knows which letters may have arrived: a sink with unique keys then calls them duplicates
   instead of writing them twice.
2. An interrupted batch is made again of the same letters under the same id, so that its write key
   is the same, too.
3. Letters of one batch have the same batcher, tenant and history; they go in the order in which
   they came, those that may have arrived before the others. Order is kept per key (`_dlq_order`): a
   batch has one letter of a key, or with a sink that is `key_prefix_safe` any number of them. What
   may have arrived came before what is pending of its key, so it may go first.
4. A destination that is not there, refuses everything or asks to slow down ends the replay. What
   was not sent is pending as before, its attempts uncounted. No `Retry` waits for a refusal in a
   replay.
5. What fails again stays where it is: the stack's own dead letters take nothing in a replay, so no
   letter loses its place.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..._core import told
from ..._core.batch import Lineage, RowBatch
from ..._core.classify import classified
from ..._core.clock import LOOP_CLOCK
from ..._core.delivery.delivery import Delivery
from ..._core.delivery.tries import Tries
from ..._core.errors import ErrorClass, KeyStopped, RefusedError
from ..._core.order.keys import key_of
from ..._core.order.prefix import held_back
from ..._core.outcome import Outcome, outcome_of
from ..._core.send import send
from ..._core.sink import capabilities_of
from ...letters.letter import INTERRUPTED, PENDING, Selection
from ...letters.store import Ending
from .order import KeyOrder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from ..._core.sink import Sink
    from ...letters.letter import Lane, Letter
    from ...letters.store import Store

LEFT = Selection(states=frozenset({PENDING, INTERRUPTED}))
BACK = frozenset({Outcome.DELIVERED, Outcome.DUPLICATE, Outcome.SPOOLED})
_NOT_NOW = frozenset(
    {ErrorClass.UNAVAILABLE, ErrorClass.REFUSED, ErrorClass.THROTTLE, ErrorClass.STOPPED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRules:
    """How letters are sent."""

    batch_size: int
    decode: Callable[[Any], Any] | None
    """Makes an item of what JSON made of it."""
    twice: bool
    """Send letters that may have arrived as if they had not."""
    any_order: bool = False
    """Send letters of a key though earlier ones of it are left."""


class Replay:
    """One replay from a store, held and open, into a sink, open too."""

    def __init__(self, store: Store, sink: Sink[Any], rules: ReplayRules) -> None:
        self._store = store
        self._sink = sink
        self._rules = rules
        self._repeats = capabilities_of(sink).key_prefix_safe
        self.order = KeyOrder(any_order=rules.any_order)
        self.endings: Counter[str] = Counter()
        """How many letters ended how, by the name of their outcome, or `undecodable`."""
        self.stopped_by: BaseException | None = None
        """The error of a destination that does not take anything now."""

    async def run(self, selection: Selection, most: int | None) -> None:
        """Send every letter that is meant, at most `most`. Suspends until they have an outcome;
        cancelled, it notes what is known first.
        """
        async for letters in self._batches(selection, most):
            await self._send(letters)
            if self.stopped_by is not None:
                return

    async def _batches(self, selection: Selection, most: int | None) -> AsyncIterator[list[Letter]]:
        batch: list[Letter] = []
        lanes: set[Lane | None] = set()
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
        return letter.batcher, str(letter.tenant), has_order, letter.may_be_there, replay

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
        items: list[Any] = []
        kept: list[Letter] = []
        for letter in letters:
            if self.order.holds(letter):
                continue
            try:
                items.append(
                    letter.item if self._rules.decode is None else self._rules.decode(letter.item)
                )
            except Exception as error:
                self.endings["undecodable"] += 1
                self.order.stop(letter, f"it cannot be decoded: {told.for_log(error)}")
            else:
                kept.append(letter)
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
            delivery.doubt(index for index, letter in enumerate(kept) if letter.may_be_there)
        first = letters[0]
        lineage = Lineage(id=_id(kept), name=first.batcher, tenant=first.tenant, is_replay=True)
        return RowBatch(items, lineage=lineage, delivery=delivery, keys=keys), kept

    def _ending(
        self, batch: RowBatch[Any], index: int, letter: Letter, error: BaseException | None
    ) -> Ending:
        delivery = batch.delivery
        outcome = delivery.verdict(index)
        error = error or delivery.error(index)
        if not outcome.is_success and error is not None:
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
                f"{outcome.value.replace('_', '-')}" if error is None else told.for_log(error),
            )
        state = Ending.state_for(outcome.value, is_success=outcome.is_success)
        tries = delivery.tries(index)
        if outcome is not Outcome.REJECTED or error is None or tries is None:
            return Ending(key=letter.key, outcome=outcome.value, state=state)
        return Ending(
            key=letter.key,
            outcome=outcome.value,
            state=state,
            attempts=tries.count,
            error_type=type(error).__name__,
            error_class=self._kind_of(error).value,
            message=told.storable(told.text_of(error)).replace("\0", "\\x00"),
            last_at=datetime.fromtimestamp(LOOP_CLOCK.wall_time(), UTC).isoformat(),
        )

    def _kind_of(self, error: BaseException) -> ErrorClass:
        """The error's class: that of the stack, but a refusal stays one where
        `Retry(on_refused="dead_letter")` would give the item up.
        """
        if isinstance(error, RefusedError):
            return ErrorClass.REFUSED
        return classified(error, getattr(self._sink, "classify", None))

    def _without_success(
        self, outcome: Outcome, error: BaseException, kind: ErrorClass, *, maybe: bool
    ) -> Outcome:
        task = asyncio.current_task()
        if (task is not None and task.cancelling()) or isinstance(error, KeyStopped):
            return outcome  # the verdict knows what stood where
        if kind in _NOT_NOW:
            self.stopped_by = self.stopped_by or error
            return Outcome.UNKNOWN if maybe else Outcome.UNSENT
        return outcome_of(error, maybe_applied=maybe)


def _id(letters: Sequence[Letter]) -> str:
    """The same for the same letters."""
    digest = hashlib.blake2b("\0".join(letter.key for letter in letters).encode(), digest_size=16)
    return f"replay-{digest.hexdigest()}"


def _at(moment: datetime, now: float, wall: float) -> float:
    return now - (wall - moment.timestamp())
