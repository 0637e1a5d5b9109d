"""One write: the records of a batch, by partition, one request per leader at a time.

1. A batch contains as many records as `max_batch_bytes` allows. The next batch of a partition is
   built once the previous one is stored, so no record is stored after a failed record of its key.
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
from ..._core.errors import PermanentError, RefusedError, UnavailableError
from ..._core.order.left_out import stopped_behind
from ..._core.outcome import Outcome
from ..._core.sink import WriteResult
from ..client.answers import Stored
from .places import Placing, move_places, topics_of, waves
from .records import NO_HEADERS, RecordMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ..._core.batch import Batch
    from ..._core.source import TopicPartition
    from ..client.answers import Failed, Produced
    from ..client.producer import PartitionLog, Producer, SealedRecords
    from .places import Placed
    from .records import Columns

PAUSE = 0.1
"""Seconds before another attempt within a write, doubled each time; aiokafka's `retry_backoff_ms`.
"""
TRIES = 3
"""Attempts of a batch in one write, if a further attempt may soon succeed: a leader has moved, a
connection broke. Longer outages are left to a `Retry` around the sink.
"""
MOST = 1_000
"""Maximum number of remembered batches. Abandoned items never take their results."""


class KafkaWrite:
    """Sends the records of one batch and returns a result for each item."""

    def __init__(
        self,
        session: Producer,
        sent_items: SentItems,
        batch: Batch[Any],
        columns: Columns,
        *,
        topic: str | None,
        by_key: bool,
    ) -> None:
        self._session = session
        self._sent_items = sent_items
        self._batch = batch
        self._columns = columns
        self._topic = topic
        self._by_key = by_key
        self._errors: dict[int, BaseException] = dict(columns.errors)
        self._lanes: dict[TopicPartition, PartitionWrite] = {}
        self._attached: dict[int, SentItem] = {}
        """By the place in the columns."""
        self._later: list[Placed] = []
        """The places of records for later waves, by partition."""
        self._tokens: list[str] | None = None

    async def run(self) -> WriteResult | None:
        """Send all records and wait for the responses.

        Raises the error common to all items if nothing was stored. After a cancellation, stored
        items are settled, and those in flight are remembered.
        """
        missing = await self._session.find(topics_of(self._topic, self._columns))
        if Placing(self._session, self._topic, missing).has_unknown(self._columns):
            await self._session.refresh()
        self._attach()
        self._open_lanes(missing)
        for partition in sorted(self._lanes):
            self._lanes[partition].prepare()
        locked: list[PartitionWrite] = []
        try:
            for partition in sorted(self._lanes):  # sorted, so that writes cannot deadlock
                lane = self._lanes[partition]
                await lane.log.lock.acquire()
                locked.append(lane)
            await self._send()
        except BaseException:
            self._batch.settle(details := self._details(), Outcome.DELIVERED, details)
            raise
        finally:
            for lane in locked:
                self._leave(lane)
        return self._result()

    # -- before ------------------------------------------------------------------------------------

    def _item_token(self, place: int) -> str:
        if self._tokens is None:
            self._tokens = self._batch.item_keys()
        return self._tokens[self._columns.indices[place]]

    def _attach(self) -> None:
        """Find the items that an earlier write has sent without a response."""
        if not self._sent_items:
            return
        for place in range(len(self._columns.indices)):
            attempt = self._sent_items.get(self._item_token(place))
            if attempt is not None:
                self._attached[place] = attempt

    def _open_lanes(self, missing: Mapping[str, RefusedError]) -> None:
        placing = Placing(self._session, self._topic, missing)
        found, errors = placing.place(self._columns)
        self._errors |= errors
        placed: Placed = found
        if self._attached:
            for place in self._attached:
                self._errors.pop(self._columns.indices[place], None)
            placed = move_places(
                placed, {p: sent.batch.partition for p, sent in self._attached.items()}
            )
        first: Placed = placed
        if (keys := self._batch.keys) is not None and (self._attached or not self._by_key):
            first, *self._later = waves(placed, [keys[i] for i in self._columns.indices])
        for partition in placed:
            self._lane(partition, self._without_attached(first.get(partition, ())))

    def _without_attached(self, places: Collection[int]) -> Collection[int]:
        if not self._attached:
            return places
        return [each for each in places if each not in self._attached]

    def _lane(self, partition: TopicPartition, places: Collection[int]) -> None:
        log = self._session.log(partition)
        self._lanes[partition] = PartitionWrite(self._session, log, self._columns, [*places])

    # -- rounds ------------------------------------------------------------------------------------

    async def _send(self) -> None:
        self._take_answers()
        while True:
            self._leave_out()
            going = [(lane, lane.next_batch()) for lane in self._lanes.values()]
            sent = [(lane, batch) for lane, batch in going if batch is not None]
            if not sent:
                if self._begin_wave():
                    continue
                return
            answers: dict[SealedRecords, Produced] = {}
            try:
                await self._session.produce([batch for _, batch in sent], answers)
            finally:  # the other requests may have been cancelled
                for lane, batch in sent:
                    if (answer := answers.get(batch)) is not None:
                        self._take_answer(lane, batch, answer)
                self._take_answers()
            if tries := max(lane.tries for lane, _ in sent):
                await LOOP_CLOCK.sleep(PAUSE * 2 ** (tries - 1))
                await self._session.refresh()

    def _begin_wave(self) -> bool:
        """Add the records of the next wave; return whether there is one."""
        if not self._later:
            return False
        for partition, places in self._later.pop(0).items():
            self._lanes[partition].add(self._without_attached(places))
        return True

    def _take_answer(self, lane: PartitionWrite, batch: SealedRecords, answer: Produced) -> None:
        if isinstance(answer, Stored):
            self._sent_items.mark_stored(batch, answer)
        elif not answer.is_unknown:
            self._sent_items.forget(batch)
        lane.take_answer(batch, answer)

    def _take_answers(self) -> None:
        """Resolve attached items whose batch is no longer in doubt: they are stored, or sent
        again.
        """
        for place, (batch, number) in [*self._attached.items()]:
            lane = self._lanes[batch.partition]
            stored = self._sent_items.answer(batch)
            if stored is not None:
                offset = stored.offset + number if stored.offset >= 0 else -1
                lane.details[self._columns.indices[place]] = RecordMetadata(
                    *batch.partition, offset
                )
                self._sent_items.take(self._item_token(place))
            elif lane.log.undecided is not batch:
                lane.add([place])
            else:
                continue
            del self._attached[place]

    def _leave_out(self) -> None:
        """Fail the items after a failed item of their key."""
        keys = self._batch.keys
        errors = self._all_errors() if keys is not None else {}
        if not errors:
            return
        done = {index for lane in self._lanes.values() for index in lane.details}
        stopped = stopped_behind(keys, errors, done)
        for lane in self._lanes.values():
            lane.leave_out(stopped.get)

    # -- after -------------------------------------------------------------------------------------

    def _leave(self, lane: PartitionWrite) -> None:
        """Remember a batch in doubt, and unlock the partition."""
        if (doubt := lane.in_doubt) is not None:
            batch, indices = doubt
            tokens = self._batch.item_keys()
            self._sent_items.remember(batch, [tokens[index] for index in indices])
        lane.log.lock.release()

    def _details(self) -> dict[int, object]:
        """The details of stored items, by index."""
        return {i: detail for lane in self._lanes.values() for i, detail in lane.details.items()}

    def _all_errors(self) -> dict[int, BaseException]:
        errors = dict(self._errors)
        for lane in self._lanes.values():
            errors |= lane.errors
        return errors

    def _result(self) -> WriteResult | None:
        errors = self._all_errors()
        for place, (batch, _) in self._attached.items():
            given_up = self._lanes[batch.partition].given_up
            assert given_up is not None, "an attached item has its result, or its lane ended"
            # still in doubt; an attempt that was not sent or not accepted is not one of its own
            why = given_up.__cause__
            errors[self._columns.indices[place]] = (
                why if isinstance(why, UnavailableError) else given_up
            )
        details = self._details()
        assert len(errors) + len(details) == len(self._batch), "each item has a result"
        kinds = {*map(id, errors.values())}
        if len(errors) == len(self._batch) and len(kinds) == 1:
            raise next(iter(errors.values()))
        for index, error in errors.items():
            if isinstance(error, RefusedError) and not error.of_item:
                errors[index] = RefusedError(str(error), of_item=True)
        return WriteResult.failed(self._batch, errors, details=details)


_new_metadata = cast(
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
    ) -> None:
        self.log = log
        self._session = session
        self._columns = columns
        self._pending = list(places)
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
            self._fail(places, self._unsent_error(self._given_up))
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
        self._own = self._session.seal(self.log, builder, len(self._sent))
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

    def take_answer(self, batch: SealedRecords, answer: Produced) -> None:
        """Record the response to a batch from `next_batch`."""
        if isinstance(answer, Stored):
            self._tries = 0
            if batch is self._own:
                self._mark_stored(answer)
            return
        if answer.may_pass and self._tries + 1 < TRIES:
            self._tries += 1
            return
        if answer.is_unknown:
            self._give_up(batch, answer)
        elif batch is not self._own:  # of an earlier write, whose items are retried
            self._tries = 0
        elif isinstance(answer.error, PermanentError):
            self._isolate(answer)
        else:
            self._fail(self._pending, answer.error)

    def _mark_stored(self, stored: Stored) -> None:
        topic, number = self.partition
        indices, sent = self._columns.indices, self._sent
        offsets = repeat(-1) if stored.offset < 0 else count(stored.offset)
        details = map(_new_metadata, zip(repeat(topic), repeat(number), offsets))  # infinite
        self.details.update(zip(map(indices.__getitem__, sent), details))  # noqa: B905
        del self._pending[: len(sent)]
        self._own, self._at_most = None, self._at_most * 2

    def _give_up(self, batch: SealedRecords, answer: Failed) -> None:
        if batch is self._own:
            self._fail(self._sent, answer.error)
        self._given_up = answer.error
        self._fail(self._pending, self._unsent_error(answer.error))

    def _unsent_error(self, error: BaseException) -> UnavailableError:
        text = f"an earlier batch of {self.partition} has no response; nothing is sent after it"
        return caused(UnavailableError(text), error)

    def _isolate(self, answer: Failed) -> None:
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


class SentItem(NamedTuple):
    """A record that was sent for an item."""

    batch: SealedRecords
    number: int
    """The record's place in the batch."""


class SentItems:
    """The records in doubt, by the token of their item."""

    def __init__(self) -> None:
        self._of: dict[str, SentItem] = {}
        self._tokens: dict[SealedRecords, Sequence[str]] = {}
        self._stored: dict[SealedRecords, Stored] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def remember(self, batch: SealedRecords, tokens: Sequence[str]) -> None:
        """Remember the items of a batch without a response."""
        self._tokens[batch] = tokens
        self._of |= {token: SentItem(batch, number) for number, token in enumerate(tokens)}
        if len(self._tokens) > MOST:
            self.forget(next(iter(self._tokens)))

    def get(self, token: str) -> SentItem | None:
        """The record that was sent for an item, if remembered."""
        return self._of.get(token)

    def mark_stored(self, batch: SealedRecords, stored: Stored) -> None:
        """Record that a remembered batch is stored after all."""
        if batch in self._tokens:
            self._stored[batch] = stored

    def answer(self, batch: SealedRecords) -> Stored | None:
        """The place where a batch is stored, if known."""
        return self._stored.get(batch)

    def forget(self, batch: SealedRecords) -> None:
        """Drop a refused batch: its items are sent again."""
        for token in self._tokens.pop(batch, ()):
            self._of.pop(token, None)
        self._stored.pop(batch, None)

    def take(self, token: str) -> None:
        """Forget one item, which has its result."""
        attempt = self._of.pop(token, None)
        if attempt is not None and not any(
            each in self._of for each in self._tokens.get(attempt.batch, ())
        ):
            self.forget(attempt.batch)
