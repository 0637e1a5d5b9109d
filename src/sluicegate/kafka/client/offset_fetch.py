"""Requests for offsets of a group that no open transaction can still change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetFetchRequest_v3
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

if TYPE_CHECKING:
    from collections.abc import Sequence


_UNSTABLE = OffsetFetchRequest_v3.API_VERSION


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


def fetched(response: Any) -> list[FetchedOffset]:
    """Return the offsets in a response, in either version."""
    found: list[FetchedOffset] = []
    for topic, partitions, *_ in response.topics:
        for partition, offset, *others in partitions:
            metadata, code = others[1:3] if response.API_VERSION > _UNSTABLE else others
            found.append(FetchedOffset(topic, partition, offset, metadata or "", code))
    return found
