"""A real broker and a real registry: from `KafkaSink` to a consumer and a pipe.
White box: the id that a codec has for its schema.
"""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

import pytest
from fastavro.validation import ValidationError
from tests.kafka.source.kafka_help import new_name, new_topic
from tests.kafka.source.storm_help import run
from tests.kafka.values.test_avro import ITEM, JAVA, ORDER
from tests.kafka.values.test_protobuf import PART

from sluicegate import Batcher, Consumer, Message, RefusedError, Retry, flow, stack
from sluicegate.kafka import Avro, Json, KafkaSink, KafkaSource, Protobuf, SchemaRegistry
from sluicegate.testing import EmbeddedRegistry, embedded_registry

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka

OBJECT = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
KEY = {"type": "record", "name": "Key", "fields": [{"name": "k", "type": "string"}]}


async def moved(broker: EmbeddedKafka, topic: str, transform: Any, count: int) -> list[Any]:
    """The rows of a pipe from a topic."""
    rows: list[Any] = []

    async def write(batch: Any) -> None:
        rows.extend(batch)
        if len(rows) >= count:
            pipe.stop()

    source = KafkaSource(topic, bootstrap=broker.bootstrap, group=new_name("g"), start="earliest")
    pipe = flow.pipe(source, Batcher(write), transform)
    await pipe.run()
    return rows


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda registry: Avro(registry, ITEM, auto_register=True), {"n": 7}),
        (lambda registry: Json(registry, OBJECT, auto_register=True), {"n": 7}),
        (lambda registry: Protobuf(registry, PART, auto_register=True), PART(sku="a")),
    ],
    ids=["avro", "json", "protobuf"],
)
def test_keys_and_values_go_through_topics(
    broker: EmbeddedKafka, embedded_registry: EmbeddedRegistry, make: Any, value: Any
) -> None:
    """The schemas are registered by the first write; others read with what the registry knows, and
    for Protobuf with the class.
    """

    async def scenario() -> None:
        topic, registry = await new_topic(broker), SchemaRegistry(embedded_registry.url)
        codec, keys = make(registry), Avro(registry, KEY, auto_register=True)
        sink = KafkaSink(
            topic,
            bootstrap=broker.bootstrap,
            key=keys.encoder(topic, part="key", of=lambda item: {"k": item[0]}),
            value=codec.encoder(topic, of=lambda item: item[1]),
        )
        async with Batcher(stack(sink, Retry())) as batcher:
            await batcher.add_many([("a", value), ("b", value), ("a", None)])
        assert batcher.report is not None
        assert batcher.report.tally.delivered == 3
        other = SchemaRegistry(embedded_registry.url)
        read: Any = Protobuf(other, PART) if isinstance(codec, Protobuf) else type(codec)(other)
        own = Avro(other)
        rows = await moved(broker, topic, lambda m: (own.key(m)["k"], read.value(m)), 3)
        found = [(key, str(each)) for key, each in rows]
        assert sorted(found) == sorted([("a", str(value)), ("b", str(value)), ("a", "None")])

    run(scenario())


def test_a_java_record_is_consumed(
    broker: EmbeddedKafka, embedded_registry: EmbeddedRegistry
) -> None:
    """With the id that this registry has given to the schema."""

    async def scenario() -> None:
        topic, registry = await new_topic(broker), SchemaRegistry(embedded_registry.url)
        encode = Avro(registry, ORDER, auto_register=True).encoder(topic)
        data = base64.b64decode((JAVA / "records.txt").read_text().split()[0])
        with pytest.raises(ValidationError):  # only now is the schema registered
            await registry.call(encode, {"n": 1})
        schema_id = await registry.client.id_of(f"{topic}-value", encode.func.__self__._schema, registers=False)  # type: ignore[attr-defined]  # fmt: skip
        async with KafkaSink(topic, bootstrap=broker.bootstrap) as sink, Batcher(sink) as batcher:
            await batcher.add(b"\0" + schema_id.to_bytes(4, "big") + data[5:])
        (row,) = await moved(broker, topic, Avro(registry).value, 1)
        assert (row["customer"], row["state"]) == ("Zoë 0", "PAID")
        assert (encode(row) or b"")[5:] == data[5:]

    run(scenario())


def test_an_incompatible_schema_is_refused_by_the_registry(
    embedded_registry: EmbeddedRegistry,
) -> None:
    async def scenario() -> None:
        import httpx

        topic, registry = new_name("t"), SchemaRegistry(embedded_registry.url)
        await registry.call(Avro(registry, ITEM, auto_register=True).encoder(topic), {"n": 1})
        async with httpx.AsyncClient() as client:
            url = f"{embedded_registry.url}/config/{topic}-value"
            (await client.put(url, json={"compatibility": "BACKWARD"})).raise_for_status()
        wider = {**ITEM, "fields": [*ITEM["fields"], {"name": "m", "type": "int"}]}
        encode = Avro(registry, wider, auto_register=True).encoder(topic)
        with pytest.raises(RefusedError, match="to repair: change the schema"):
            await registry.call(encode, {"n": 1, "m": 2})
        encode = Avro(registry, wider).encoder(topic)
        with pytest.raises(RefusedError, match="to repair: register it"):
            await registry.call(encode, {"n": 1, "m": 2})

    run(scenario())


def test_records_wait_while_the_registry_is_down(broker: EmbeddedKafka) -> None:
    """The sink's batch and the consumer's record are delivered after it has started."""

    async def scenario(there: EmbeddedRegistry) -> None:
        topic, registry = await new_topic(broker), SchemaRegistry(there.url)
        await asyncio.to_thread(there.stop)
        codec = Avro(registry, ITEM, auto_register=True)
        sink = KafkaSink(topic, bootstrap=broker.bootstrap, value=codec.encoder(topic))
        async with Batcher(stack(sink, Retry())) as batcher:
            waiting = [await batcher.submit({"n": number}) for number in range(5)]
            with pytest.raises(Exception, match="no connection"):
                await registry.call(Avro(registry).encoder(topic), {"n": 0})
            await asyncio.to_thread(there.start)
            for each in waiting:
                await each
        await asyncio.to_thread(there.pause)
        seen: list[Any] = []

        async def handle(message: Message) -> None:
            seen.append(message.value["n"])
            if len(seen) == 5:
                consumer.stop()

        late = SchemaRegistry(there.url, timeout=0.3)
        slow = Avro(late)
        source = KafkaSource(topic, bootstrap=broker.bootstrap, group="g", start="earliest")
        consumer = Consumer(source, steps=[slow.step])
        running = asyncio.ensure_future(consumer.run(handle))
        with pytest.raises(Exception, match="within"):
            await late.call(slow.decode, b"\0\0\0\0\1\2")
        await asyncio.to_thread(there.resume)
        await running
        assert seen == [0, 1, 2, 3, 4]

    with embedded_registry() as there:
        run(scenario(there))


@pytest.mark.long
def test_good_records_go_on_while_the_registry_is_silent_for_a_minute(
    broker: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Records of a known schema are handled; those of a new one, and those behind them, wait in order."""

    async def scenario(there: EmbeddedRegistry) -> None:
        topic, writing = await new_topic(broker), SchemaRegistry(there.url)
        old = Avro(writing, ITEM, auto_register=True).encoder(topic, of="value")
        wider = {**ITEM, "fields": [*ITEM["fields"], {"name": "m", "type": "int", "default": 0}]}
        new = Avro(writing, wider, auto_register=True).encoder(topic, of="value")
        sink = KafkaSink(
            topic, bootstrap=broker.bootstrap, key="key", value=lambda each: each["encode"](each)
        )

        async def send(keys: str, encode: Any, *numbers: int) -> None:
            async with Batcher(stack(sink, Retry())) as batcher:
                await batcher.add_many(
                    [
                        {"key": key, "encode": encode, "value": {"n": n, "m": n}}
                        if encode is new
                        else {"key": key, "encode": encode, "value": {"n": n}}
                        for n in numbers
                        for key in keys
                    ]
                )

        seen: dict[str, list[int]] = {"a": [], "b": []}
        reached = {count: asyncio.Event() for count in (2, 12, 22)}

        async def handle(message: Message) -> None:
            seen[message.key.decode()].append(message.value["n"])
            if (event := reached.get(sum(map(len, seen.values())))) is not None:
                event.set()

        source = KafkaSource(
            topic, bootstrap=broker.bootstrap, group=new_name("g"), start="earliest"
        )
        reading = Avro(SchemaRegistry(there.url, timeout=2.0))
        consumer = Consumer(source, steps=[reading.step])
        running = asyncio.ensure_future(consumer.run(handle))
        await send("ab", old, 0)
        await reached[2].wait()
        await send("a", new, 1)  # its schema is registered, and unknown to the consumer
        await asyncio.to_thread(there.pause)
        await send("a", old, *range(2, 11))
        await send("b", old, *range(1, 11))
        await reached[12].wait()
        await asyncio.sleep(60)
        assert seen == {"a": [0], "b": [*range(11)]}
        await asyncio.to_thread(there.resume)
        await reached[22].wait()
        consumer.stop()
        await running
        assert seen == {"a": [*range(11)], "b": [*range(11)]}
        assert "records wait until it responds" in caplog.text

    with embedded_registry() as there:
        run(scenario(there), 150)
