"""NATS JetStream as a destination: the cost of a message, compared with nats-py's own publishing.

Payloads have about 130 bytes, the stream is in memory, and at most 1,000 messages are
unacknowledged.
"""

from __future__ import annotations

import contextlib
import json
from functools import partial
from typing import TYPE_CHECKING

from ...harness import US_PER_ITEM, Case, Contender, Target
from ...nats.publishers import batcher, gathered, in_a_window, sink, turn
from ...nats.streams import a_server
from ...stopwatch import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OURS = "NatsSink"
BATCHED = "NatsSink in a Batcher"
GATHERED = "nats-py publish, gathered"
IN_A_WINDOW = "nats-py publish_async"
WAYS = {OURS: sink, BATCHED: batcher, GATHERED: gathered, IN_A_WINDOW: in_a_window}


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    payloads = [json.dumps({"number": n, "text": "x" * 100}).encode() for n in range(count)]
    with a_server() as url:
        yield [
            Contender(name, partial(turn, way, url, payloads), ours=name in {OURS, BATCHED})
            for name, way in WAYS.items()
        ]


CASE = Case(
    name="nats-sink",
    title="Publish messages to JetStream",
    prepare=prepare,
    items=20_000,
    quick_items=1_000,
    unit=US_PER_ITEM,
    by=Clock.PROCESSOR,
    peers=(GATHERED, IN_A_WINDOW),
    targets=(Target(OURS, IN_A_WINDOW, 0.9), Target(BATCHED, IN_A_WINDOW, 0.9)),
    is_drawn=False,
)
