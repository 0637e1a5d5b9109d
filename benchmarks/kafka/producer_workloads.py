"""The ways to write to topics, by name, as turns in a process with the libraries."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ..stopwatch import Stopwatch
from ..workloads import Workload
from .producers import LINGER, Form, batcher, confluent, send, send_batch, sink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..stopwatch import TimedTurn, Took
    from .producers import Producer

SEND = "aiokafka send"
LINGERING = f"aiokafka send, linger {LINGER * 1000:g} ms"
BY_HAND = "send_batch by hand"
KEEPING = "send_batch by hand, hashes kept"
OURS = "KafkaSink"
BATCHED = "KafkaSink in a Batcher"
CONFLUENT = "confluent-kafka"

WAYS: dict[str, Producer] = {
    SEND: send(0.0),
    LINGERING: send(LINGER),
    BY_HAND: send_batch(),
    KEEPING: send_batch(keeps_hashes=True),
    OURS: sink,
    BATCHED: batcher,
    CONFLUENT: confluent,
}
ITEMS = 10_000
KEYS = 1_000
PARTITIONS = 4
VALUE = b"x" * 100


@dataclass(frozen=True, slots=True)
class Work:
    """Batches of `size` items, each made from its number; the size is part of the name."""

    name: str
    make: Callable[[int], Any]
    form: Form
    size: int
    partitions: int = PARTITIONS

    @property
    def topic(self) -> str:
        """The topic of all ways; one per number of partitions."""
        return f"written-{self.partitions}"


def _event(number: int) -> dict[str, Any]:
    return {
        "tail": f"N{number % KEYS}",
        "sequence": number,
        "latitude": 50.0379326 + number / 1e4,
        "longitude": 8.5621518,
        "altitude": 10_972,
        "callsign": "DLH441",
        "on_ground": False,
    }


def _text_of(item: dict[str, Any]) -> bytes:
    return json.dumps(item).encode()


def _tail_of(item: dict[str, Any]) -> bytes:
    return str(item["tail"]).encode()


def _no_key(_: bytes) -> None:
    return None


def _whole(item: bytes) -> bytes:
    return item


_FIRST, _SECOND = itemgetter(0), itemgetter(1)
_PAIRS = Form(_FIRST, _SECOND, {"key": _FIRST, "value": _SECOND})
_WHOLE = Form(_no_key, _whole)
_JSON = Form(_tail_of, _text_of, {"key": "tail"})
_NUMBERS = count()

KEYED = "keys, 500"
KEYED_LARGE = "keys, 5,000"
PLAIN = "no keys, 500"
PLAIN_LARGE = "no keys, 5,000"
NEW_KEYS = "new keys, 500"
EVENTS = "JSON, 500"


def _keyed(number: int) -> tuple[bytes, bytes]:
    return b"key-%d" % (number * 7919 % KEYS), VALUE


def _new(_: int) -> tuple[bytes, bytes]:
    return b"order-%08d" % next(_NUMBERS), VALUE


def _plain(_: int) -> bytes:
    return VALUE


WORKS = {
    work.name: work
    for work in (
        Work(KEYED, _keyed, _PAIRS, 500),
        Work(KEYED_LARGE, _keyed, _PAIRS, 5_000),
        Work(PLAIN, _plain, _WHOLE, 500, partitions=1),
        Work(PLAIN_LARGE, _plain, _WHOLE, 5_000, partitions=1),
        Work(NEW_KEYS, _new, _PAIRS, 500),
        Work(EVENTS, _event, _JSON, 500),
    )
}


def workload_name(way: str, work: str) -> str:
    """Return the name of a workload."""
    return f"{way}: {work}"


def batches_of(work: Work, items: range) -> list[Sequence[Any]]:
    """Return the items of a turn in batches; the first batch is written before the timing."""
    made = [work.make(number) for number in (0, *items)]
    return [made[:1], *(made[at : at + work.size] for at in range(1, len(made), work.size))]


async def _write(bootstrap: str, producer: Producer, work: Work, items: range) -> Took:
    first, *batches = batches_of(work, items)
    async with producer(bootstrap, work.topic, work.form) as write:
        await write(first)
        watch = Stopwatch()
        for batch in batches:
            await write(batch)
        return watch.read()


def workloads(bootstrap: str) -> dict[str, Workload]:
    """Return all workloads for the topics of a broker."""

    def prepared(producer: Producer, work: Work) -> Callable[[range], TimedTurn]:
        return lambda items: lambda: asyncio.run(_write(bootstrap, producer, work, items))

    return {
        (name := workload_name(way, work.name)): Workload(
            name, ITEMS, prepared(producer, work), ours=way in {OURS, BATCHED}
        )
        for work in WORKS.values()
        for way, producer in WAYS.items()
    }
