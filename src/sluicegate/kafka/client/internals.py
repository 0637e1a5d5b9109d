"""The private parts of aiokafka that a group member needs: its generation, single commits, single
waits, the end of silent connections, and the decoding of records one by one.

aiokafka decodes the names of headers while it iterates over a batch. A name that is not UTF-8 ends
the iteration, at the same record each time, so that it and the records behind it would never be
returned. `decode_singly` fetches the partition again, and decodes each record by itself.

Some aiokafka calls that close a client never return. Their limits end with the closing of a
consumer, but each has at least `AT_LEAST` seconds.

Written for aiokafka 0.13 and 0.14, as the extra `kafka` requires. Importing this module raises
`MissingExtra` with any other version: all that construct a class for Kafka import it.
"""

# pyright: reportPrivateUsage=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import inspect
import math
import ssl
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import aiokafka

from ..._core.errors import MissingExtra
from ..._core.runtime.threads import close_within
from ..._core.source import Position, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterator, Mapping

try:
    from aiokafka import AIOKafkaConsumer
    from aiokafka import errors as kafka
    from aiokafka.client import AIOKafkaClient, ConnectionGroup
    from aiokafka.conn import CloseReason, create_conn
    from aiokafka.consumer.fetcher import PartitionRecords
    from aiokafka.protocol.fetch import FetchRequest
    from aiokafka.protocol.group import JoinGroupRequest, SyncGroupRequest
    from aiokafka.record import default_records, memory_records
    from aiokafka.record.util import decode_varint
    from aiokafka.structs import OffsetAndMetadata
    from aiokafka.structs import TopicPartition as ClientPartition

    _Batch: Any = default_records._DefaultRecordBatchPy
    _Record: Any = default_records._DefaultRecordPy
    _Batches: Any = memory_records._MemoryRecordsPy
    if not aiokafka.__version__.startswith(("0.13.", "0.14.")):
        raise ImportError("its private parts may differ")
except (ImportError, AttributeError) as error:
    raise MissingExtra(
        f"aiokafka {aiokafka.__version__} is installed ({error}); Sluicegate needs the package aiokafka "
        "0.13 or 0.14, which the extra 'kafka' provides: pip install \"sluicegate[kafka]\"",
        name="aiokafka",
    ) from error

_UNKNOWN_OFFSET = -1
CLIENT_OPTIONS = frozenset(inspect.signature(AIOKafkaClient).parameters)
CONSUMER_OPTIONS = frozenset(inspect.signature(AIOKafkaConsumer).parameters)
AT_LEAST = 0.05
"""Seconds that closing a client is given at least."""


class CuttingClient(AIOKafkaClient):  # type: ignore[misc]  # it comes without types
    """aiokafka's client, which closes a silent connection when a request on it is cancelled, and asks
    for the leaders again.

    aiokafka closes it only after `request_timeout_ms` of one request. Requests that are cancelled
    earlier, as by `Timeout`, would all be sent on it, and never be answered. Its node may have been
    replaced as a leader long ago.
    """

    async def send(
        self, node_id: Any, request: Any, *, group: Any = ConnectionGroup.DEFAULT
    ) -> Any:
        began = asyncio.get_running_loop().time()
        try:
            return await super().send(node_id, request, group=group)
        except asyncio.CancelledError:
            found = self._conns.get((node_id, group))
            if found is None or found._last_action < began:
                if found is not None:
                    found.close()
                self.force_metadata_update()  # in the background
            raise


class MemberClient(AIOKafkaClient):  # type: ignore[misc]
    """aiokafka's client of a group member, which waits longer where the answer waits for other
    members, and tells whether the brokers answer.
    """

    def __init__(self, *, join_timeout: float, silent_after: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._join_timeout = join_timeout
        self._silent_after = silent_after
        self._unanswered: dict[object, float] = {}
        """The time of each request that has no answer yet."""

    @property
    def is_silent(self) -> bool:
        """Whether a request has had no answer for half of its time limit."""
        since = min(self._unanswered.values(), default=math.inf)
        return asyncio.get_running_loop().time() - since >= self._silent_after

    async def _get_conn(
        self, node_id: Any, *, group: Any = ConnectionGroup.DEFAULT, **given: Any
    ) -> Any:
        found = await super()._get_conn(node_id, group=group, **given)
        if found is not None and group == ConnectionGroup.COORDINATION:
            found._request_timeout = self._join_timeout
        return found

    async def send(
        self, node_id: Any, request: Any, *, group: Any = ConnectionGroup.DEFAULT
    ) -> Any:
        if isinstance(request, (JoinGroupRequest, SyncGroupRequest)):
            return await super().send(node_id, request, group=group)
        sent, loop = object(), asyncio.get_running_loop()
        self._unanswered[sent] = loop.time()
        try:
            async with asyncio.timeout(self._request_timeout_ms / 1000):
                return await super().send(node_id, request, group=group)
        except TimeoutError:
            if (found := self._conns.get((node_id, group))) is not None:
                found.close(reason=CloseReason.CONNECTION_TIMEOUT)
            raise kafka.RequestTimedOutError from None
        finally:
            del self._unanswered[sent]

    def cut(self) -> None:
        """Close the connections immediately; requests on them fail."""
        for each in [*self._conns.values()]:
            each.close()


class MemberConsumer(AIOKafkaConsumer):  # type: ignore[misc]
    """aiokafka's consumer with a `MemberClient`."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        answer, wait = arguments["request_timeout_ms"], arguments["fetch_max_wait_ms"]
        self._client = MemberClient(
            join_timeout=(arguments["rebalance_timeout_ms"] + answer) / 1000,
            silent_after=(answer + wait) / 2000,
            **{name: value for name, value in arguments.items() if name in CLIENT_OPTIONS},
        )

    @property
    def connections(self) -> MemberClient:
        """Its connections to the brokers."""
        return self._client


class _SingleRecords(_Batch):  # type: ignore[misc]
    """A batch whose iteration continues after a record with an undecodable header."""

    def __init__(self, data: Any, errors: dict[int, Exception]) -> None:
        super().__init__(data)
        self._pos: int
        self._errors = errors

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except kafka.CorruptRecordException as error:
            if not is_undecodable(error):
                raise
            return self._without_headers(error.__cause__)

    def _without_headers(self, error: Any) -> Any:
        buffer: Any = self._buffer
        length, at = decode_varint(buffer, self._pos)
        self._pos = at + length
        self._next_record_index += 1
        _, at = decode_varint(buffer, at)  # attributes
        age, at = decode_varint(buffer, at)
        place, at = decode_varint(buffer, at)
        fields: list[bytes | None] = []
        for _ in ("key", "value"):
            size, at = decode_varint(buffer, at)
            fields.append(None if size < 0 else bytes(buffer[at : at + size]))
            at += max(size, 0)
        is_own = self.timestamp_type != self.LOG_APPEND_TIME
        stamp = self.first_timestamp + age if is_own else self.max_timestamp
        offset = self.base_offset + place
        self._errors[offset] = error
        return _Record(offset, stamp, self.timestamp_type, *fields, [])


class _SingleBatches(_Batches):  # type: ignore[misc]
    """The batches of a response, with their records decoded one by one."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.errors: dict[int, Exception] = {}

    def next_batch(self) -> Any:
        data = self._next_slice
        if data is None or data[self.MAGIC_OFFSET] < 2:  # older formats have no headers
            return super().next_batch()
        self._cache_next()
        return _SingleRecords(data, self.errors)


class DecodedSingly(NamedTuple):
    """Records of a partition, each decoded by itself."""

    records: list[Any]
    errors: dict[int, Exception]
    """The errors of undecodable records, by offset."""
    next_offset: int


def is_undecodable(error: Exception) -> bool:
    """Return whether aiokafka's error of an iteration is about a record that cannot be decoded."""
    return isinstance(error, UnicodeDecodeError) or isinstance(error.__cause__, UnicodeDecodeError)


async def decode_singly(consumer: Any, partition: Any, offset: int, most: int) -> DecodedSingly:
    """Fetch a partition from this offset on; return up to `most` records. Raises aiokafka
    errors. Changes nothing in the consumer.
    """
    fetcher, client = consumer._fetcher, consumer._client
    leader = client.cluster.leader_for_partition(partition)
    if leader is None or leader < 0:
        raise kafka.LeaderNotAvailableError
    most_bytes, level = fetcher._max_partition_fetch_bytes, fetcher._isolation_level
    wanted = [(partition.topic, [(partition.partition, offset, most_bytes)])]
    request = FetchRequest(fetcher._fetch_max_wait_ms, 1, most_bytes, level, wanted)
    response = await client.send(leader, request)
    ((_, ((_, code, _, *rest),)),) = response.topics
    if code:
        raise kafka.for_code(code)
    aborted = None
    if response.API_VERSION >= 4:
        aborted = rest[-3] if response.API_VERSION >= 11 else rest[-2]
    batches = _SingleBatches(rest[-1])
    reading = PartitionRecords(
        partition, batches, aborted, offset, None, None, fetcher._check_crcs, level
    )
    records = [*islice(reading, most)]
    return DecodedSingly(records, batches.errors, reading.next_fetch_offset)


async def refusal_of(client: Any) -> Exception | None:
    """Ask each broker again; return its refusal of the login or certificate, otherwise `None`.

    Suspends until the brokers have answered, or the client's request timeout has passed.
    """
    options: dict[str, Any] = {
        name: getattr(client, f"_{name}")
        for name in inspect.signature(create_conn).parameters
        if name.startswith(("sasl_", "ssl_")) or name in ("client_id", "security_protocol")
        if hasattr(client, f"_{name}")
    }
    if options.get("security_protocol") == "PLAINTEXT":
        return None
    for host, port, _ in client.hosts:
        try:
            connection = await create_conn(host, port, **options)
        except (TimeoutError, kafka.KafkaConnectionError):
            continue
        except (kafka.KafkaError, ssl.SSLError) as error:
            return error
        except OSError:
            continue
        connection.close()
    return None


class MemberInternals:
    """The private parts of an `AIOKafkaConsumer`, which exist once it has started."""

    def __init__(self, client: MemberConsumer) -> None:
        self._client: Any = client
        self._has_started = False

    def _begin(self) -> None:
        """Find the parts of the started client."""
        self._coordinator = self._client._coordinator
        self._fetcher = self._client._fetcher
        self._subscription = self._client._subscription
        self._has_started = True

    @property
    def generation(self) -> int:
        """The generation of the group that this member belongs to; -1 while it is not a member."""
        generation: int = self._coordinator.generation
        return generation

    @property
    def has_coordinator(self) -> bool:
        """Whether the coordinator of the group is known and has answered the last request."""
        return self._coordinator.coordinator_id is not None

    @property
    def is_silent(self) -> bool:
        """Whether a broker has not answered a request for half of its time limit."""
        silent: bool = self._client.connections.is_silent
        return silent

    @property
    def has_died(self) -> bool:
        """Whether aiokafka has stopped coordination because of an internal error."""
        task: asyncio.Task[object] = self._coordinator._coordination_task
        return task.done()

    def raise_death(self) -> None:
        """Raise the error behind `has_died`, if it is known."""
        task: asyncio.Task[object] = self._coordinator._coordination_task
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    def fault(self) -> Exception | None:
        """Return the pending error of coordination, once; coordination then continues."""
        if self.has_died:
            return None
        try:
            self._coordinator.check_errors()
        except Exception as error:
            return error
        return None

    async def refresh(self) -> None:
        """Request the topics from a broker again. Suspends until it answers, however long."""
        await self._client.connections.force_metadata_update()

    @property
    def _is_reassigning(self) -> bool:
        """Whether a rebalance is in progress; no records are returned meanwhile."""
        reassigning: bool = self._subscription.reassignment_in_progress
        return reassigning

    def _state(self, partition: TopicPartition) -> Any:
        """Return the state of an assigned partition; `None` for other partitions."""
        subscription = self._subscription.subscription
        assignment = None if subscription is None else subscription.assignment
        return None if assignment is None else assignment.state_value(ClientPartition(*partition))

    def has_arrived(self, partition: TopicPartition) -> bool:
        """Return whether `take` has records of a partition to return, or an error to raise."""
        return partition in self._fetcher._records

    @contextmanager
    def _without_others(self, key: Any) -> Iterator[None]:
        """Show the client only what has arrived of one partition. It looks at each partition that
        has arrived whenever it returns one of them, so a round would cost their square.

        Nothing may suspend inside.
        """
        every = self._fetcher._records
        self._fetcher._records = {key: every[key]} if key in every else {}
        try:
            yield
        finally:
            if key not in self._fetcher._records:
                every.pop(key, None)
            self._fetcher._records = every

    async def wait(self, seconds: float) -> None:
        """Suspend until records or an error have arrived, for at most `seconds`."""
        waiter: asyncio.Future[None] = self._fetcher._create_fetch_waiter()
        try:
            await asyncio.wait([waiter], timeout=seconds)
        finally:
            if not waiter.cancel() and not waiter.cancelled():
                waiter.exception()  # reported by `fault`

    async def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Send one commit in the current generation. Raises aiokafka errors.

        Suspends until the answer. A cancelled commit may have been stored.
        """
        offsets = {
            ClientPartition(*partition): OffsetAndMetadata(*position)
            for partition, position in positions.items()
        }
        await self._coordinator._do_commit_offsets(None, offsets)

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Position]:
        """Return the existing stored positions with their maps, in one request.

        Raises aiokafka errors.
        """
        asked = [ClientPartition(*each) for each in partitions]
        found: Mapping[Any, Any] = await self._coordinator._do_fetch_commit_offsets(asked)
        return {
            # librdkafka's clients append a NUL to the metadata
            TopicPartition(*key): Position(stored.offset, (stored.metadata or "").rstrip("\0"))
            for key, stored in found.items()
            if stored.offset != _UNKNOWN_OFFSET
        }

    async def _close_parts(self, within: float) -> None:
        """Close the fetcher and the connections, each in at most `within` seconds."""
        await close_client(self._fetcher.close(), within)
        await close_client(self._client.connections.close(), within)


async def close_client(closing: Coroutine[Any, Any, object], within: float) -> None:
    """Run a client's own `close()` or `stop()` for at most `within` seconds, ignoring its errors."""
    await end_task(asyncio.ensure_future(closing), within)


async def end_task(task: asyncio.Future[Any], within: float) -> None:
    """Suspend until the work has ended, ignoring its errors; cancel it after `within` seconds."""
    await asyncio.wait([task], timeout=max(AT_LEAST, close_within(within)))
    if not task.cancel() and not task.cancelled():
        task.exception()
