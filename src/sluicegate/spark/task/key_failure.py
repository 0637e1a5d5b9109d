"""Policies for a key's later rows after one of its rows has failed for good.

1. `skip` writes them nevertheless. `stop` does not write them: they are returned as dead rows with
   `KeyStopped`. `park` passes them, in order, to the stack's dead letters with `ParkedBehind`;
   without dead letters they are also returned.
2. A sink that is `key_prefix_safe` omits them itself: it undoes rows after a failed one before they
   are visible. It receives whole chunks, and costs nothing extra while no row fails.
3. Any other sink is written to in *rounds*: the first row of every key of the chunk, then the
   second of each, and so on, without the failed keys. The number of writes is the number of rows of
   the longest key; a chunk whose keys have one row each takes one write.
4. A key that continues in the next chunk stays stopped there. That chunk is written after this one,
   when this one's result is known.
5. A row has failed if it is returned with an error, or was passed to the dead letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import pyarrow as pa

from ..._core.arrow import values_of
from ..._core.classify import caused
from ..._core.errors import KeyStopped, ParkedBehind
from ..._core.order.left_out import stopped_behind_error
from ..._core.outcome import Outcome
from ..._core.send import send
from ..._core.sink import WriteResult, capabilities_of, dead_letters_in
from .chunks import key_changes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..._core.arrow import ArrowBatch
    from ..._core.batch import Batch
    from ..._core.sink import Sink
    from .chunks import Chunk

OnKeyFailure = Literal["skip", "park", "stop"]
POLICIES = ("skip", "park", "stop")


class Keys(Sequence[object]):
    """The keys of a chunk's rows, as tuples; built at the first access, which needs a failure.

    NaN becomes text, since it does not equal itself but is one key for Spark; so does a value that
    Python cannot represent.
    """

    def __init__(self, rows: pa.RecordBatch, names: tuple[str, ...]) -> None:
        self._columns = [rows.column(name) for name in names]
        self._made: list[tuple[Any, ...]] | None = None

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, index: int) -> object: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[object]: ...
    def __getitem__(self, index: int | slice) -> object:
        if self._made is None:
            self._made = list(zip(*map(_key_values, self._columns), strict=True))
        return self._made[index]


def _key_values(column: Any) -> list[Any]:
    values = values_of(column)[0]
    return (
        ["NaN" if value != value else value for value in values]  # noqa: PLR0124  # NaN
        if pa.types.is_floating(column.type)
        else values
    )


class KeyFailurePolicy:
    """Applies `on_key_failure` to the chunks of one unit, in their order."""

    def __init__(self, policy: OnKeyFailure, key: tuple[str, ...]) -> None:
        self._policy = policy
        self._key = key
        self._stopped_at: dict[int, KeyStopped] = {}
        """The error that stops the last key of a chunk, by the chunk's number."""

    def keys(self, rows: pa.RecordBatch) -> Sequence[object] | None:
        """Return the keys for the chunk's batch; `None` if they are not needed."""
        return None if self._policy == "skip" else Keys(rows, self._key)

    async def send(
        self, sink: Sink[Any], batch: ArrowBatch, chunk: Chunk
    ) -> tuple[dict[int, BaseException], int]:
        """Write one chunk; suspends.

        Returns the errors of rows that neither the destination nor the dead letters have, and the
        number of rows skipped after failed ones.
        """
        if self._policy == "skip":
            return await send(sink, batch), 0
        starts = _starts(chunk.rows, self._key)
        errors, stopped = await self._in_rounds(
            sink, batch, starts, self._left_out_at_the_head(chunk, starts)
        )
        last = len(batch) - 1
        why = stopped.get(last) or _stop(batch, errors, last)
        self._note(chunk.number, why)
        left = (
            await self._park(sink, batch, stopped)
            if self._policy == "park" and stopped
            else stopped
        )
        return {**errors, **left}, len(stopped)

    def _note(self, number: int, why: KeyStopped | None) -> None:
        self._stopped_at.pop(number - 1, None)
        if why is None:
            self._stopped_at.pop(number, None)
        else:
            self._stopped_at[number] = why

    def _left_out_at_the_head(
        self, chunk: Chunk, starts: np.ndarray[Any, Any]
    ) -> dict[int, KeyStopped]:
        why = self._stopped_at.get(chunk.number - 1) if chunk.continues else None
        if why is None:
            return {}
        return dict.fromkeys(np.flatnonzero(starts == 0).tolist(), why)

    async def _in_rounds(
        self,
        sink: Sink[Any],
        batch: ArrowBatch,
        starts: np.ndarray[Any, Any],
        stopped: dict[int, KeyStopped],
    ) -> tuple[dict[int, BaseException], dict[int, KeyStopped]]:
        errors: dict[int, BaseException] = {}
        by_itself = capabilities_of(sink).key_prefix_safe
        for part in [range(len(batch))] if by_itself else _rounds(starts):
            chosen = [index for index in part if index not in stopped] if stopped else part
            if not chosen:
                continue
            found = await send(sink, batch.pick(chosen))
            for place, error in found.items():
                if isinstance(error, KeyStopped):
                    stopped[chosen[place]] = error
                else:
                    errors[chosen[place]] = error
            if not by_itself:
                _stop_behind(
                    stopped,
                    starts,
                    {
                        index: why
                        for index in chosen
                        if (why := _stop(batch, errors, index)) is not None
                    },
                )
        return errors, stopped

    async def _park(
        self, sink: Sink[Any], batch: ArrowBatch, stopped: Mapping[int, KeyStopped]
    ) -> dict[int, BaseException]:
        """Pass these rows to the dead letters, in order; return the errors of those not accepted."""
        indices = sorted(stopped)
        parked = [_park_error(stopped[index]) for index in indices]
        letters = dead_letters_in(sink)
        if letters is None:
            return dict(zip(indices, parked, strict=True))
        found = await send(letters.dead_letters_around(_Refuses(parked)), batch.pick(indices))
        return {indices[place]: error for place, error in found.items()}


class _Refuses:
    """A destination that refuses every item."""

    def __init__(self, errors: Sequence[BaseException]) -> None:
        self._errors = errors

    async def write(self, batch: Batch[Any]) -> WriteResult:
        return WriteResult.from_outcomes(batch, self._errors)


def _park_error(stopped: KeyStopped) -> ParkedBehind:
    return caused(ParkedBehind(f"parked behind {stopped}"), stopped.__cause__)


def _stop(batch: ArrowBatch, errors: Mapping[int, BaseException], index: int) -> KeyStopped | None:
    """Return the error that stops the key of this row, or `None` if the row has not failed."""
    error = errors.get(index)
    if error is None and batch.delivery.verdict(index) is Outcome.DEAD_LETTERED:
        error = batch.delivery.error(index)
    return None if error is None else stopped_behind_error(error)


def _starts(rows: pa.RecordBatch, key: tuple[str, ...]) -> np.ndarray[Any, Any]:
    """Return, for each row, the index in this chunk at which the rows of its key begin."""
    places = np.arange(rows.num_rows)
    begins = np.concatenate(([True], key_changes(rows, key)))
    return np.maximum.accumulate(np.where(begins, places, 0))


def _rounds(starts: np.ndarray[Any, Any]) -> Iterator[list[int]]:
    """Yield the first row of each key, then the second of each, and so on."""
    ranks = np.arange(len(starts)) - starts
    order = np.argsort(ranks, kind="stable")
    for part in np.split(order, np.cumsum(np.bincount(ranks))[:-1]):
        yield part.tolist()


def _stop_behind(
    stopped: dict[int, KeyStopped], starts: np.ndarray[Any, Any], failed: Mapping[int, KeyStopped]
) -> None:
    for index, why in failed.items():
        later = np.flatnonzero(starts[index + 1 :] == starts[index]) + index + 1
        for place in later.tolist():
            stopped.setdefault(place, why)
