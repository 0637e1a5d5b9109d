"""Requests to the broker that coordinates a transaction or a group.

1. A request is repeated while its coordinator is being elected, is loading, or does not answer,
   until its time limit. An unanswered attempt may still arrive, even after the answer to a later
   one.
2. Offsets of a group are requested such that no open transaction can still change them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from aiokafka import errors as kafka
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetFetchRequest_v3
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from ..._core.clock import LOOP_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PAUSE = 0.1
"""Seconds before the next attempt; aiokafka's `retry_backoff_ms`."""
_SHORT_PAUSE = 0.02
"""The same while an earlier transaction of the id is being completed, which takes milliseconds."""
UNSTABLE_OFFSETS = 88
"""UNSTABLE_OFFSET_COMMIT: an open transaction may change an offset."""
_CONCURRENT = {kafka.ConcurrentTransactions.errno, UNSTABLE_OFFSETS}
_ELSEWHERE = {
    kafka.CoordinatorNotAvailableError.errno,
    kafka.NotCoordinatorError.errno,
    kafka.RequestTimedOutError.errno,
}
_LATER = {
    kafka.CoordinatorLoadInProgressError.errno,
    kafka.UnknownTopicOrPartitionError.errno,
}


_PASSING = _CONCURRENT | _ELSEWHERE | _LATER
_UNANSWERED = (TimeoutError, kafka.KafkaError, OSError)
_UNSTABLE = OffsetFetchRequest_v3.API_VERSION
"""The version of aiokafka itself; later responses have the leader's epoch before the metadata."""


class CoordinatorRefused(Exception):  # its code identifies the error
    """A broker refuses to name the coordinator, with this error code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class CoordinatorAnswer(NamedTuple):
    """A coordinator's last answer."""

    code: int
    """Its error code; 0 means success."""
    body: Any
    is_only: bool
    """Whether all earlier attempts were answered too."""


class Coordinator:
    """Sends requests of one transactional id or one group to its coordinator."""

    def __init__(self, client: Any, kind: int, name: str) -> None:
        self._client = client
        self._kind = kind
        self._name = name
        self._node: int | None = None

    async def ask(
        self, request: Any, code_of: Callable[[Any], int], within: float
    ) -> CoordinatorAnswer:
        """Repeat a request until its answer is not a temporary error, or the time is up.

        Raises the client's error if the last attempt had no answer. Suspends for at most `within`
        seconds plus one request timeout. A cancelled request may still arrive.
        """
        give_up_at = LOOP_CLOCK.now() + within
        is_only = True
        while True:
            try:
                response = await self._client.send(
                    await self._find(), request, group=ConnectionGroup.COORDINATION
                )
                code = code_of(response)
                if code not in _PASSING or LOOP_CLOCK.now() >= give_up_at:
                    return CoordinatorAnswer(code, response, is_only)
                self._node = None if code in _ELSEWHERE else self._node
                await LOOP_CLOCK.sleep(_SHORT_PAUSE if code in _CONCURRENT else PAUSE)
            except _UNANSWERED as error:
                self._node = None
                is_only = is_only and isinstance(error, kafka.NodeNotReadyError)
                if LOOP_CLOCK.now() >= give_up_at:
                    raise
                await LOOP_CLOCK.sleep(PAUSE)
                await self._client.force_metadata_update()
            except asyncio.CancelledError:
                self._node = None  # it may have been replaced without an answer
                raise

    async def _find(self) -> int:
        """Return the coordinator's node. Raises errors of the client or the broker."""
        if self._node is not None and self._client.cluster.broker_metadata(self._node) is not None:
            return self._node  # a broker that the cluster no longer lists would not answer
        node = self._client.get_random_node()
        if node is None:
            raise kafka.NodeNotReadyError("no broker is known")
        try:
            request = FindCoordinatorRequest(self._name, self._kind)
            answer = await self._client.send(node, request)
        except _UNANSWERED as error:  # this request has no side effect
            raise kafka.NodeNotReadyError(f"no broker names the coordinator ({error!r})") from error
        if answer.error_code in _PASSING:
            why = kafka.for_code(answer.error_code)()
            raise kafka.NodeNotReadyError(f"there is no coordinator yet ({why!r})") from why
        if answer.error_code:
            raise CoordinatorRefused(answer.error_code)
        found: int = answer.coordinator_id
        self._node = found
        return found


class _OffsetFetchResponse_v7(Response):  # type: ignore[misc]  # noqa: N801  # aiokafka has no types
    API_KEY = 9  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    API_VERSION = 7  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("error_code", Int16),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class _OffsetFetchRequest_v7(RequestStruct):  # type: ignore[misc]  # noqa: N801
    API_KEY = 9
    API_VERSION = 7
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _OffsetFetchResponse_v7
    SCHEMA = Schema(
        ("consumer_group", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                ("partitions", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


_Struct: TypeAlias = OffsetFetchRequest_v3 | _OffsetFetchRequest_v7


class StableOffsetFetch(Request[_Struct]):  # type: ignore[misc]  # aiokafka has no types
    """Requests a group's offsets; fails with UNSTABLE_OFFSET_COMMIT while one may change.

    Brokers before Kafka 2.5 do not support this, and answer with the last committed offset.
    """

    API_KEY = 9

    def __init__(self, group: str, topics: Sequence[tuple[str, Sequence[int]]]) -> None:
        self._group = group
        self._topics = topics

    def build(self, request_struct_class: type[_Struct]) -> _Struct:
        """Build the request for a protocol version."""
        if request_struct_class is OffsetFetchRequest_v3:
            return request_struct_class(self._group, list(self._topics))
        tags: dict[int, bytes] = {}
        topics = [(topic, partitions, tags) for topic, partitions in self._topics]
        return request_struct_class(self._group, topics, True, tags)


class FetchedOffset(NamedTuple):
    """A partition's offset; -1 if it has none."""

    topic: str
    partition: int
    offset: int
    metadata: str
    code: int


def offsets_in(response: Any) -> list[FetchedOffset]:
    """Return the offsets in a response, in either version."""
    found: list[FetchedOffset] = []
    for topic, partitions, *_ in response.topics:
        for partition, offset, *others in partitions:
            metadata, code = others[1:3] if response.API_VERSION > _UNSTABLE else others
            found.append(FetchedOffset(topic, partition, offset, metadata or "", code))
    return found
