"""Items to bulk endpoints that do nothing: `HttpSink` compared with a loop written by hand, and
`ElasticsearchSink` with elasticsearch-py.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from sluicegate import Batcher, Limits

from ..harness import NS_PER_ITEM, Case, CaseUnavailableError, Contender, Target
from ..http import bulk_server
from ..http.httpx_loop import post_lines
from ..stopwatch import Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sluicegate import Sink

SIZE = 500
BY_HAND = "httpx loop by hand"
HTTP = "Batcher + HttpSink"
PEER = "elasticsearch-py async_bulk"
ONE = "Batcher + ElasticsearchSink"
FOUR = "Batcher + ElasticsearchSink, 4 workers"
DELAY = 20
"""Milliseconds of the slow server for each response."""


def _items(count: int) -> list[dict[str, Any]]:
    return [
        {"id": number, "user": f"user-{number % 997}", "action": "login", "at": 1.7e9 + number}
        for number in range(count)
    ]


async def _through(sink: Sink[Any], items: Sequence[Any], workers: int) -> Took:
    async with Batcher(sink, limits=Limits(max_items=SIZE, workers=workers)) as batcher:
        watch = Stopwatch()
        for item in items:
            await batcher.add(item)
        await batcher.flush()
        return watch.read()


def _http(url: str, items: Sequence[Any]) -> Took:
    from sluicegate.http import HttpSink

    took = asyncio.run(_through(HttpSink(f"{url}/lines"), items, 1))
    _check(url, len(items))
    return took


def _by_hand(url: str, items: Sequence[Any]) -> Took:
    import httpx

    async def turn() -> Took:
        async with httpx.AsyncClient() as client:
            watch = Stopwatch()
            await post_lines(client, f"{url}/lines", items, SIZE)
            return watch.read()

    took = asyncio.run(turn())
    _check(url, len(items))
    return took


def _elastic(url: str, items: Sequence[Any], delay: int, workers: int) -> Took:
    from sluicegate.http import ElasticsearchSink

    sink = ElasticsearchSink(f"{url}/delay={delay}", index="events", id="id", compression=None)
    took = asyncio.run(_through(sink, items, workers))
    _check(url, len(items))
    return took


def _async_bulk(url: str, items: Sequence[Any], delay: int) -> Took:
    from elasticsearch import AsyncElasticsearch
    from elasticsearch.helpers import async_bulk

    async def turn() -> Took:
        async with AsyncElasticsearch(f"{url}/delay={delay}") as client:
            watch = Stopwatch()
            actions = ({"_index": "events", "_id": item["id"], "_source": item} for item in items)
            await async_bulk(client, actions, chunk_size=SIZE)
            return watch.read()

    took = asyncio.run(turn())
    _check(url, len(items))
    return took


def _check(url: str, count: int) -> None:
    import httpx

    found = int(httpx.get(f"{url}/count").text)
    if found != count:
        raise AssertionError(f"{found} of {count} items arrived")


@contextlib.contextmanager
def _prepare_http(count: int) -> Iterator[Sequence[Contender]]:
    try:
        import httpx  # noqa: F401
    except ImportError as missing:
        raise CaseUnavailableError(str(missing)) from missing
    items = _items(count)
    with bulk_server.running() as url:
        yield (
            Contender(HTTP, partial(_http, url, items), ours=True),
            Contender(BY_HAND, partial(_by_hand, url, items)),
        )


@contextlib.contextmanager
def _prepare_elastic(count: int, *, delay: int) -> Iterator[Sequence[Contender]]:
    try:
        import elasticsearch  # noqa: F401
        import httpx  # noqa: F401
    except ImportError as missing:
        raise CaseUnavailableError(str(missing)) from missing
    items = _items(count)
    with bulk_server.running() as url:
        yield (
            Contender(ONE, partial(_elastic, url, items, delay, 1), ours=True),
            Contender(FOUR, partial(_elastic, url, items, delay, 4), ours=True),
            Contender(PEER, partial(_async_bulk, url, items, delay)),
        )


CASES = (
    Case(
        name="http",
        title="Items as NDJSON to an endpoint that does nothing, batches of 500, one connection",
        prepare=_prepare_http,
        items=50_000,
        quick_items=2_000,
        unit=NS_PER_ITEM,
        peers=(BY_HAND,),
        targets=(Target(HTTP, BY_HAND, 0.95),),
    ),
    Case(
        name="elasticsearch",
        title="Documents to a bulk endpoint that responds at once, batches of 500",
        prepare=partial(_prepare_elastic, delay=0),
        items=50_000,
        quick_items=2_000,
        unit=NS_PER_ITEM,
        peers=(PEER,),
        targets=(Target(ONE, PEER, 1.0),),
    ),
    Case(
        name="elasticsearch-slow",
        title=f"Documents to a bulk endpoint that responds after {DELAY} ms, batches of 500",
        prepare=partial(_prepare_elastic, delay=DELAY),
        items=50_000,
        quick_items=2_000,
        unit=NS_PER_ITEM,
        peers=(PEER,),
        targets=(Target(FOUR, PEER, 3.0),),
    ),
)
