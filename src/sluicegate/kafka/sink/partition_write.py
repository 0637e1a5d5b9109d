"""The records of one write to one partition, sent one batch after another.

1. A batch contains as many records as `max_batch_bytes` allows. The next batch is built once the
   previous one is stored, so no record is stored after a failed record of its key.
2. A batch that is refused for its size, or for a record that the broker does not name, is halved
   until the record at fault is alone.
3. A batch without a response is resent unchanged before anything else. After the last attempt its
   items are unknown, and the later ones are unsent.
"""

from __future__ import annotations

from functools import partial
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..._core.classify import caused
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import PermanentError, UnavailableError
from ..client.produced import Stored
from .metadata import RecordMetadata
from .records import NO_HEADERS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ..._core.source import TopicPartition
    from ..client.produced import Failed, Produced
    from ..client.producer import PartitionLog, Producer, SealedRecords
    from .records import Columns

TRIES = 3
"""Attempts of a batch in one write, if a further attempt may soon succeed: a leader has moved, a
connection broke. Longer outages are left to a `Retry` around the sink.
"""
_made = cast(
    "Callable[[tuple[str, int, int]], RecordMetadata]",
    partial(cast("Any", tuple).__new__, RecordMetadata),
)
"""Creates a `RecordMetadata` from a tuple, four times as fast as a call with arguments."""


class _Filled(NamedTuple):
    """A batch that is not yet sealed, and the places of its records in the columns."""

    builder: Any
    places: Sequence[int]


class PartitionWrite:
    """The part of one write that goes to one partition."""

    def __init__(
        self,
        session: Producer,
        log: PartitionLog,
        columns: Columns,
        places: Sequence[int],
        *,
        resends: bool,
    ) -> None:
        self.log = log
        self._session = session
        self._columns = columns
        self._pending = list(places)
        self._resends = resends
        self._at_most = len(self._pending)
        self._filled: _Filled | None = None
        self._own: SealedRecords | None = None
        self._sent: Sequence[int] = ()
        self._tries = 0
        self._given_up: BaseException | None = None
        self.errors: dict[int, BaseException] = {}
        """By the item's index."""
        self.details: dict[int, object] = {}
        """By the item's index, for stored items."""

    @property
    def partition(self) -> TopicPartition:
        """The destination of its records."""
        return self.log.partition

    @property
    def tries(self) -> int:
        """Consecutive failed attempts with transient errors."""
        return self._tries

    @property
    def given_up(self) -> BaseException | None:
        """The error of the last attempt of a batch that still has no response."""
        return self._given_up

    @property
    def in_doubt(self) -> tuple[SealedRecords, list[int]] | None:
        """Its own batch in doubt, with the indices of its items."""
        if self._own is None or self.log.undecided is not self._own:
            return None
        return self._own, [self._columns.indices[place] for place in self._sent]

    def prepare(self) -> None:
        """Fill the first batch before the partition's lock is acquired."""
        if self._pending:
            self._fill()

    def add(self, places: Collection[int]) -> None:
        """Add these records in order; fail them if sending has stopped."""
        if self._given_up is not None:
            self._fail(places, self._behind(self._given_up))
            return
        self._pending = sorted({*self._pending, *places})
        self._at_most = max(self._at_most, len(self._pending))
        self._filled = None

    def leave_out(self, stopped: Callable[[int], BaseException | None]) -> None:
        """Fail pending records for which `stopped` returns an error, given the item's index."""
        indices = self._columns.indices
        found = {indices[p]: e for p in self._pending if (e := stopped(indices[p])) is not None}
        if found:
            self.errors |= found
            self._pending = [p for p in self._pending if indices[p] not in found]
            self._filled = None

    def next_batch(self) -> SealedRecords | None:
        """The next batch to send; `None` if there is none."""
        if self._given_up is not None:
            return None
        if self.log.undecided is not None:
            return self.log.undecided
        if not self._pending:
            return None
        if self._filled is None:
            self._fill()
        assert self._filled is not None
        builder, self._sent = self._filled
        self._filled = None
        self._own = self._session.sealed(self.log, builder, len(self._sent))
        return self._own

    def _fill(self) -> None:
        columns, places = self._columns, self._pending[: self._at_most]
        builder = self._session.builder()
        now = round(LOOP_CLOCK.wall_time() * 1000)
        written = map(
            builder.append,
            count(),
            repeat(now)
            if columns.timestamps is None
            else [now if (at := columns.timestamps[p]) is None else at for p in places],
            repeat(None) if columns.keys is None else map(columns.keys.__getitem__, places),
            map(columns.values.__getitem__, places),
            repeat(NO_HEADERS)
            if columns.headers is None
            else map(columns.headers.__getitem__, places),
        )
        fits = 0
        for each in written:
            if each is None:  # the batch is full
                break
            fits += 1
        self._filled = _Filled(builder, places[:fits])

    def answered(self, batch: SealedRecords, answer: Produced) -> None:
        """Record the response to a batch from `next_batch`."""
        if isinstance(answer, Stored):
            self._tries = 0
            if batch is self._own:
                self._stored(answer)
            return
        if answer.may_pass and self._tries + 1 < TRIES and (self._resends or not answer.is_unknown):
            self._tries += 1
            return
        if answer.is_unknown:
            self._is_unknown(batch, answer)
        elif batch is not self._own:  # of an earlier write, whose items are retried
            self._tries = 0
        elif isinstance(answer.error, PermanentError):
            self._refused(answer)
        else:
            self._fail(self._pending, answer.error)

    def _stored(self, stored: Stored) -> None:
        topic, number = self.partition
        indices, sent = self._columns.indices, self._sent
        offsets = repeat(-1) if stored.offset < 0 else count(stored.offset)
        details = map(_made, zip(repeat(topic), repeat(number), offsets))  # infinite
        self.details.update(zip(map(indices.__getitem__, sent), details))  # noqa: B905
        del self._pending[: len(sent)]
        self._own, self._at_most = None, self._at_most * 2

    def _is_unknown(self, batch: SealedRecords, answer: Failed) -> None:
        if batch is self._own:
            self._fail(self._sent, answer.error)
        if not self._resends:
            self.log.refused()
            return
        self._given_up = answer.error
        self._fail(self._pending, self._behind(answer.error))

    def _behind(self, error: BaseException) -> UnavailableError:
        text = f"an earlier batch of {self.partition} has no response; nothing is sent after it"
        return caused(UnavailableError(text), error)

    def _refused(self, answer: Failed) -> None:
        """Fail the records at fault, or reduce the batch size to find them."""
        if answer.records:
            for number, why in answer.records.items():
                text = f"{answer.error}{f': {why}' if why else ''}"
                self._fail([self._sent[number]], caused(PermanentError(text), answer.error))
        elif len(self._sent) == 1:
            self._fail(self._sent, answer.error)
        else:
            self._at_most = len(self._sent) // 2

    def _fail(self, places: Collection[int], error: BaseException) -> None:
        indices, failed = self._columns.indices, {*places}
        self.errors |= {indices[place]: error for place in failed}
        self._pending = [place for place in self._pending if place not in failed]
        self._filled = None
