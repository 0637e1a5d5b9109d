"""A stream of NATS JetStream as a source: the cost of a message, compared with nats-py's own loop.

The stream is stored in files, and filled before the first turn; each turn has its own consumer.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

from ...harness import US_PER_ITEM, Case, Contender, Target
from ...nats.streams import a_server, fill
from ...nats.ways import FETCH, fetch_loop, ours, turn
from ...stopwatch import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CONSUMER = "Consumer"
LOOP = f"nats-py, fetch({FETCH})"
KEYS = 1_000


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    with a_server() as url:
        asyncio.run(fill(url, count, KEYS))
        yield [
            Contender(CONSUMER, partial(turn, ours, url, count), ours=True),
            Contender(LOOP, partial(turn, fetch_loop, url, count)),
        ]


CASE = Case(
    name="jetstream",
    title="Messages of JetStream handled, one in twenty at the second attempt",
    prepare=prepare,
    items=50_000,
    quick_items=1_000,
    unit=US_PER_ITEM,
    by=Clock.PROCESSOR,
    peers=(LOOP,),
    targets=(Target(CONSUMER, LOOP, 1.5),),
    is_drawn=False,
)
