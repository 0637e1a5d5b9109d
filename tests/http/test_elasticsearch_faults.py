"""Cluster faults that a real server reports like document faults: no document is given up because
of them. Also documents in the failure store of a data stream. White box: an error's text for logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.http.http_help import batch_of, outcomes
from tests.http.test_elasticsearch import events, index
from tests.http.test_elasticsearch_refusals import answer_of, deliver, saying

from sluicegate import Outcome, PermanentError, RefusedError, send
from sluicegate._core.logs import for_log

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedOpenSearch


async def test_an_alias_of_two_indices_without_a_write_index_loses_nothing(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    async with index(embedded_opensearch) as there, index(embedded_opensearch) as other:
        alias = f"of-{there.name}"

        async def name(*, write: bool) -> None:
            actions = [
                {"add": {"index": there.name, "alias": alias, "is_write_index": write}},
                {"add": {"index": other.name, "alias": alias}},
            ]
            answer = await there.client.post("/_aliases", json={"actions": actions})
            answer.raise_for_status()

        await name(write=False)
        async with there.sink(index=alias, id="id") as sink:
            errors = await deliver(sink, lambda: name(write=True))
        for error in errors:
            assert isinstance(error, RefusedError)
            assert error.repair.startswith(f'make an index of the alias "{alias}" its write index')
        assert await there.sources() == {item["id"]: item for item in events(200)}
        assert await other.sources() == {}


async def test_a_pipeline_that_is_missing_for_a_while_loses_nothing(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    async with index(embedded_opensearch) as there:
        name = f"of-{there.name}"

        async def create() -> None:
            answer = await there.client.put(f"/_ingest/pipeline/{name}", json={"processors": []})
            answer.raise_for_status()

        async with there.sink(id="id", pipeline=name) as sink:
            errors = await deliver(sink, create)
        for error in errors:
            assert isinstance(error, RefusedError)
            assert error.repair.startswith(f'create the ingest pipeline "{name}"')
        assert await there.sources() == {item["id"]: item for item in events(200)}


async def test_a_cluster_without_room_for_another_index_loses_nothing(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    """As at midnight, with one index per day."""
    async with index(embedded_opensearch) as there:

        async def limit(shards: int | None) -> None:
            settings = {"persistent": {"cluster.max_shards_per_node": shards}}
            answer = await there.client.put("/_cluster/settings", json=settings)
            answer.raise_for_status()

        first, there.name = there.name, f"next-{there.name}"
        try:
            await limit(1)
            async with there.sink(id="id") as sink:
                errors = await deliver(sink, lambda: limit(None))
            for error in errors:
                assert isinstance(error, RefusedError)
                assert "cluster.max_shards_per_node" in error.repair
            assert await there.sources() == {item["id"]: item for item in events(200)}
        finally:
            await limit(None)
            await there.client.delete(f"/{there.name}")
            there.name = first


async def test_an_index_whose_shard_is_on_no_node_loses_nothing(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    nowhere = "index.routing.allocation.require._name"
    async with index(embedded_opensearch) as there:
        settings = {"number_of_replicas": 0, nowhere: "none"}
        first, there.name = there.name, f"red-{there.name}"
        created = await there.client.put(
            f"/{there.name}",
            json={"settings": settings, "mappings": {"dynamic": False}},
            params={"wait_for_active_shards": "0"},
        )
        created.raise_for_status()

        async def allocate() -> None:
            (
                await there.client.put(f"/{there.name}/_settings", json={nowhere: None})
            ).raise_for_status()
            health = await there.client.get(
                f"/_cluster/health/{there.name}", params={"wait_for_status": "yellow"}
            )
            health.raise_for_status()

        try:
            async with there.sink(id="id", params={"timeout": "10ms"}) as sink:
                errors = await deliver(sink, allocate)
            for error in errors:
                assert isinstance(error, RefusedError)
                assert error.repair.startswith(f'restore the shards of the index "{there.name}"')
            assert await there.sources() == {item["id"]: item for item in events(200)}
        finally:
            await there.client.delete(f"/{there.name}")
            there.name = first


@pytest.mark.parametrize("operation", ["index", "create"])
async def test_a_document_in_the_failure_store_has_failed(
    real_clock: LoopClock, operation: str
) -> None:
    """Elasticsearch 8.19 and later answers 201 for it."""
    stored = {"_id": "1", "_version": 1, "result": "created", "status": 201}
    said = (stored, {**stored, "failure_store": "used"}, stored)
    async with saying(answer_of(*said, operation=operation, errors=False)) as sink:
        batch = batch_of([{}, {}, {}])
        errors = await send(sink, batch)
    assert list(errors) == [1]
    assert type(errors[1]) is PermanentError
    assert "failure store" in for_log(errors[1])
    assert [outcomes(batch)[place] for place in (0, 2)] == [Outcome.DELIVERED] * 2
