"""From Kafka into PostgreSQL by a pipe: records in Avro with a schema registry, and the same in JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluicegate.kafka import Avro, SchemaRegistry
from sluicegate.testing import EmbeddedUnavailable, embedded_registry

from ...destination import Destination, postgres_server
from ...harness import US_PER_ITEM, Case, CaseUnavailableError, Contender
from ...kafka.pipes.actions import ACTIONS, actions
from ...kafka.pipes.ours import into_table
from ...kafka.pipes.runs import Run, timed
from ...kafka.topics import a_broker, fill_with
from ...stopwatch import Stopwatch
from .pipe import KEYS, PARTITIONS, SIZES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...stopwatch import TimedTurn

JSON, AVRO = "flow.pipe, json.loads", "flow.pipe, Avro"
_TYPES = {"bigint": "long", "text": "string", "double precision": "double"}
SCHEMA = {
    "type": "record",
    "name": "Action",
    "fields": [{"name": name, "type": _TYPES[kind]} for name, kind in ACTIONS.types.items()],
}


@dataclass(slots=True)
class AvroRun(Run):
    """A run over records in Avro."""

    avro: Avro | None = None

    def decode_value(self, value: bytes) -> Any:
        if self.watch is None:
            self.watch = Stopwatch()
        assert self.avro is not None
        return self.avro.decode(value)


def _turn(bootstrap: str, topic: str, to: Destination, count: int, avro: Avro | None) -> TimedTurn:
    way = into_table(SIZES[0], keyed=False)

    def turn() -> Any:
        place = bootstrap, topic, count
        run = Run(*place) if avro is None else AvroRun(*place, avro=avro)
        return asyncio.run(timed(way, run, to))

    return turn


async def _encoded(
    registry: SchemaRegistry, given: Sequence[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    """Encode the values, and load the schema."""
    encode = Avro(registry, SCHEMA, auto_register=True).encoder("actions")
    found = [(key, await registry.call(encode, json.loads(value))) for key, value in given]
    await registry.call(Avro(registry).decode, found[0][1])
    return found


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    with contextlib.ExitStack() as opened:
        broker = opened.enter_context(a_broker())
        try:
            there = opened.enter_context(embedded_registry())
        except EmbeddedUnavailable as reason:
            raise CaseUnavailableError(str(reason)) from None
        to = Destination(opened.enter_context(postgres_server()), ACTIONS)
        registry, given = SchemaRegistry(there.url), [*actions(count, KEYS)]
        fill_with(broker, "json", given, partitions=PARTITIONS)
        fill_with(broker, "avro", asyncio.run(_encoded(registry, given)), partitions=PARTITIONS)
        yield [
            Contender(JSON, _turn(broker.bootstrap, "json", to, count, None), ours=True),
            Contender(AVRO, _turn(broker.bootstrap, "avro", to, count, Avro(registry)), ours=True),
        ]


CASE = Case(
    name="avro",
    title="From Kafka into PostgreSQL, in Avro with a schema registry and in JSON",
    prepare=prepare,
    items=100_000,
    quick_items=2_000,
    unit=US_PER_ITEM,
    peers=(JSON,),
    is_drawn=False,
)
