"""One write: the records of a batch, by partition, one request per leader at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core.clock import LOOP_CLOCK
from ..._core.errors import RefusedError, UnavailableError
from ..._core.order.left_out import stopped_behind
from ..._core.outcome import Outcome
from ..._core.sink import WriteResult
from ..client.produced import Stored
from .metadata import RecordMetadata
from .partition_write import PartitionWrite
from .places import Placing, topics_of
from .waves import moved, waves

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ..._core.batch import Batch
    from ..._core.source import TopicPartition
    from ..client.produced import Produced
    from ..client.producer import Producer, SealedRecords
    from .records import Columns
    from .sent_items import SentItem, SentItems
    from .waves import Placed

PAUSE = 0.1
"""Seconds before another attempt within a write, doubled each time; aiokafka's `retry_backoff_ms`.
"""


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
        resends: bool,
    ) -> None:
        self._session = session
        self._sent_items = sent_items
        self._batch = batch
        self._columns = columns
        self._topic = topic
        self._by_key = by_key
        self._resends = resends
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
            placed = moved(placed, {p: sent.batch.partition for p, sent in self._attached.items()})
        first: Placed = placed
        if (keys := self._batch.keys) is not None and (self._attached or not self._by_key):
            first, *self._later = waves(placed, [keys[i] for i in self._columns.indices])
        for partition in placed:
            self._lane(partition, self._fresh(first.get(partition, ())))

    def _fresh(self, places: Collection[int]) -> Collection[int]:
        if not self._attached:
            return places
        return [each for each in places if each not in self._attached]

    def _lane(self, partition: TopicPartition, places: Collection[int]) -> None:
        log = self._session.log(partition)
        self._lanes[partition] = PartitionWrite(
            self._session, log, self._columns, [*places], resends=self._resends
        )

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
                        self._answered(lane, batch, answer)
                self._take_answers()
            if tries := max(lane.tries for lane, _ in sent):
                await LOOP_CLOCK.sleep(PAUSE * 2 ** (tries - 1))
                await self._session.refresh()

    def _begin_wave(self) -> bool:
        """Add the records of the next wave; return whether there is one."""
        if not self._later:
            return False
        for partition, places in self._later.pop(0).items():
            self._lanes[partition].add(self._fresh(places))
        return True

    def _answered(self, lane: PartitionWrite, batch: SealedRecords, answer: Produced) -> None:
        if isinstance(answer, Stored):
            self._sent_items.stored(batch, answer)
        elif not answer.is_unknown:
            self._sent_items.forget(batch)
        lane.answered(batch, answer)

    def _take_answers(self) -> None:
        """Resolve attached items whose batch is no longer in doubt: they are stored, or sent anew."""
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
            if self._resends:
                tokens = self._batch.item_keys()
                self._sent_items.remember(batch, [tokens[index] for index in indices])
            else:
                lane.log.refused()  # no later write may resend it
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
