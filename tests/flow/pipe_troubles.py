"""A destination with all kinds of faults, and its dead letters.

White box: the error of items behind a failed one of their key.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

from pipe_rows import id_of

from sluicegate import (
    Capabilities,
    PermanentError,
    RefusedError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    WriteResult,
)
from sluicegate._core.order.left_out import stopped_behind_error

if TYPE_CHECKING:
    import random

    from pipe_rows import Call, RowId
    from pipe_truth import Truth

    from sluicegate import Batch
    from sluicegate.batcher import Clock

Fate = Literal[
    "ok", "transient", "lost before", "lost midway", "lost after", "hang", "deaf", "refusal", "outage"
]  # fmt: skip
FATES: tuple[Fate, ...] = (
    "transient", "lost before", "lost midway", "lost after", "hang", "deaf"
)  # fmt: skip


class Weather:
    """The current faults, shared by all members."""

    def __init__(self, rng: random.Random, clock: Clock, trouble: float) -> None:
        self._rng = rng
        self._clock = clock
        self._trouble = trouble
        """The probability that a write fails."""
        self._down: Fate = "ok"
        self._until = 0.0
        self.poison: set[RowId] = set()
        """The rows that the destination refuses."""

    def strike(self, fate: Fate, seconds: float) -> None:
        """Refuse everything, or be unavailable, for some time."""
        self._down, self._until = fate, self._clock.now() + seconds

    def calm(self) -> None:
        """End all faults; poison stays."""
        self._trouble = self._until = 0.0

    @property
    def fate(self) -> Fate:
        """The result of the write that begins now."""
        if self._clock.now() < self._until:
            return self._down
        return self._rng.choice(FATES) if self._rng.random() < self._trouble else "ok"

    @property
    def seconds(self) -> float:
        """The duration of the write."""
        return self._rng.choice((0.0, 0.01, 0.1, 0.4))

    @property
    def coin(self) -> bool:
        """A random boolean."""
        return self._rng.random() < 0.5

    def place(self, count: int) -> int:
        """The number of rows that a write applies before it fails."""
        return self._rng.randint(0, count)

    @property
    def deaf_seconds(self) -> float:
        """The time for which a write ignores its cancellation."""
        return self._rng.choice((0.05, 0.5, 3.0, 8.0))


class TruthfulSink:
    """One member's connection to the destination."""

    def __init__(
        self, member: str, truth: Truth, weather: Weather, clock: Clock, *, prefix_safe: bool
    ) -> None:
        self.capabilities = Capabilities(key_prefix_safe=prefix_safe)
        self.is_dead = False
        """Whether the member's process has crashed: no new write begins."""
        self.gives_up = False
        """Whether the member gives up rows that the destination would accept later."""
        self._member = member
        self._truth = truth
        self._weather = weather
        self._clock = clock

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Apply rows, subject to the current faults."""
        if self.is_dead:
            raise UnavailableError("the process is dead")
        truth, fate = self._truth, self._weather.fate
        call = truth.begins(self._member, batch)
        errors: dict[int, BaseException] | None = None
        in_doubt = True
        try:
            errors = await self._try(call, fate)
            in_doubt = call.cut_at is not None
        except (TransientError, PermanentError) as error:
            in_doubt = isinstance(error, UnknownOutcomeError)
            raise
        finally:
            self._note_refused(call, range(len(batch)) if errors is None else errors)
            truth.ends(call, errors, in_doubt=in_doubt)
        return WriteResult.failed(batch, errors) if errors else None

    def _note_refused(self, call: Call, failed: Any) -> None:
        for index in failed:
            row = call.rows[index]
            if self.gives_up or id_of(row) in self._weather.poison:
                self._truth.refused.add((row.partition, row.offset))

    async def _try(self, call: Call, fate: Fate) -> dict[int, BaseException]:
        if fate == "outage":
            raise UnavailableError("connection refused")
        if fate == "refusal":
            raise RefusedError("permission denied", repair="grant it")
        weather, everything = self._weather, len(call.rows)
        try:
            await self._clock.sleep(weather.seconds)
            if fate in {"hang", "deaf"}:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            call.cut_at = self._clock.now()
            if fate == "deaf":
                await self._go_on(weather.deaf_seconds)
                return self._apply(call, everything)
            if weather.coin:
                self._apply(call, weather.place(everything))
            raise
        if fate == "transient":
            raise TransientError("a deadlock")
        if fate == "ok":
            return self._apply(call, everything)
        reach = {"lost before": 0, "lost after": everything}.get(fate)
        self._apply(call, weather.place(everything) if reach is None else reach)
        raise UnknownOutcomeError("the answer was lost")

    async def _go_on(self, seconds: float) -> None:
        """Ignore cancellations for this time."""
        until = self._clock.now() + seconds
        while (left := until - self._clock.now()) > 0:
            try:
                await self._clock.sleep(left)
            except asyncio.CancelledError:
                continue

    def _apply(self, call: Call, count: int) -> dict[int, BaseException]:
        """Apply the first rows, except refused ones and those behind them of the same key."""
        errors: dict[int, BaseException] = {}
        first: dict[Any, BaseException] = {}
        if self.is_dead and self._weather.coin:
            return errors
        for index, row in enumerate(call.rows[:count]):
            if row.key in first:
                errors[index] = stopped_behind_error(first[row.key])
            elif id_of(row) in self._weather.poison:
                errors[index] = first[row.key] = PermanentError("a constraint")
            else:
                self._truth.applies(call, index)
        return errors


class RowLetters:
    """Dead letters of rows, which never fail."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self.count = 0

    async def write(self, batch: Batch[Any]) -> None:
        """Store letters."""
        self.count += len(batch)
        self._truth.letters.update([id_of(letter.item) for letter in batch])


class RecordLetters:
    """Dead letters of records, which never fail."""

    def __init__(self, truth: Truth, *, settles: bool) -> None:
        self._truth = truth
        self._settles = settles
        """Whether a record with a letter is settled."""
        self.places: set[tuple[int, int]] = set()

    async def write(self, batch: Batch[Any]) -> None:
        """Store letters."""
        for letter in batch:
            place = (letter.item["partition"], letter.item["offset"])
            self.places.add(place)
            if self._settles:
                self._truth.gave_up(place)
