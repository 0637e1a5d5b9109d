"""The conformance suite of sources, on a log of streams in a real PostgreSQL.

Proven here: O-T5, O-T6, O-T7, O-T8, S-T1, S-T2, S-T11.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.conformance.consumed_source import ConsumedSourceConformance
from tests.postgres.streams.log_help import Log
from tests.postgres.streams.source.dense_help import DenseSource, DenseTopic, stream_in

from sluicegate.consumer import Position, TopicPartition
from sluicegate.postgres import PostgresAccess, PostgresStreamSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sluicegate.consumer import Source

LEASE = 3.0


class TestPostgresStreamSource(ConsumedSourceConformance):
    """A topic is a log; all sources of it are one subscription."""

    capabilities = DenseSource.capabilities
    lacks = {"holes"}

    @pytest.fixture(autouse=True)
    def _log(self, log: Log) -> None:
        self.dsn = log.dsn
        self.unused = [log]
        self.topics: dict[str, DenseTopic] = {}

    async def new_topic(self, partitions: int) -> str:
        log = self.unused.pop()
        self.topics[log.schema] = DenseTopic(partitions)
        return log.schema

    def source(self, topic: str) -> Source:
        made = PostgresStreamSource(
            PostgresAccess(self.dsn, close_timeout=2.0),
            subscription="s",
            schema=topic,
            lease=LEASE,
            poll=0.02,
        )
        return DenseSource(made, self.topics[topic], topic)

    async def append(
        self, topic: str, partition: int, entries: Sequence[tuple[bytes | None, bytes]]
    ) -> None:
        await self._append(topic, partition, entries)

    async def append_undecodable(self, topic: str, partition: int, key: bytes) -> None:
        await self._append(topic, partition, [(key, b"")], '{"n": 1e5000}')

    async def _append(
        self,
        topic: str,
        partition: int,
        entries: Sequence[tuple[bytes | None, bytes]],
        metadata: str = "{}",
    ) -> None:
        log, dense = Log(self.dsn, topic), self.topics[topic]
        async with log.connected() as con:
            for key, value in entries:
                offset = dense.next_offset(partition)
                data = json.dumps({"at": offset, "value": value.decode()})
                position = await con.fetchval(
                    f"SELECT r_position FROM {log.sql}.append($1, $2::text::jsonb)",
                    stream_in(partition, key),
                    f'[{{"type": "happened", "data": {data}, "metadata": {metadata}}}]',
                )
                dense.learn(partition, offset, position)

    async def stored(self, topic: str) -> Mapping[TopicPartition, Position]:
        log, dense = Log(self.dsn, topic), self.topics[topic]
        async with log.connected() as con:
            rows = await con.fetch(
                f"SELECT slot, position, metadata FROM {log.sql}.subscription_slot "
                "WHERE position > 0 AND slot < $1",
                dense.partitions,
            )
        return {
            TopicPartition(topic, slot): Position(dense.offset_of(slot, position), metadata)
            for slot, position, metadata in rows
        }

    async def lose(self, source: Source) -> None:
        """Let another process hold the leases for a moment."""
        assert isinstance(source, DenseSource)
        log = Log(self.dsn, source.host.name)
        async with log.connected() as con:
            await con.execute(
                f"UPDATE {log.sql}.subscription_slot SET epoch = epoch + 1, owner = 'another', "
                "lease_until = now()"
            )
