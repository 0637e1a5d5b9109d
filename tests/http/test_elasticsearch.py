"""`ElasticsearchSink` against a real OpenSearch."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.http.http_help import batch_of, outcomes

from sluicegate import (
    Backoff,
    Batcher,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    ThrottledError,
    Timeout,
    UnavailableError,
    send,
    stack,
)
from sluicegate.http import ElasticsearchSink
from sluicegate.testing import EmbeddedOpenSearch
from sluicegate.testing import embedded_opensearch as start_opensearch
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from sluicegate import Batch
    from sluicegate.batcher import LoopClock

_NUMBERS = itertools.count()


class Index:
    """A test's own index."""

    def __init__(self, url: str, name: str, client: httpx.AsyncClient) -> None:
        self.url = url
        self.name = name
        self.client = client

    def sink(self, **options: Any) -> ElasticsearchSink:
        chosen: dict[str, Any] = {"index": self.name, **options}
        return ElasticsearchSink(self.url, **chosen)

    async def documents(self) -> dict[str, Any]:
        """All documents by id."""
        await self.client.post(f"/{self.name}/_refresh")
        answer = await self.client.post(
            f"/{self.name}/_search", json={"size": 10_000, "version": True}
        )
        return {hit["_id"]: hit for hit in answer.raise_for_status().json()["hits"]["hits"]}

    async def sources(self) -> dict[str, Any]:
        return {name: hit["_source"] for name, hit in (await self.documents()).items()}


@asynccontextmanager
async def index(server: EmbeddedOpenSearch, **body: Any) -> AsyncGenerator[Index]:
    name = f"events-{next(_NUMBERS)}"
    settings = {"number_of_shards": 1, "number_of_replicas": 0, **body.pop("settings", {})}
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        (await client.put(f"/{name}", json={"settings": settings, **body})).raise_for_status()
        yield Index(server.url, name, client)
        (await client.delete(f"/{name}")).raise_for_status()


def events(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"id": str(number), "n": number, "word": f"wörd {number}"}
        for number in range(start, start + count)
    ]


@pytest.mark.parametrize("compression", ["gzip", None])
async def test_documents_arrive_as_they_are(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock, compression: Any
) -> None:
    """batcher/B41"""
    async with (
        index(embedded_opensearch) as there,
        there.sink(id="id", compression=compression) as sink,
    ):
        batch = batch_of(events(1000))
        result = await sink.write(batch)
        assert result is not None
        assert result.details[7] == {"_id": "7", "_version": 1, "result": "created", "status": 201}
        assert await there.sources() == {item["id"]: item for item in events(1000)}


async def test_sending_again_without_ids_stores_nothing_twice(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    """B-T39: per-record ids are stable over retries."""
    async with index(embedded_opensearch) as there:
        for operation, outcome in (("create", Outcome.DUPLICATE), ("index", Outcome.DELIVERED)):
            async with there.sink(operation=operation) as sink:
                items = events(50)
                batch = batch_of(items)
                await sink.write(batch)
                assert await send(sink, batch) == {}
                assert set(outcomes(batch)) == {outcome}
        assert len(await there.sources()) == 100


async def test_each_operation_does_what_its_name_says(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    """batcher/B41: index, create, update, delete, upsert in one request, with one outcome each."""
    actions = [
        ("create", "a", {"n": 1}, "created"),
        ("create", "a", {"n": 2}, PermanentError),
        ("index", "a", {"n": 3}, "updated"),
        ("update", "a", {"more": 1}, "updated"),
        ("update", "nobody", {"more": 1}, PermanentError),
        ("upsert", "b", {"n": 4}, "created"),
        ("upsert", "b", {"n": 4}, "noop"),
        ("index", "c", {"n": 5}, "created"),
        ("delete", "c", None, "deleted"),
        ("delete", "c", None, PermanentError),
        ("index", "bad", {"n": "no number"}, PermanentError),
    ]
    async with index(
        embedded_opensearch, mappings={"properties": {"n": {"type": "long"}}}
    ) as there:
        sink = there.sink(
            operation=lambda item: item[0], id=lambda item: item[1], document=lambda item: item[2]
        )
        async with sink:
            result = await sink.write(batch_of(actions))
        assert result is not None
        details: Any = result.details
        for place, (_, _, _, expected) in enumerate(actions):
            if isinstance(expected, str):
                assert details[place]["result"] == expected
            else:
                assert type(result.errors[place]) is expected
        assert "document missing" in str(result.errors[4])
        assert "not_found" in str(result.errors[9])
        assert "failed to parse field [n]" in str(result.errors[10])
        assert await there.sources() == {"a": {"n": 3, "more": 1}, "b": {"n": 4}}


@pytest.mark.parametrize("on_stale", ["error", "ignore"])
async def test_an_old_version_never_replaces_a_newer_one(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock, on_stale: Any
) -> None:
    async with (
        index(embedded_opensearch) as there,
        there.sink(id="id", version="v", on_stale=on_stale) as sink,
    ):
        items = [
            {"id": "a", "v": 5},
            {"id": "a", "v": 3},
            {"id": "a", "v": 5, "again": True},
            {"id": "b", "v": 1},
            {"id": "a", "v": 6},
        ]
        errors = await send(sink, batch_of(items))
        assert list(errors) == ([1, 2] if on_stale == "error" else [])
        found = await there.documents()
        assert (found["a"]["_source"], found["a"]["_version"]) == ({"id": "a", "v": 6}, 6)
        assert found["b"]["_version"] == 1


async def test_routing_and_a_pipeline(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    async with index(embedded_opensearch, settings={"number_of_shards": 4}) as there:
        async with there.sink(
            id="id", routing="word", pipeline=lambda item: "nowhere" if item["n"] == 3 else None
        ) as sink:
            errors = await send(sink, batch_of(events(8)))
        assert list(errors) == [3]
        assert "pipeline with id [nowhere] does not exist" in str(errors[3])
        found = await there.documents()
        assert {name: hit["_routing"] for name, hit in found.items()} == {
            str(n): f"wörd {n}" for n in range(8) if n != 3
        }


async def test_an_index_per_item_and_one_that_cannot_be(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    """An unknown or impossible index is an error of its item alone."""
    async with index(embedded_opensearch) as first, index(embedded_opensearch) as second:
        names = [first.name, second.name, "NOT-AN-INDEX", first.name]
        sink = first.sink(index=lambda item: names[item["n"]], id="id")
        async with sink:
            errors = await send(sink, batch_of(events(4)))
        assert list(errors) == [2]
        assert "invalid_index_name_exception" in str(errors[2])
        assert set(await first.sources()) == {"0", "3"}
        assert set(await second.sources()) == {"1"}


async def test_a_long_batch_goes_as_several_requests_under_the_ceiling(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    """B-T26, batcher/4a.3"""
    async with index(embedded_opensearch) as there, there.sink(id="id", max_bytes=2_000) as sink:
        items = [*events(100), {"id": "large", "word": "x" * 2_000}, *events(100, 100)]
        errors = await send(sink, batch_of(items))
        assert {place: type(error) for place, error in errors.items()} == {100: PermanentError}
        assert len(await there.sources()) == 200


@pytest.fixture(scope="module")
def narrow() -> Iterator[EmbeddedOpenSearch]:
    """A server with low limits, which tests kill."""
    settings = {
        "http.max_content_length": "1mb",
        "node.processors": "1",
        "thread_pool.write.size": "1",
        "thread_pool.write.queue_size": "1",
    }
    with there_or_skip("opensearch", start_opensearch(settings)) as server:
        yield server


@pytest.mark.long
async def test_a_body_too_large_for_the_server_is_cut(
    narrow: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    """batcher/4b.5: 413, after which this server closes the connection."""
    async with (
        index(narrow) as there,
        there.sink(id="id", compression=None, max_bytes=None) as sink,
    ):
        items = [{"id": str(number), "text": "x" * 100_000} for number in range(25)]
        assert await send(sink, batch_of(items)) == {}
        assert set(await there.sources()) == {item["id"] for item in items}


@pytest.mark.long
async def test_items_that_are_throttled_are_sent_again_and_no_others(
    narrow: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    """B-T18, batcher/4a.5: a full queue refuses some shards' items with 429; each document is
    written once.
    """
    throttled = 0

    async def until_taken(sink: ElasticsearchSink, batch: Batch[Any]) -> None:
        nonlocal throttled
        while errors := await send(sink, batch):
            assert {type(error) for error in errors.values()} == {ThrottledError}
            throttled += len(errors)
            batch = batch.pick(errors)

    async with (
        index(narrow, settings={"number_of_shards": 8}) as there,
        there.sink(id="id", operation="create") as sink,
    ):
        batches = [batch_of(events(100, start)) for start in range(0, 800, 100)]
        async with asyncio.TaskGroup() as group:
            for batch in batches:
                group.create_task(until_taken(sink, batch))
        assert throttled
        assert {outcome for batch in batches for outcome in outcomes(batch)} == {Outcome.DELIVERED}
        found = await there.documents()
        assert len(found) == 800
        assert {hit["_version"] for hit in found.values()} == {1}


@pytest.mark.long
async def test_a_server_that_is_killed_loses_nothing_that_was_acknowledged(
    narrow: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    """B-T42: producers wait during the outage; afterwards every item is stored once."""
    async with index(narrow) as there:
        sink = stack(
            there.sink(id="id"), Timeout(20.0), Retry(backoff=Backoff(base=0.01, longest=0.1))
        )
        async with Batcher(sink, limits=Limits(max_items=100, max_delay=0.01)) as batcher:
            await batcher.add_many(events(500))
            await batcher.flush()
            await asyncio.to_thread(narrow.kill)
            async with there.sink() as another:
                errors = await send(another, batch_of(events(2)))
                assert {type(error) for error in errors.values()} == {UnavailableError}
            await batcher.add_many(events(500, 500))
            await asyncio.to_thread(narrow.start)
            await batcher.flush()
            tally = batcher.stats().tally
        assert tally.delivered + tally.duplicate == 1_000
        assert len(await there.sources()) == 1_000
