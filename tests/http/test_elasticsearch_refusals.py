"""A missing, closed or blocked index is an outage whose error names the setting; a faulty document
remains an item's fault. White box: an error's text for logs.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.http.http_help import Server, batch_of, outcomes, reply
from tests.http.test_elasticsearch import events, index

from sluicegate import (
    Backoff,
    Batch,
    Batcher,
    DeadLetter,
    ErrorClass,
    Limits,
    Outcome,
    PermanentError,
    RefusedError,
    Retry,
    ThrottledError,
    Timeout,
    TransientError,
    WriteResult,
    send,
    stack,
)
from sluicegate._core.logs import for_log
from sluicegate.errors import ResultMismatch
from sluicegate.http import ElasticsearchSink, HttpAccess, classify_http
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedOpenSearch


def failed(status: int, kind: str, reason: str = "r", **more: Any) -> dict[str, Any]:
    return {"status": status, "error": {"type": kind, "reason": reason, **more}}


FLOOD = (
    "index [logs] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage "
    "watermark, index has read-only-allow-delete block];"
)
REFUSED = [
    (
        failed(404, "index_not_found_exception", "no such index [logs]", index="logs"),
        'create the index "logs", or let action.auto_create_index',
    ),
    (failed(404, "index_not_found_exception", "no such index"), 'create the index "static"'),
    (failed(400, "index_closed_exception", "closed", index="logs"), 'open the index "logs"'),
    (
        failed(
            403,
            "cluster_block_exception",
            "index [logs] blocked by: [FORBIDDEN/8/index write (api)];",
        ),
        'index.blocks.write of the index "logs"',
    ),
    (
        failed(
            403,
            "cluster_block_exception",
            "index [logs] blocked by: [FORBIDDEN/5/index read-only (api)];",
        ),
        "index.blocks.read_only of",
    ),
    (
        failed(429, "cluster_block_exception", FLOOD),
        'set index.blocks.read_only_allow_delete of the index "logs" to null',
    ),
    (
        failed(403, "cluster_block_exception", FLOOD.replace("TOO_MANY_REQUESTS", "FORBIDDEN")),
        "free disk space",
    ),
    (
        failed(403, "cluster_block_exception", "of another kind"),
        'lift the block on the index "static"',
    ),
    (
        failed(
            403, "cluster_block_exception", "blocked by: [FORBIDDEN/6/cluster read-only (api)];"
        ),
        "set cluster.blocks.read_only to false",
    ),
    (
        failed(403, "security_exception", "action [indices:data/write/bulk[s]] is unauthorized"),
        'the right to write to the index "static"',
    ),
    (failed(401, "security_exception", "missing authentication"), "grant the credentials"),
]


def answer_of(*said: Any, operation: str = "index", errors: object = True) -> dict[str, Any]:
    return {"errors": errors, "items": [{operation: each} for each in said]}


@asynccontextmanager
async def saying(
    answer: object, status: int = 200, **options: Any
) -> AsyncGenerator[ElasticsearchSink]:
    server = Server()
    server.default = reply(status, answer)
    chosen: dict[str, Any] = {"index": "static", **options}
    async with ElasticsearchSink(
        HttpAccess("http://in-process", client=server.client), **chosen
    ) as sink:
        yield sink


@pytest.mark.parametrize(("said", "repair"), REFUSED)
@pytest.mark.parametrize("operation", ["index", "create", "delete"])
async def test_an_item_that_its_index_refuses_names_index_and_setting(
    real_clock: LoopClock, operation: str, said: Any, repair: str
) -> None:
    """Each item has its own error; its neighbour is delivered. A delete after an unknown attempt is
    not a duplicate in this case.
    """
    async with saying(
        answer_of(said, said, {"status": 200}, operation=operation), operation=operation, id="id"
    ) as sink:
        batch = batch_of([{"id": "1"}, {"id": "2"}, {"id": "3"}], maybe=[1])
        errors = await send(sink, batch)
        assert set(errors) == {0, 1}
        assert errors[0] is not errors[1]
        for error in errors.values():
            assert isinstance(error, RefusedError)
            assert repair in error.repair
            assert error.repair in str(error)
            assert error.repair in for_log(error)
            assert classify_http(error) is ErrorClass.REFUSED
        assert outcomes(batch)[2] is Outcome.DELIVERED


@pytest.mark.parametrize(
    ("operation", "said", "kind"),
    [
        (
            "update",
            failed(404, "document_missing_exception", "[1]: document missing", index="logs"),
            PermanentError,
        ),
        ("delete", {"status": 404, "result": "not_found"}, PermanentError),
        ("index", failed(409, "version_conflict_engine_exception", index="logs"), PermanentError),
        (
            "index",
            failed(400, "mapper_parsing_exception", "failed to parse field [n]"),
            PermanentError,
        ),
        ("index", failed(400, "strict_dynamic_mapping_exception"), PermanentError),
        ("index", failed(400, "invalid_index_name_exception"), PermanentError),
        ("index", failed(403, "something_else"), PermanentError),
        ("index", failed(503, "cluster_block_exception", "no master"), TransientError),
        ("index", failed(429, "es_rejected_execution_exception"), ThrottledError),
    ],
)
async def test_an_error_of_the_document_stays_its_items(
    real_clock: LoopClock, operation: str, said: Any, kind: type[Exception]
) -> None:
    async with saying(answer_of(said, operation=operation), operation=operation, id="id") as sink:
        assert type((await send(sink, batch_of([{"id": "1"}])))[0]) is kind


@pytest.mark.parametrize("errors", [False, None, "no", True])
async def test_the_items_statuses_are_believed_and_not_the_summary(
    real_clock: LoopClock, errors: object
) -> None:
    """A server or a proxy may return `errors: false` although items failed."""
    said = [
        {"status": 201},
        failed(400, "mapper_parsing_exception"),
        {"status": 200},
        failed(429, "es_rejected_execution_exception"),
    ]
    async with saying(answer_of(*said, errors=errors)) as sink:
        batch = batch_of([{}] * 4)
        found = await send(sink, batch)
        assert {place: type(error) for place, error in found.items()} == {
            1: PermanentError,
            3: ThrottledError,
        }
        assert [outcomes(batch)[place] for place in (0, 2)] == [Outcome.DELIVERED] * 2


async def test_a_summary_of_errors_without_any_is_not_believed_either(
    real_clock: LoopClock,
) -> None:
    for answer in (answer_of({"status": 201}), {"items": [{"index": {"status": 201}}]}):
        async with saying(answer) as sink:
            assert await send(sink, batch_of([{}])) == {}


@pytest.mark.parametrize(
    "entry",
    [
        {"index": {"status": "200"}},
        {"index": {"status": True}},
        {"index": {"status": None}},
        {"index": {"status": 200.0}},
        {"index": {"status": [200]}},
        {"index": {"status": -200}},
        {"index": {"status": 0}},
        {"index": {"status": 302}},
        {"index": {"status": 10**30}},
        {"index": {"status": 200, "error": {"type": "but"}}},
        {"index": {}},
        {"index": []},
        {"index": None},
        {"merge": {"status": 200}},
        {"index": {"status": 200}, "create": {"status": 200}},
        {},
        [],
        None,
        "index",
        200,
    ],
    ids=str,
)
async def test_an_entry_that_cannot_be_understood_leaves_its_item_unknown(
    real_clock: LoopClock, entry: object
) -> None:
    """It may have been applied; its neighbours keep their own outcomes, and it is not resent
    automatically.
    """
    server = Server()
    server.default = reply(
        200,
        {
            "errors": False,
            "items": [{"index": {"status": 200}}, entry, {"index": failed(400, "wrong")}],
        },
    )
    async with ElasticsearchSink(
        HttpAccess("http://in-process", client=server.client), index="e"
    ) as sink:
        batch = batch_of([{}, {}, {}])
        errors = await send(stack(sink, Retry(backoff=Backoff(base=0.0))), batch)
    assert {place: type(error) for place, error in errors.items()} == {
        1: ResultMismatch,
        2: PermanentError,
    }
    assert outcomes(batch)[0] is Outcome.DELIVERED
    assert batch.maybe_applied == {1}
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        answer_of({"status": 200}),
        answer_of(*[{"status": 200}] * 3),
        {
            "errors": False,
            "items": {"0": {"index": {"status": 200}}, "1": {"index": {"status": 200}}},
        },
        {"errors": False, "items": "ab"},
        {"errors": False, "items": None},
        {"errors": False},
        [],
        "fine",
        None,
        7,
        [{"index": {"status": 200}}] * 2,
    ],
    ids=str,
)
async def test_an_answer_of_another_shape_leaves_every_item_unknown(
    real_clock: LoopClock, answer: object
) -> None:
    async with saying(answer) as sink:
        batch = batch_of([{}, {}])
        errors = await send(sink, batch)
        assert {type(error) for error in errors.values()} == {ResultMismatch}
        assert batch.maybe_applied == {0, 1}


async def test_reasons_of_any_shape_make_a_message(real_clock: LoopClock) -> None:
    """Not text, very long, very deep, half a surrogate pair: the status decides, and the message is
    short.
    """
    deep: dict[str, Any] = {"type": "end", "reason": "x"}
    for _ in range(100):
        deep = {"type": "layer", "reason": "x" * 100, "caused_by": deep}
    for error in (
        {"type": 5, "reason": ["a"]},
        {"type": "long", "reason": "x" * 100_000},
        deep,
        "\ud800",
        ["list"],
        7,
        {},
        {"caused_by": 3},
    ):
        async with saying(answer_of({"status": 400, "error": error})) as sink:
            made = (await send(sink, batch_of([{}])))[0]
            assert type(made) is PermanentError
            assert str(made).startswith("400 ")
            assert len(str(made).encode()) < 1_100
            assert for_log(made).startswith("PermanentError: 400")


async def test_a_log_shows_the_types_of_an_items_errors_and_no_value(real_clock: LoopClock) -> None:
    reason = (
        "failed to parse field [n] of type [long] in document with id '7'. Preview of "
        "field's value: 'item-value'"
    )
    cause = {"type": "illegal_argument_exception", "reason": 'For input string: "item-value"'}
    async with saying(
        answer_of(failed(400, "mapper_parsing_exception", reason, caused_by=cause))
    ) as sink:
        error = (await send(sink, batch_of([{}])))[0]
        assert "Preview of field's value: 'item-value'" in str(error)
        assert (
            for_log(error)
            == "PermanentError: 400 mapper_parsing_exception; caused by illegal_argument_exception"
        )


@pytest.mark.parametrize(
    ("status", "error", "repair", "shown"),
    [
        (
            401,
            {"type": "security_exception", "reason": "unable to authenticate"},
            "give credentials for",
            "(security_exception)",
        ),
        (
            403,
            {"type": "security_exception", "reason": "no rights"},
            "the right to POST to",
            "(security_exception)",
        ),
        (
            403,
            {
                "type": "cluster_block_exception",
                "reason": "blocked by: [FORBIDDEN/6/cluster read-only (api)];",
            },
            "cluster.blocks.read_only",
            "(c",
        ),
        (
            429,
            {"type": "cluster_block_exception", "reason": FLOOD},
            "free disk space",
            "(cluster_block_exception)",
        ),
        (
            400,
            "no handler found for uri [/x/_bulk] and method [POST]",
            "correct the path",
            "HTTP 400",
        ),
        (
            400,
            {
                "type": "illegal_argument_exception",
                "reason": "request [/_bulk] contains unrecognized parameter: [a]",
            },
            "correct params=",
            "(illegal_argument_exception)",
        ),
    ],
)
async def test_a_refusal_of_the_whole_request_is_one_error(
    real_clock: LoopClock, status: int, error: object, repair: str, shown: str
) -> None:
    async with saying({"error": error, "status": status}, status) as sink:
        errors = await send(sink, batch_of([{}, {}]))
        (made,) = set(errors.values())
        assert isinstance(made, RefusedError)
        assert repair in made.repair
        assert shown in for_log(made)
        assert '"reason"' not in for_log(made)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "parse_exception"), (429, "circuit_breaking_exception"), (503, "no_master")],
)
async def test_another_answer_to_the_whole_request_keeps_the_class_of_its_status(
    real_clock: LoopClock, status: int, kind: str
) -> None:
    async with saying({"error": {"type": kind, "reason": "r"}, "status": status}, status) as sink:
        assert not isinstance((await send(sink, batch_of([{}])))[0], RefusedError)


# -- against a real server -------------------------------------------------------------------------


class Repairing:
    """Repairs the destination before its third write."""

    def __init__(self, sink: ElasticsearchSink, repair: Callable[[], Awaitable[object]]) -> None:
        self.sink = sink
        self.repair = repair
        self.errors: list[BaseException] = []
        self.writes = 0

    async def write(self, batch: Batch[Any]) -> WriteResult:
        self.writes += 1
        if self.writes == 3:
            await self.repair()
        errors = await send(self.sink, batch)
        self.errors.extend(errors.values())
        return WriteResult.failed(batch, errors)


async def deliver(
    sink: ElasticsearchSink, repair: Callable[[], Awaitable[object]]
) -> list[BaseException]:
    """Deliver 200 items through a destination that refuses at first; return the errors. No item may
    be lost because of the refusals.
    """
    letters: MemorySink[Any] = MemorySink()
    repairing = Repairing(sink, repair)
    retry = Retry(attempts=2, backoff=Backoff(base=0.001, longest=0.002))
    async with Batcher(
        stack(repairing, Timeout(20.0), retry, DeadLetter(letters)), limits=Limits(max_items=100)
    ) as batcher:
        await batcher.add_many(events(200))
        await batcher.flush()
        tally = batcher.tally()
    assert (tally.delivered, tally.dead_lettered, tally.rejected) == (200, 0, 0)
    assert list(letters.items) == []
    assert {type(error) for error in repairing.errors} == {RefusedError}
    return repairing.errors


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ("write", "set index.blocks.write of"),
        ("read_only", "set index.blocks.read_only of"),
        (
            "read_only_allow_delete",
            "free disk space (or add some), then set index.blocks.read_only_allow_delete of",
        ),
    ],
)
async def test_an_index_that_is_blocked_for_a_while_loses_nothing(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock, block: str, told: str
) -> None:
    """The last case is that of a full disk, for which OpenSearch returns 429."""
    async with (
        index(embedded_opensearch, settings={f"index.blocks.{block}": True}) as there,
        there.sink(id="id") as sink,
    ):

        async def lift() -> None:
            (
                await there.client.put(
                    f"/{there.name}/_settings", json={f"index.blocks.{block}": None}
                )
            ).raise_for_status()

        for error in await deliver(sink, lift):
            assert isinstance(error, RefusedError)
            assert error.repair.startswith(f'{told} the index "{there.name}"')
        assert await there.sources() == {item["id"]: item for item in events(200)}


async def test_an_index_that_is_missing_for_a_while_loses_nothing(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    """Its name is excluded from auto-creation. A missing document remains its item's fault
    meanwhile.
    """
    async with index(embedded_opensearch) as there:
        settings = {"persistent": {"action.auto_create_index": "-absent*,+*"}}
        (await there.client.put("/_cluster/settings", json=settings)).raise_for_status()
        there.name = f"absent-{there.name}"

        async def create() -> None:
            (
                await there.client.put(
                    f"/{there.name}", json={"settings": {"number_of_replicas": 0}}
                )
            ).raise_for_status()

        try:
            async with there.sink(id="id", operation="create") as sink:
                errors = await deliver(sink, create)
            assert isinstance(errors[0], RefusedError)
            assert (
                errors[0].repair
                == f'create the index "{there.name}", or let action.auto_create_index create it'
            )
            assert await there.sources() == {item["id"]: item for item in events(200)}
            for operation in ("update", "delete"):
                async with there.sink(id="id", operation=operation) as sink:
                    assert (
                        type((await send(sink, batch_of([{"id": "nobody"}])))[0]) is PermanentError
                    )
        finally:
            await there.client.put(
                "/_cluster/settings", json={"persistent": {"action.auto_create_index": None}}
            )
            await there.client.delete(f"/{there.name}")
            there.name = there.name.removeprefix("absent-")


async def test_an_index_that_is_closed_for_a_while_loses_nothing(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    async with index(embedded_opensearch) as there, there.sink(id="id") as sink:
        (await there.client.post(f"/{there.name}/_close")).raise_for_status()

        async def reopen() -> None:
            answer = await there.client.post(
                f"/{there.name}/_open", params={"wait_for_active_shards": "1"}
            )
            answer.raise_for_status()

        await deliver(sink, reopen)
        assert len(await there.sources()) == 200


async def test_a_wrong_path_or_parameter_is_refused_by_a_real_server(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    for url, params in (
        (f"{embedded_opensearch.url}/a/b/c", {}),
        (embedded_opensearch.url, {"refreshh": "true"}),
    ):
        async with ElasticsearchSink(url, index="e", params=params) as sink:
            error = (await send(sink, batch_of([{}])))[0]
            assert isinstance(error, RefusedError)
            assert error.repair.startswith("correct ")


async def test_a_cluster_that_is_read_only_is_refused_as_a_whole(
    embedded_opensearch: EmbeddedOpenSearch, real_clock: LoopClock
) -> None:
    """A real 403 response for the whole request."""
    async with index(embedded_opensearch) as there, there.sink(id="id") as sink:
        await there.client.put(
            "/_cluster/settings", json={"persistent": {"cluster.blocks.read_only": True}}
        )

        async def lift() -> None:
            await there.client.put(
                "/_cluster/settings", json={"persistent": {"cluster.blocks.read_only": None}}
            )

        try:
            for error in await deliver(sink, lift):
                assert isinstance(error, RefusedError)
                assert error.repair == "set cluster.blocks.read_only to false"
        finally:
            await lift()
        assert len(await there.sources()) == 200
