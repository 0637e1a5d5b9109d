"""batcher/4b.12: the HTTP sinks fulfil the contract of sinks, with an application in process, and
with a real OpenSearch.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

import httpx
import pyarrow as pa
import pytest
from tests.http.http_help import Reply, Request, Server

from sluicegate import Batch, PermanentError, WriteResult
from sluicegate.http import ElasticsearchSink, HttpAccess, HttpResponse, HttpSink
from sluicegate.testing.conformance import SinkConformance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate.testing import EmbeddedOpenSearch

STORED: list[int] = []
SERVER = Server()


async def keep(request: Request) -> Reply:
    """A status per item; negative ones are refused."""
    numbers = [row["n"] if isinstance(row, dict) else row for row in json.loads(request.body)]
    STORED.extend(number for number in numbers if number >= 0)
    return Reply(body=json.dumps([200 if number >= 0 else 400 for number in numbers]).encode())


SERVER.default = keep


def client() -> httpx.AsyncClient:
    return SERVER.client()


def parse(response: HttpResponse, batch: Batch[int]) -> WriteResult:
    statuses = json.loads(response.body)
    return WriteResult.from_outcomes(
        batch, [None if status == 200 else PermanentError(str(status)) for status in statuses]
    )


class TestHttpSink(SinkConformance[int]):
    """One request per write."""

    max_bytes = 5_000_000

    def sink(self) -> HttpSink:
        return HttpSink(
            HttpAccess("http://in-process/", client=client),
            body="json",
            parse=parse,
            max_bytes=self.max_bytes,
        )

    def item(self, number: int) -> int:
        return number

    def bad_item(self, number: int) -> int:
        return -number

    def columns(self, items: Sequence[int]) -> Any:
        return pa.record_batch({"n": items})

    async def stored(self) -> list[int]:
        return STORED


class TestHttpSinkInSeveralRequests(TestHttpSink):
    """A few items per request."""

    max_bytes = 16


class TestElasticsearchSink(SinkConformance[dict[str, Any]]):
    """With the user's ids."""

    ordered = False
    index = "conformance"
    arguments: ClassVar[dict[str, Any]] = {"id": "n"}
    url = ""

    @pytest.fixture(autouse=True)
    def on(self, embedded_opensearch: EmbeddedOpenSearch) -> None:
        type(self).url = embedded_opensearch.url
        body = {
            "settings": {"number_of_replicas": 0},
            "mappings": {"properties": {"word": {"type": "long"}}},
        }
        httpx.put(f"{self.url}/{self.index}", json=body, timeout=30)

    def sink(self) -> ElasticsearchSink:
        return ElasticsearchSink(self.url, index=self.index, **self.arguments)

    def item(self, number: int) -> dict[str, Any]:
        return {"n": number, "word": "1"}

    def bad_item(self, number: int) -> dict[str, Any]:
        return {"n": number, "word": "no number"}

    async def stored(self) -> list[dict[str, Any]]:
        async with httpx.AsyncClient(base_url=self.url, timeout=30) as there:
            await there.post(f"/{self.index}/_refresh")
            answer = await there.post(f"/{self.index}/_search", json={"size": 10_000})
            return [hit["_source"] for hit in answer.raise_for_status().json()["hits"]["hits"]]


@pytest.mark.long
class TestElasticsearchSinkWithIdsOfOurs(TestElasticsearchSink):
    """Each accepted item gets an id from the sink."""

    index = "conformance-ours"
    arguments: ClassVar[dict[str, Any]] = {"operation": "create"}
