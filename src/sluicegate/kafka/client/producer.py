"""A Kafka producer that makes one request at a time, on aiokafka's client.

1. aiokafka's own producer retries in the background, without limit if it is idempotent, and its
   `stop` waits for that. So an abandoned write may still happen later, and it is unknown which
   records were sent. Here each request is one call: after it has ended, nothing more is sent, and
   its result states the known outcomes.
2. A batch has the producer's id and a sequence number of its partition. A batch without an answer
   is kept and resent unchanged, so that the broker recognizes it; until its result is known,
   nothing else is sent to its partition.
3. Only a stored batch uses up sequence numbers; a refused batch leaves no gap.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from aiokafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError, for_code
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import InitProducerIdRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.structs import TopicPartition as ClientPartition

from ..._core.clock import LOOP_CLOCK
from ..._core.errors import ConfigError, RefusedError
from ..._core.source import TopicPartition
from .answers import Failed, Stored, result_of, unanswered_result, unknown_result, unsent_result
from .internals import CuttingClient, close_client, refusal_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .answers import Produced
    from .options import ProducerOptions

NO_ID = (-1, -1)
"""The id and epoch of a batch that is not sealed."""
ALL = -1
"""Acknowledgement by all in-sync replicas."""
_FIND_TRIES = 5
_PAUSE = 0.1
"""Seconds between requests for an id or topic that a broker may still be creating."""
_SEQUENCES = 1 << 31
MAX_REQUEST_BYTES = 32 << 20
"""Instead of answering, a broker closes the connection on a request of more than
`socket.request.max.bytes`, by default 100 MiB.
"""


@dataclass(slots=True, eq=False)
class SealedRecords:
    """The encoded records of one partition, in the form in which they are sent and resent."""

    partition: TopicPartition
    data: bytes
    count: int

    def release(self) -> None:
        """Free the memory of stored records; the rest is kept for the items' offsets."""
        self.data = b""


class PartitionLog:
    """A partition, as its producer sees it. Only the holder of `lock` may send to it."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.lock = asyncio.Lock()
        self._sequence = 0
        self._undecided: SealedRecords | None = None

    @property
    def sequence(self) -> int:
        """The sequence number of the next record."""
        return self._sequence

    @property
    def undecided(self) -> SealedRecords | None:
        """The batch of unknown result; it is resent before any other."""
        return self._undecided

    def mark_sent(self, batch: SealedRecords) -> None:
        """Record that a batch is being sent."""
        self._undecided = batch

    def mark_stored(self, batch: SealedRecords) -> None:
        """Record that the batch is in the log."""
        self._undecided = None
        batch.release()
        self._sequence = (self._sequence + batch.count) % _SEQUENCES

    def mark_refused(self) -> None:
        """Record that the batch is not in the log."""
        self._undecided = None


class Producer:
    """Sends batches of records under one producer id, on a connected client."""

    _transactional_id: str | None = None

    def __init__(self, options: ProducerOptions, client: Any) -> None:
        self._options = options
        self._client = client
        self._id = NO_ID
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._spent_by: Exception | None = None

    def _begin_as(self, producer: tuple[int, int]) -> None:
        """Send under this id and epoch from now on; sequence numbers restart at 0."""
        self._id, self._logs, self._spent_by = producer, {}, None

    def _any_node(self) -> Any:
        node = self._client.get_random_node()
        if node is None:
            raise KafkaConnectionError(f"no broker is known at {self._options.bootstrap}")
        return node

    @property
    def is_spent(self) -> bool:
        """Whether a broker has forgotten the producer id, so that a new one is needed."""
        return self._spent_by is not None

    @property
    def spent_by(self) -> Exception | None:
        """The error that reported the forgotten producer id."""
        return self._spent_by

    # -- topics ------------------------------------------------------------------------------------

    def partitions(self, topic: str) -> list[int] | None:
        """Return the numbers of a topic's partitions, in order; `None` if the topic is unknown."""
        found = self._client.cluster.partitions_for_topic(topic)
        return sorted(found) if found else None

    def available(self, topic: str) -> list[int]:
        """Return the topic's partitions with a leader, or all of them if none has one."""
        found = self._client.cluster.available_partitions_for_topic(topic)
        return sorted(found) if found else self.partitions(topic) or []

    async def find(self, topics: Iterable[str]) -> dict[str, RefusedError]:
        """Request unknown topics; return a refusal for each topic that cannot be found.

        Suspends for about 3 s if a topic does not exist, since the request may create it.
        """
        missing = [each for each in topics if self.partitions(each) is None]
        for each in missing:
            self._client.add_topic(each)
        pause = _PAUSE
        for last in range(_FIND_TRIES, 0, -1):
            if not missing:
                return {}
            await self._client.force_metadata_update()
            missing = [each for each in missing if self.partitions(each) is None]
            if missing and last > 1:
                await LOOP_CLOCK.sleep(pause)
                pause *= 2
        return {each: self._missing(each) for each in missing}

    def _missing(self, topic: str) -> RefusedError:
        where = self._options.bootstrap
        if topic in self._client.cluster.unauthorized_topics:
            text = f"the broker at {where} does not authorize the topic {topic!r}"
            return RefusedError(text, repair="grant its user WRITE and DESCRIBE on it")
        text = f"there is no topic {topic!r} at {where}"
        return RefusedError(text, repair="create it, or allow auto.create.topics.enable")

    async def refresh(self) -> None:
        """Request leaders and partitions from a broker again. Suspends until the request has ended."""
        await self._client.force_metadata_update()

    # -- records -----------------------------------------------------------------------------------

    def log(self, partition: TopicPartition) -> PartitionLog:
        """Return the state of a partition, always the same object."""
        found = self._logs.get(partition)
        if found is None:
            found = self._logs[partition] = PartitionLog(partition)
        return found

    def builder(self) -> Any:
        """Return an empty batch builder.

        Call `append(index, timestamp, key, value, headers)` until it returns `None`, at
        `max_batch_bytes`; the first record always fits.
        """
        options = self._options
        return DefaultRecordBatchBuilder(
            2, options.codec, self._transactional_id is not None, *NO_ID, 0, options.max_batch_bytes
        )

    def seal(self, log: PartitionLog, builder: Any, count: int) -> SealedRecords:
        """Return the batch with the next sequence number of its partition."""
        builder.set_producer_state(*self._id, log.sequence)
        return SealedRecords(log.partition, bytes(builder.build()), count)

    async def produce(
        self, batches: Sequence[SealedRecords], answers: dict[SealedRecords, Produced]
    ) -> None:
        """Send each batch to its leader; put its result into `answers` once it is known.

        `batches` has at most one of each partition. Suspends until all have answered or timed out.
        Raises no Kafka errors. After a cancellation, batches without an answer are undecided.
        """
        sending = [
            self._request(leader, some, answers)
            for leader, led in groupby(sorted(batches, key=self._leader), self._leader)
            for some in _in_requests(led)
        ]
        if len(sending) == 1:
            return await sending[0]
        for raised in await asyncio.gather(*sending, return_exceptions=True):
            if raised is not None:
                raise raised
        return None

    def _leader(self, batch: SealedRecords) -> int:
        """Return the broker that leads the partition; -1 while there is none."""
        found = self._client.cluster.leader_for_partition(ClientPartition(*batch.partition))
        return -1 if found is None else found

    async def _request(
        self,
        leader: int,
        batches: Sequence[SealedRecords],
        answers: dict[SealedRecords, Produced],
    ) -> None:
        if leader < 0:
            answers.update((each, self._without_leader(each)) for each in batches)
            return
        logs = [self.log(each.partition) for each in batches]
        again = [log.undecided is not None for log in logs]
        for log, batch in zip(logs, batches, strict=True):
            log.mark_sent(batch)
        try:
            response = await self._client.send(leader, self._produce_request(batches))
        except NodeNotReadyError as error:
            found: list[Produced] = [unsent_result(str(each.partition), error) for each in batches]
        except (TimeoutError, KafkaError, OSError) as error:
            found = [unanswered_result(str(each.partition), error) for each in batches]
        else:
            found = _in_order(batches, _results_in(response))
        answers.update(
            zip(batches, map(self._note_answer, logs, batches, found, again), strict=True)
        )

    def _without_leader(self, batch: SealedRecords) -> Produced:
        place = str(batch.partition)
        gone = self.partitions(batch.partition.topic) is None
        answer = (
            Failed(self._missing(batch.partition.topic), may_pass=True)
            if gone
            else unsent_result(place, None)
        )
        is_again = self.log(batch.partition).undecided is batch
        return unknown_result(answer, place) if is_again else answer

    def _produce_request(self, batches: Sequence[SealedRecords]) -> ProduceRequest:
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for each in batches:
            topics.setdefault(each.partition.topic, []).append(
                (each.partition.partition, each.data)
            )
        return ProduceRequest(
            transactional_id=self._transactional_id,
            required_acks=ALL,
            timeout=self._options.request_timeout_ms,
            topics=list(topics.items()),
        )

    def _note_answer(
        self, log: PartitionLog, batch: SealedRecords, answer: Produced, is_again: bool
    ) -> Produced:
        """Record the answer in the partition's state; return it."""
        if isinstance(answer, Stored):
            log.mark_stored(batch)
            return answer
        if answer.forgets:
            self._spent_by = answer.error
        known = unknown_result(answer, str(batch.partition)) if is_again else answer
        if not known.is_unknown:
            log.mark_refused()
        return known


class ProducerSession(Producer):
    """A producer with its id, from start to stop. Can be used once, on one loop."""

    def __init__(self, options: ProducerOptions) -> None:
        try:
            client = CuttingClient(**options.arguments())
        except (TypeError, ValueError, AssertionError) as error:
            raise ConfigError(f"aiokafka refuses the options: {error}") from error
        super().__init__(options, client)

    async def start(self) -> None:
        """Connect, and obtain an id. On aiokafka errors, closes everything and raises them."""
        try:
            await self._bootstrap()
            self._begin_as(await self._new_id())
        except BaseException:
            await self.stop(self._options.close_timeout)
            raise

    async def _bootstrap(self) -> None:
        try:
            await self._client.bootstrap()
        except KafkaConnectionError as error:
            if (refusal := await self.refusal()) is not None:
                raise refusal from error
            raise

    async def _new_id(self) -> tuple[int, int]:
        # the timeout applies to transactions, and has no effect without one
        request = InitProducerIdRequest(
            transactional_id=None,  # pyright: ignore[reportArgumentType]  # it may be null
            transaction_timeout_ms=self._options.transaction_timeout_ms,
        )
        give_up_at = LOOP_CLOCK.now() + self._options.request_timeout
        while True:
            answer = await self._client.send(self._any_node(), request)
            if not answer.error_code:
                return answer.producer_id, answer.producer_epoch
            error = for_code(answer.error_code)()
            if not error.retriable or LOOP_CLOCK.now() >= give_up_at:
                raise error
            await LOOP_CLOCK.sleep(_PAUSE)  # the broker has just started
            await self._client.force_metadata_update()

    @property
    def client(self) -> Any:
        """The client, which other producers may share."""
        return self._client

    async def refusal(self) -> Exception | None:
        """Ask each broker once more; return its refusal of the login or certificate. Suspends."""
        return await refusal_of(self._client)

    async def stop(self, within: float) -> None:
        """Close the connections within `within` seconds; after that, leave them to the loop."""
        await close_client(self._client.close(), within)


def _in_order(
    batches: Sequence[SealedRecords], found: Mapping[TopicPartition, Produced]
) -> list[Produced]:
    missing = KafkaError("no answer for this partition")
    return [
        found.get(each.partition) or unanswered_result(str(each.partition), missing)
        for each in batches
    ]


def _results_in(response: Any) -> dict[TopicPartition, Produced]:
    """Return the answers for each partition in a response of any version."""
    return {
        (partition := TopicPartition(topic, answer[0])): _result(str(partition), *answer[1:])
        for topic, partitions in response.topics
        for answer in partitions
    }


def _result(  # in order of arrival
    place: str,
    code: int,
    offset: int,
    _timestamp: int = -1,
    _log_start: int = -1,
    faults: Sequence[tuple[int, str | None]] | None = (),
    told: str | None = "",
) -> Produced:
    records = {index: text or "" for index, text in faults or ()}
    return result_of(code, place, offset, records, told or "")


def _in_requests(batches: Iterable[SealedRecords]) -> list[list[SealedRecords]]:
    """Divide one leader's batches into requests of at most `MAX_REQUEST_BYTES`, or of one batch."""
    requests: list[list[SealedRecords]] = []
    room = 0
    for each in batches:
        room -= len(each.data)
        if not requests or room < 0:
            requests.append([])
            room = MAX_REQUEST_BYTES - len(each.data)
        requests[-1].append(each)
    return requests
