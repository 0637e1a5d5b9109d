"""Values of Avro in the destinations: a table in the guide, measured; and one form of JSON."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx
from tests.clickhouse.servers import EngineServer, running
from tests.kafka.source.kafka_help import new_topic
from tests.kafka.source.storm_help import run
from tests.kafka.values.scripted_registry import scripted_registry
from tests.kafka.values.stored_values import FIELDS, PAGE, PRICE, decoded, in_json, table
from tests.kafka.values.test_avro import ITEM, framed
from tests.kafka.values.test_real_registry import moved
from tests.nats.sink.nats_help import new_stream, read
from tests.redis_server import redis_server

import redis as redis_py
from sluicegate import Batcher, RowBatch, flow, send
from sluicegate.consumer import MemoryLog, MemorySource
from sluicegate.http import ElasticsearchSink, HttpAccess, HttpSink
from sluicegate.kafka import Avro, KafkaSink, SchemaRegistry
from sluicegate.nats import NatsSink
from sluicegate.postgres import PostgresSink, postgres_columns
from sluicegate.redis import RedisSink
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.testing import EmbeddedKafka, EmbeddedNats, EmbeddedPostgres


def test_the_table_in_the_guide_is_what_is_stored(embedded_postgres: EmbeddedPostgres) -> None:
    """Write it anew with `PYTHONPATH=src:. python -m tests.kafka.values.stored_values`."""
    with there_or_skip("clickhouse", running(EngineServer)) as server:
        assert asyncio.run(table(embedded_postgres.dsn, server)) in PAGE.read_text("utf-8")


async def item() -> dict[str, Any]:
    """Everything that has a form in JSON."""
    given = zip(FIELDS, await decoded(), strict=True)
    return {field.avro: value for field, value in given if not isinstance(value, bytes)}


async def check(sink: Any) -> None:
    async with sink:
        assert await send(sink, RowBatch([await item()])) == {}


def test_every_sink_of_json_stores_the_same(
    broker: EmbeddedKafka, embedded_nats: EmbeddedNats
) -> None:
    bodies: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(request.content)
        ended = {"index": {"status": 201, "_id": "1"}}
        return httpx.Response(200, json={"errors": False, "items": [ended]})

    async def scenario(store: str) -> None:
        transport = httpx.MockTransport(answer)
        access = HttpAccess("http://h", client=lambda: httpx.AsyncClient(transport=transport))
        topic, stream = await new_topic(broker), await new_stream(embedded_nats)
        await check(HttpSink(access))
        await check(ElasticsearchSink(access, index="i", compression=None))
        await check(KafkaSink(topic, bootstrap=broker.bootstrap))
        await check(NatsSink(f"{stream}.a", servers=embedded_nats.url))
        await check(RedisSink(store, stream="s", fields=lambda item: {"value": item}))
        with redis_py.Redis.from_url(store) as client:
            entries: Any = client.xrange("s")
        lines = [fields[b"value"] for _, fields in entries]
        texts = [bodies[0], bodies[-1].splitlines()[-1], *lines]
        texts += [each.data for each in await read(embedded_nats, stream)]
        texts += await moved(broker, topic, lambda message: message.value, 1)
        expected = {
            field.avro: json.loads((await in_json(value, field)).strip("`"))
            for field, value in zip(FIELDS, await decoded(), strict=True)
            if not isinstance(value, bytes)
        }
        assert [json.loads(text) for text in texts] == 5 * [expected]

    with there_or_skip("redis", redis_server()) as server:
        run(scenario(server.url))


def test_a_field_that_a_schema_gains_becomes_a_column(embedded_postgres: EmbeddedPostgres) -> None:
    """While the pipe runs, with the first record that has a value for it."""
    wider = {**ITEM, "fields": [*ITEM["fields"], {"name": "price", "type": ["null", PRICE]}]}

    async def scenario() -> None:
        log, dsn = MemoryLog(), embedded_postgres.dsn

        async def write(batch: Batch[Any]) -> Any:
            result = await sink.write(batch)
            if batch[-1]["n"] == 2:
                for number, price in [(3, None), (4, Decimal("1.50")), (5, None)]:
                    value = {"n": number, "price": price}
                    log.produce("t", framed(wider, value, 2), key="k")
                log.produce("t", framed(ITEM, {"n": 6}), key="k")
            if batch[-1]["n"] == 6:
                pipe.stop()
            return result

        async with scripted_registry() as there:
            there.has(1, ITEM)
            there.has(2, wider)
            log.produce("t", framed(ITEM, {"n": 1}), key="k")
            log.produce("t", framed(ITEM, {"n": 2}), key="k")
            sink = PostgresSink(
                dsn,
                table="growing",
                columns=postgres_columns(ITEM),
                create_table="if_missing",
                on_new_column="add",
            )
            avro = Avro(SchemaRegistry(there.url))
            pipe = flow.pipe(MemorySource(log), Batcher(write), avro.value)
            async with sink:
                await pipe.run()
        con = await asyncpg.connect(dsn)
        rows = await con.fetch("SELECT * FROM growing ORDER BY n")
        await con.execute("DROP TABLE growing")
        await con.close()
        none = [(1, None), (2, None), (3, None), (5, None), (6, None)]
        assert [tuple(row) for row in rows] == sorted([*none, (4, Decimal("1.50"))])

    run(scenario())
