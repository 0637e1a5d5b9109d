"""The sink for Kafka topics."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ..._core import checks
from ..._core.batch import RowBatch
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import ClosedError, ConfigError, PositionLost, RefusedError
from ..._core.keywords import known_arguments
from ..._core.loading import called
from ..._core.logs import for_log, log_safely
from ..._core.opening import Openable
from ..._core.positions import PositionUnit
from ..._core.runtime.threads import close_within
from ..._core.sink import Capabilities
from ..._core.trace_context import item_traces
from ..._core.values.encoding import getter
from ..access import KafkaAccess, access_of
from ..arguments import topic_of
from ..client.options import MAX_BATCH_BYTES, ProducerOptions
from ..errors import classify_kafka
from .records import RecordMaker, RecordParts, part, with_trace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from contextlib import AsyncExitStack
    from datetime import datetime, timedelta

    from ..._core.batch import Batch
    from ..._core.errors import ErrorClass
    from ..._core.sink import WriteResult
    from ..._core.source import Position, TopicPartition
    from ..._core.transaction import Transaction, Unit
    from ..client.producer import Producer, ProducerSession
    from ..client.transactional import TransactionalProducer
    from .claims import KafkaClaims
    from .write import SentItems

logger = logging.getLogger("sluicegate.kafka")

_NEW_ID = (
    "%r: the broker has forgotten this producer (%s); a new one is used, and records that were "
    "sent without a response may be stored twice if they are retried"
)

_LEFT_OPEN = (
    "%r: the transaction of %s could not be ended (%s): readers of committed records are blocked "
    "until the next claim of its partition, or for transaction_timeout"
)
_SCATTERS = (
    "KafkaSink without key= chooses a partition for each write; pass the key's field or a function "
    "as key=, so that the records of one key go to one partition"
)


@known_arguments(access=KafkaAccess)
class KafkaSink(Openable):
    """Writes items as records of Kafka topics. Each record has its own outcome, with its partition
    and offset as details.

    Args:
        topic: the name of the topic, or a function from an item to it.
        topic_field: the field that contains an item's topic; instead of `topic`.
        bootstrap: `"host:port"`, several of these separated by commas, a list, or a `KafkaAccess`.
        key: the field that contains a record's key, or a function from an item to it. Bytes are
            sent unchanged, text in UTF-8, anything else as JSON. Default: the batcher's key if
            there is one, or else no key. Records of one key go to one partition, the same as with
            Kafka's own clients.
        value: the field that contains a record's value, or a function from an item to it: bytes, a
            string, or `None` for a tombstone. Default: bytes unchanged, anything else as JSON.
        headers: the field that contains the headers, or a function from an item to them: a mapping,
            or pairs of a name and bytes.
        timestamp: the field that contains a record's time, or a function from an item to it: a
            `datetime` with a time zone, or milliseconds since 1970. Default: the time of sending.
        partition: the field that contains a partition's number, or a function from an item to it;
            with `None` the key determines the partition.
        compression: `"gzip"`, `"snappy"`, `"lz4"`, `"zstd"` or `None` (default).
        max_batch_bytes: the maximum size of a batch for a partition, before compression; default
            1,000,000. A larger record is sent alone. The topic's `max.message.bytes` must be at
            least as large.
        transaction_timeout: seconds without progress after which a broker aborts a transaction of
            `flow.transaction`; default 60.

    All in-sync replicas acknowledge each record (`acks=all`). The records of a write are stored in
    each partition in their order, even after a retry. Batches are formed by the batcher only: the
    sink adds no linger. Brokers recognize records that they have already stored (the producer is
    idempotent), so a lost response causes no duplicates while the sink is open.

    Raises `ConfigError` for a bad argument and `MissingExtra` without aiokafka. Constructing does
    not suspend and connects to nothing. Opening suspends; it connects and looks up a fixed topic.
    It raises `ConfigError` for a refused login or certificate and for a topic that does not exist
    or that the user may not access, and `UnavailableError` if no broker responds.
    """

    refuses_units = (
        "a topic has no place to record which parts of a repeated write it contains. Write at "
        "least once, with an id in each record by which readers drop duplicates; or write to a "
        "table; or write from a topic with flow.transaction(source, sink), outside Spark"
    )
    _run_time = ("_session", "_sent_items", "_renewing", "_claims")

    def __init__(
        self,
        topic: str | Callable[[Any], str] | None = None,
        *,
        bootstrap: str | Sequence[str] | KafkaAccess,
        topic_field: str | None = None,
        key: str | Callable[[Any], object] | None = None,
        value: str | Callable[[Any], bytes | str | None] | None = None,
        headers: str | Callable[[Any], Any] | None = None,
        timestamp: str | Callable[[Any], datetime | int | None] | None = None,
        partition: str | Callable[[Any], int | None] | None = None,
        compression: Literal["gzip", "snappy", "lz4", "zstd"] | None = None,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        transaction_timeout: float | timedelta = 60.0,
    ) -> None:
        self._topic = _topic(topic, topic_field)
        self._maker = RecordMaker(
            key=part("key", key),
            value=part("value", value),
            headers=part("headers", headers),
            timestamp=part("timestamp", timestamp),
            topic=topic if callable(topic) else getter("topic_field", topic_field),
            partition=part("partition", partition),
        )
        self._parts = RecordParts.of(
            topic_field=topic_field,
            key=key,
            value=value,
            headers=headers,
            timestamp=timestamp,
            partition=partition,
        )
        self._options = ProducerOptions.of(
            access=access_of(bootstrap),
            compression=compression,
            max_batch_bytes=max_batch_bytes,
            transaction_timeout=transaction_timeout,
        )
        self._session: ProducerSession | None = None
        self._sent_items: SentItems | None = None
        self._renewing: asyncio.Lock | None = None
        self._claims: KafkaClaims | None = None

    @property
    def capabilities(self) -> Capabilities:
        """`key_prefix_safe`: in a batch with keys, nothing is sent after a failed item of the same
        key.

        Not idempotent: a repeated item becomes another record, except in a retry of a write whose
        response was lost (`repeatable`). One batch at a time is in flight to each partition.
        """
        return Capabilities(
            key_prefix_safe=True,
            repeatable="write",
            several_destinations=self._topic is None,
        )

    def classify(self, error: BaseException) -> ErrorClass | None:
        """Return the class of a Kafka error, by its error code; `None` for any other error."""
        return classify_kafka(error)

    def refused_columns(self, schema: Any) -> Mapping[str, str]:
        """The columns of a `pyarrow.Schema` that cannot become parts of records, and columns that
        are named as parts but missing.
        """
        from .columns import refused_columns  # pyarrow is installed: it made the schema

        return refused_columns(schema, self._parts)

    @property
    def scatters_keys(self) -> str | None:
        """The reason why rows of one key can reach several partitions; `None` if each row has its
        own key or partition.
        """
        return None if self._parts.has_place else _SCATTERS

    async def _open(self, stack: AsyncExitStack) -> None:
        self._renewing = asyncio.Lock()
        session = await self._start()
        stack.push_async_callback(self._close)
        from .claims import KafkaClaims
        from .write import SentItems

        self._session, self._sent_items = session, SentItems()
        self._claims = KafkaClaims(self._options, session.client)
        if self._topic is not None:
            missing = await session.find([self._topic])
            if refused := missing.get(self._topic):
                raise ConfigError(f"topic={self._topic!r}: {refused}") from refused

    async def _start(self) -> ProducerSession:
        from ..client.errors import opening_error
        from ..client.producer import ProducerSession

        session = ProducerSession(self._options)
        try:
            await session.start()
        except Exception as error:
            raise opening_error(error, self._options.bootstrap) from error
        return session

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.stop(self._options.close_timeout)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Send every item of `batch` as a record, in order in each partition; suspends until all
        responses have arrived, for at most three attempts of `request_timeout`.

        The details of an item are its `RecordMetadata`. An item fails with `PermanentError` (it
        cannot become a record, or the topic refuses it), `TooLargeError`, `RefusedError` (no such
        topic, no permission), `UnavailableError` (no broker could be reached; nothing was sent),
        `TransientError` (the broker has not stored it), `UnknownOutcomeError` (no response: it may
        be stored) or `KeyStopped` (after a failed item of its key). An item with an unknown outcome
        is not sent twice when it is retried. Raises `ClosedError` while the sink is not open.
        Records of a cancelled write that were in flight may be stored; the next write to the
        partition resolves this first.
        """
        session = await self._current()
        assert self._sent_items is not None
        return await self._write(session, self._sent_items, batch)

    async def _write(
        self, producer: Producer, sent_items: SentItems, batch: Batch[Any]
    ) -> WriteResult | None:
        from .write import KafkaWrite

        items = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        made = await called(partial(self._maker.columns, items), batch.keys)
        columns = with_trace(made, item_traces(batch))
        return await KafkaWrite(
            producer,
            sent_items,
            batch,
            columns,
            topic=self._topic,
            by_key=self._maker.places_by_key,
        ).run()

    async def _current(self) -> ProducerSession:
        """Return the session. If a broker has forgotten it, open a new one, which suspends."""
        if self._session is None or self._renewing is None:
            raise self._closed_error()
        if not self._session.is_spent:
            return self._session
        from .write import SentItems

        async with self._renewing:
            spent = self._session
            if spent.is_spent:
                try:
                    self._session, self._sent_items = await self._start(), SentItems()
                except ConfigError as error:
                    raise RefusedError(str(error), repair="allow this login again") from error
                log_safely(logger, logging.WARNING, _NEW_ID, self, spent.spent_by)
                await spent.stop(self._options.close_timeout)
            return self._session

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"{self!r} is not open; use it in an `async with`")

    # -- positions of a source: see `sluicegate._core.positions`
    # --------------------------------------

    keeps_group_offsets = True

    async def claim_positions(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Own these partitions from now on, and abort open transactions of earlier owners; return
        the group's offsets. Suspends. Raises `RefusedError` if the broker does not allow it.
        """
        return await self._open_claims().claim(group, partitions)

    async def read_positions(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """The group's offsets of claimed partitions, after aborting any open transaction of this
        owner. Suspends. Raises `PositionLost`.
        """
        return await self._open_claims().read(group, partitions)

    async def store_positions(
        self, group: str, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        """Store offsets without records; return the partitions whose offsets are stored. Suspends."""
        return await self._open_claims().store(group, positions)

    def stored_offset(
        self, group: str, partition: TopicPartition, of: TopicPartition
    ) -> int | None:
        """The offset of the first record in the last batch that was stored in the partition `of`,
        in transactions of a claimed partition; `None` if unknown.
        """
        return self._open_claims().stored_offset(group, partition, of)

    def release_positions(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Forget claimed partitions."""
        if self._claims is not None:
            self._claims.release(group, partitions)

    @asynccontextmanager
    async def transaction(
        self, unit: Unit | PositionUnit | None
    ) -> AsyncIterator[Transaction[Any]]:
        """A transaction of the unit's partition; enter it with `sluicegate.transaction(sink,
        unit)`.

        Its records and the unit's offset commit together. If the block raises, the transaction is
        aborted, within `close_timeout`; readers of committed records never see any of it. Raises
        `ConfigError` for anything but a `PositionUnit`, `PositionLost` if another owner has claimed
        the partition, and `UnknownOutcomeError` if the commit has no response.
        """
        if not isinstance(unit, PositionUnit):
            raise checks.bad("unit", unit, f"must be a PositionUnit: {self.refuses_units}")
        producer = await self._open_claims().producer(unit)
        from .claims import KafkaTransaction
        from .write import SentItems

        write = partial(self._write, producer, SentItems())
        within = KafkaTransaction(unit, self.capabilities, write)
        try:
            try:
                yield within
            finally:
                within.end()
            await producer.commit({unit.partition: unit.position})
        except Exception as error:
            if (lost := await self._abort(producer, unit)) is not None:
                raise lost from error
            raise
        except BaseException:  # cancelled
            await self._abort(producer, unit)
            raise
        within.commits()

    async def _abort(
        self, producer: TransactionalProducer, unit: PositionUnit
    ) -> PositionLost | None:
        """Abort an unfinished transaction, if possible within `close_timeout`. Returns the error if
        another owner has ended it.
        """
        within = close_within(self._options.close_timeout)
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + within):
                await producer.abort()
        except PositionLost as lost:
            return lost
        except Exception as error:
            log_safely(logger, logging.WARNING, _LEFT_OPEN, self, unit.name, for_log(error))
        return None

    def _open_claims(self) -> KafkaClaims:
        if self._claims is None:
            raise self._closed_error()
        return self._claims

    def __repr__(self) -> str:
        topic = "..." if self._topic is None else repr(self._topic)
        return f"KafkaSink({topic}, bootstrap={self._options.bootstrap!r})"


def _topic(topic: object, field: object) -> str | None:
    if (topic is None) == (field is None):
        rule = (
            "must be given, or topic_field"
            if topic is None
            else "cannot be combined with topic_field"
        )
        raise checks.bad("topic", topic, rule)
    if field is not None or callable(topic):
        return None
    return topic_of("topic", topic)
