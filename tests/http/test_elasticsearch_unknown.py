"""Documents of attempts with an unknown outcome, sent again: a conflict is a duplicate only if the
stored document is the item's. Against a real OpenSearch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.http.http_help import batch_of, outcomes
from tests.http.test_elasticsearch import index
from tests.sinks.conflict_cases import (
    DIFFERING,
    NEVER,
    TOLD,
    UNKNOWN,
    batch_of_cases,
    expected_outcomes,
    stored_after,
    taken,
)

from sluicegate import Outcome, RowBatch, send
from sluicegate.errors import KeyRepeated, StoredRowDiffers, UnverifiableError
from sluicegate.http import ElasticsearchSink, HttpAccess

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedOpenSearch

DELIVERED = Outcome.DELIVERED


def at_0(item: Any) -> str:
    return str(item[0])


def word(item: Any) -> dict[str, Any]:
    return {"word": item[1]}


async def test_a_conflict_is_judged_by_the_stored_document_and_by_the_items_before(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    """batcher/4b.11, for `create` with given ids."""
    async with (
        index(embedded_opensearch) as there,
        there.sink(operation="create", id=at_0, document=word) as sink,
    ):
        assert await send(sink, RowBatch([*taken().items()])) == {}
        batch = batch_of_cases(has_keys=False)
        errors = await send(sink, batch)
        assert outcomes(batch) == expected_outcomes(has_keys=False)
        assert {at for at, error in errors.items() if type(error) is StoredRowDiffers} == DIFFERING
        stored = {int(name): source["word"] for name, source in (await there.sources()).items()}
        assert stored == stored_after()


class LosesFirst(httpx.AsyncBaseTransport):
    """Loses the answer to the first bulk request, which the server has carried out."""

    def __init__(self) -> None:
        self.inner = httpx.AsyncHTTPTransport()
        self.is_lost = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self.inner.handle_async_request(request)
        if not self.is_lost:
            await response.aread()
            await response.aclose()
            self.is_lost = True
            raise httpx.ReadError("connection reset", request=request)
        return response

    async def aclose(self) -> None:
        await self.inner.aclose()


@pytest.mark.parametrize(
    "options", [{"operation": "create"}, {"version": lambda _: 5}], ids=["create", "version"]
)
async def test_an_item_refused_by_its_neighbour_is_rejected_after_a_lost_answer(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock, options: dict[str, Any]
) -> None:
    transport = LosesFirst()
    async with (
        index(embedded_opensearch) as there,
        ElasticsearchSink(
            HttpAccess(
                there.url, client=lambda: httpx.AsyncClient(transport=transport, timeout=30.0)
            ),
            index=there.name,
            id=at_0,
            document=word,
            **options,
        ) as sink,
    ):
        batch = RowBatch([(1, "first"), (1, "second"), (2, "other")])
        assert len(await send(sink, batch)) == 3
        errors = await send(sink, batch)
        assert {at: type(error) for at, error in errors.items()} == {1: KeyRepeated}
        assert outcomes(batch) == [TOLD, NEVER, TOLD]
        assert await there.sources() == {"1": {"word": "first"}, "2": {"word": "other"}}


VERSIONS: list[tuple[str, tuple[str, int], list[tuple[str, str, int, Outcome]]]] = [
    ("the item's own", ("a", 5), [("index", "a", 5, TOLD)]),
    ("of another writer", ("b", 5), [("index", "a", 5, UNKNOWN)]),
    ("newer, of another writer", ("a", 6), [("index", "a", 5, UNKNOWN)]),
    ("older", ("a", 4), [("index", "b", 5, DELIVERED), ("index", "c", 5, NEVER)]),
    ("replaced in the batch", ("b", 7), [("index", "a", 5, TOLD), ("index", "b", 7, TOLD)]),
    ("replaced now", ("a", 5), [("index", "a", 5, TOLD), ("index", "b", 7, DELIVERED)]),
    ("behind a newer one", ("a", 7), [("index", "a", 7, TOLD), ("index", "b", 5, NEVER)]),
    ("deleted", ("", 6), [("index", "a", 5, TOLD), ("delete", "", 6, TOLD)]),
    ("not deleted", ("b", 7), [("delete", "", 6, UNKNOWN)]),
]
"""The stored document and version, and items of an unknown attempt with their outcomes."""


async def test_a_conflict_of_versions_is_a_duplicate_if_the_batch_holds_the_document(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    """Each case in a document of its own."""
    async with (
        index(embedded_opensearch) as there,
        there.sink(
            id=lambda item: item[3],
            operation=lambda item: item[0],
            document=word,
            version=lambda item: item[2],
        ) as sink,
    ):
        for name, (source, version), items in VERSIONS:
            before = (
                [("index", source, version, name)]
                if source
                else [("index", "x", 1, name), ("delete", "", version, name)]
            )
            assert await send(sink, RowBatch(before)) == {}
            batch = batch_of([(*item[:3], name) for item in items], maybe=range(len(items)))
            errors = await send(sink, batch)
            assert outcomes(batch) == [item[3] for item in items], name
            kinds = {UNKNOWN: StoredRowDiffers, NEVER: KeyRepeated}
            for at, error in errors.items():
                assert type(error) is kinds[items[at][3]], name


async def test_a_document_that_cannot_be_compared_stays_unknown(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    """Its index keeps no `_source`."""
    async with (
        index(embedded_opensearch, mappings={"_source": {"enabled": False}}) as there,
        there.sink(operation="create", id=at_0, document=word) as sink,
    ):
        assert await send(sink, RowBatch([(1, "a")])) == {}
        batch = batch_of([(1, "a"), (2, "b")], maybe=[0, 1])
        errors = await send(sink, batch)
        assert {at: type(error) for at, error in errors.items()} == {0: UnverifiableError}
        assert outcomes(batch) == [UNKNOWN, DELIVERED]


WHOLE: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "a cut document to upsert": (
        {"operation": "upsert", "document": lambda item: item[1]}, b'{"n": 1', b'{"n": 1}',
    ),
    "a key twice in a document to upsert": (
        {"operation": "upsert", "document": lambda item: item[1]}, {1: "a", "1": "b"}, {"n": 1},
    ),
    "a number of 1001 digits to upsert": (
        {"operation": "upsert", "document": lambda item: item[1]}, {"n": 10**1000}, {"n": 1},
    ),
    "an index name that is invalid date math": (
        {"index": lambda item: item[1], "document": lambda _: {"n": 1}}, "<logs-{now/d>", None,
    ),
    "an empty pipeline": (
        {"pipeline": lambda item: item[1], "document": lambda _: {"n": 1}}, "", None,
    ),
}  # fmt: skip
"""Mistakes of one item for which the server refuses the whole request."""


@pytest.mark.parametrize(("options", "bad", "good"), WHOLE.values(), ids=WHOLE.keys())
async def test_an_item_for_which_the_server_refuses_the_request_fails_alone(
    embedded_opensearch: EmbeddedOpenSearch,
    real_clock: LoopClock,
    options: dict[str, Any],
    bad: Any,
    good: Any,
) -> None:
    """The first, the last, two in a row; its neighbours are stored in order."""
    async with index(embedded_opensearch) as there:
        good = there.name if "index" in options else good
        wrong = {0, 6, 7, 12}
        async with there.sink(**{"id": at_0, **options}) as sink:
            batch = RowBatch([(at, bad if at in wrong else good) for at in range(13)])
            errors = await send(sink, batch)
        assert set(errors) == wrong
        assert outcomes(batch) == [NEVER if at in wrong else DELIVERED for at in range(13)]
        assert set(await there.sources()) == {str(at) for at in range(13) if at not in wrong}
