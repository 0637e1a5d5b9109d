"""Questions to a cluster of Kafka about its leaders, and changes of them. aiokafka lacks two of them: the election of a
preferred leader, and the leader of the controllers.

Any broker passes these requests on to the controllers. While no controller leads, and while an
earlier change spreads, the answer is an error or an old state; `_until` asks again.

White box: the ports of the nodes, and the clock of loops.
"""

# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol import types as kafka
from aiokafka.protocol.admin import AlterPartitionReassignmentsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest

from sluicegate._core.clock import LOOP_CLOCK
from sluicegate.kafka.server import _run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sluicegate.testing import EmbeddedKafka

T = TypeVar("T")

_REQUEST_MS = 5_000
_ANSWER_SECONDS = 30.0
_PAUSE = 0.05
"""Seconds between two attempts."""
_NOT_NEEDED = 84
"""The preferred replica leads already."""


class _Elected(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 43
    API_VERSION = 0
    _OF_PARTITION = (
        ("partition", kafka.Int32),
        ("code", kafka.Int16),
        ("message", kafka.String("utf-8")),
    )
    SCHEMA = kafka.Schema(
        ("throttle_time_ms", kafka.Int32),
        (
            "topics",
            kafka.Array(
                ("topic", kafka.String("utf-8")), ("partitions", kafka.Array(*_OF_PARTITION))
            ),
        ),
    )


class _ElectLeaders_v0(RequestStruct):  # type: ignore[misc]  # as its neighbours
    API_KEY = 43
    API_VERSION = 0
    RESPONSE_TYPE = _Elected
    SCHEMA = kafka.Schema(
        (
            "topics",
            kafka.Array(("topic", kafka.String("utf-8")), ("partitions", kafka.Array(kafka.Int32))),
        ),
        ("timeout_ms", kafka.Int32),
    )


class _ElectLeaders(Request[_ElectLeaders_v0]):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 43

    def __init__(self, topic: str, partition: int) -> None:
        self._topics = [(topic, [partition])]

    def build(self, request_struct_class: type[_ElectLeaders_v0]) -> _ElectLeaders_v0:
        return request_struct_class(self._topics, _REQUEST_MS)


class _Quorum(Response):  # type: ignore[misc]
    """The beginning of the response: the part after the leader is not read."""

    API_KEY = 55
    API_VERSION = 0
    _OF_PARTITION = (("partition", kafka.Int32), ("code", kafka.Int16), ("leader", kafka.Int32))
    SCHEMA = kafka.Schema(
        ("code", kafka.Int16),
        (
            "topics",
            kafka.CompactArray(
                ("topic", kafka.CompactString("utf-8")),
                ("partitions", kafka.CompactArray(*_OF_PARTITION)),
            ),
        ),
    )


class _DescribeQuorum_v0(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 55
    API_VERSION = 0
    RESPONSE_TYPE = _Quorum
    _OF_PARTITION = (("partition", kafka.Int32), ("tags", kafka.TaggedFields))
    SCHEMA = kafka.Schema(
        (
            "topics",
            kafka.CompactArray(
                ("topic", kafka.CompactString("utf-8")),
                ("partitions", kafka.CompactArray(*_OF_PARTITION)),
                ("tags", kafka.TaggedFields),
            ),
        ),
        ("tags", kafka.TaggedFields),
    )


class _DescribeQuorum(Request[_DescribeQuorum_v0]):  # type: ignore[misc]
    API_KEY = 55

    def build(self, request_struct_class: type[_DescribeQuorum_v0]) -> _DescribeQuorum_v0:
        return request_struct_class([("__cluster_metadata", [(0, {})], {})], {})


def leader_of(kafka: EmbeddedKafka, topic: str, partition: int = 0) -> int:
    """The number of the node that leads a partition, such as of `__consumer_offsets`."""
    leader: int = _answer(kafka, _leader_of, topic, partition)
    return leader


def in_sync(kafka: EmbeddedKafka, topic: str, partition: int = 0) -> set[int]:
    """The numbers of the nodes whose replicas of a partition are in sync."""
    replicas: set[int] = _answer(kafka, _in_sync, topic, partition)
    return replicas


def move_leader(kafka: EmbeddedKafka, topic: str, partition: int = 0, to: int | None = None) -> int:
    """Make another in-sync replica the leader, by default the next running one; return its number."""
    if to is None:
        now, running = leader_of(kafka, topic, partition), kafka.running
        to = next((each for each in running if each > now), running[0])
    leader: int = _answer(kafka, _move_leader, topic, partition, to)
    return leader


def kill_controller(kafka: EmbeddedKafka) -> int:
    """Kill the node that leads the controllers; return its number."""
    node: int = _answer(kafka, _controller)
    kafka.kill(node)
    return node


def _answer(kafka: EmbeddedKafka, question: Callable[..., Awaitable[Any]], *given: Any) -> Any:
    """Ask the first running node until there is an answer."""
    port = kafka._ports[kafka.running[0] - 1]
    return _run(_until(partial(question, port, *given), _ANSWER_SECONDS))


async def _until(found: Callable[[], Awaitable[T | None]], seconds: float) -> T:
    """Ask until there is an answer. Raises `TimeoutError` with the last error as its cause."""
    give_up_at = LOOP_CLOCK.now() + seconds
    while True:
        last: Exception | None = None
        try:
            if (answer := await found()) is not None:
                return answer
        except (KafkaError, OSError, TimeoutError) as error:
            last = error
        if LOOP_CLOCK.now() >= give_up_at:
            raise TimeoutError(f"the cluster has not answered for {seconds} s") from last
        await LOOP_CLOCK.sleep(_PAUSE)


async def _leader_of(port: int, topic: str, partition: int) -> int | None:
    """Return the partition's leader according to this broker; `None` without one."""
    leader, *_ = await _replicas(port, topic, partition)
    return leader if leader > 0 else None


async def _in_sync(port: int, topic: str, partition: int) -> set[int]:
    """Return the partition's replicas in sync according to this broker."""
    *_, found = await _replicas(port, topic, partition)
    return {*found}


async def _controller(port: int) -> int | None:
    """Return the leader of the controllers; `None` without one."""
    answer = await _ask(port, _DescribeQuorum())
    _check(answer.code)
    ((_, ((_, code, leader),)),) = answer.topics
    _check(code)
    return leader if leader > 0 else None


async def _move_leader(port: int, topic: str, partition: int, node: int) -> int | None:
    """Make this replica the preferred one, and elect it; return it once it leads."""
    leader, replicas, _ = await _replicas(port, topic, partition)
    if leader == node:
        return node
    if replicas[0] != node:
        order = [node, *(each for each in replicas if each != node)]
        tags: Any = {}
        topics: Any = [(topic, [(partition, order, tags)], tags)]
        request = AlterPartitionReassignmentsRequest(_REQUEST_MS, topics, tags)
        answer = await _ask(port, request)
        _check(answer.error_code)
        _check(answer.responses[0][1][0][1])
    answer = await _ask(port, _ElectLeaders(topic, partition))
    code = answer.topics[0][1][0][1]
    _check(0 if code == _NOT_NEEDED else code)
    return None


async def _replicas(port: int, topic: str, partition: int) -> tuple[int, list[int], list[int]]:
    answer = await _ask(port, MetadataRequest([topic]))
    ((code, *_, partitions),) = answer.topics
    _check(code)
    return next(
        (leader, replicas, isr)
        for _, number, leader, replicas, isr, *_ in partitions
        if number == partition
    )


async def _ask(port: int, request: Request[Any]) -> Any:
    async with asyncio.timeout(_REQUEST_MS / 1000):
        connection = await create_conn("127.0.0.1", port, request_timeout_ms=_REQUEST_MS)
        try:
            return await connection.send(request)
        finally:
            connection.close()


def _check(code: int) -> None:
    if code:
        raise for_code(code)
