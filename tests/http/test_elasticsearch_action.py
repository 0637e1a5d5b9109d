"""Items as bulk lines: every operation, and faulty items, which are detected before the server
would refuse the whole request. White box: the reading of a bulk answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from tests.http.access_help import access_from
from tests.http.http_help import Request, Server, batch_of, reply

from sluicegate import (
    ConfigError,
    Outcome,
    PermanentError,
    RefusedError,
    ThrottledError,
    TransientError,
    send,
)
from sluicegate.batcher import LoopClock
from sluicegate.errors import ResultMismatch, UnverifiableError
from sluicegate.http import ElasticsearchSink, HttpAccess
from sluicegate.http.elasticsearch.answer import FILTER

URL = "http://host:9200"


def lines(sink: ElasticsearchSink, item: Any, key: str = "key") -> list[Any]:
    record = sink._actions.record(item, key)
    try:
        together = sink._actions.records([item, item], [key, key])
    except TypeError:
        assert sink._actions._document is not None, (
            "only documents given as bytes are left to the other way"
        )
    else:
        assert together == [record, record]
    assert record.endswith(b"\n")
    return [json.loads(line) for line in record.splitlines()]


ITEM = {"id": 'a"b', "word": "wörd"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [{"index": {"_index": "e", "_id": "key"}}, ITEM]),
        ({"id": "id"}, [{"index": {"_index": "e", "_id": 'a"b'}}, ITEM]),
        ({"id": lambda _: None}, [{"index": {"_index": "e"}}, ITEM]),
        (
            {"id": lambda _: 7, "operation": "create"},
            [{"create": {"_index": "e", "_id": "7"}}, ITEM],
        ),
        (
            {"id": "id", "operation": "update"},
            [{"update": {"_index": "e", "retry_on_conflict": 3, "_id": 'a"b'}}, {"doc": ITEM}],
        ),
        (
            {"id": "id", "operation": "upsert"},
            [
                {"update": {"_index": "e", "retry_on_conflict": 3, "_id": 'a"b'}},
                {"doc": ITEM, "doc_as_upsert": True},
            ],
        ),
        (
            {"id": "id", "operation": "delete", "pipeline": "p"},
            [{"delete": {"_index": "e", "_id": 'a"b'}}],
        ),
        (
            {"pipeline": "p", "routing": "word"},
            [{"index": {"_index": "e", "pipeline": "p", "_id": "key", "routing": "wörd"}}, ITEM],
        ),
        (
            {"pipeline": lambda item: item["id"]},
            [{"index": {"_index": "e", "pipeline": 'a"b', "_id": "key"}}, ITEM],
        ),
        (
            {"routing": lambda _: None, "version": lambda _: None},
            [{"index": {"_index": "e", "_id": "key"}}, ITEM],
        ),
        (
            {"version": lambda _: 5},
            [
                {
                    "index": {
                        "_index": "e",
                        "_id": "key",
                        "version": 5,
                        "version_type": "external",
                    }
                },
                ITEM,
            ],
        ),
        (
            {"index": lambda item: f"e-{item['word']}"},
            [{"index": {"_index": "e-wörd", "_id": "key"}}, ITEM],
        ),
        ({"operation": lambda _: "create"}, [{"create": {"_index": "e", "_id": "key"}}, ITEM]),
        (
            {"document": lambda item: {"only": item["word"]}},
            [{"index": {"_index": "e", "_id": "key"}}, {"only": "wörd"}],
        ),
        (
            {"document": lambda _: b'{"raw":1}'},
            [{"index": {"_index": "e", "_id": "key"}}, {"raw": 1}],
        ),
    ],
)
def test_an_item_becomes_an_action_and_a_document(
    arguments: dict[str, Any], expected: list[Any]
) -> None:
    """batcher/B41: an `_id` per record; index, create, update, delete, upsert; routing, pipelines,
    versions.
    """
    chosen: dict[str, Any] = {"index": "e", **arguments}
    assert lines(ElasticsearchSink(URL, **chosen), ITEM) == expected


@dataclass
class Event:
    id: int
    word: str


def test_fields_of_objects_are_read_by_attribute() -> None:
    sink = ElasticsearchSink(URL, index="e", id="id", routing="word")
    action = {"index": {"_index": "e", "_id": "5", "routing": "w"}}
    assert lines(sink, Event(5, "w")) == [action, {"id": 5, "word": "w"}]


@pytest.mark.parametrize(
    ("arguments", "item"),
    [
        ({"id": "id"}, {}),
        ({"id": "id"}, {"id": ""}),
        ({"id": "id"}, {"id": "x" * 513}),
        ({"id": "id"}, {"id": "ä" * 257}),
        ({"id": "id"}, {"id": True}),
        ({"id": "id"}, {"id": 1.5}),
        ({"id": lambda _: None, "operation": "update"}, {}),
        ({"id": lambda _: None, "operation": lambda _: "delete"}, {}),
        ({"operation": lambda _: "merge"}, {}),
        ({"operation": lambda _: ["index"]}, {}),
        ({"index": lambda _: ""}, {}),
        ({"index": lambda _: None}, {}),
        ({"version": lambda _: -1}, {}),
        ({"version": lambda _: "7"}, {}),
        ({"version": lambda _: 7, "operation": lambda _: "create"}, {}),
        ({}, {"a": float("nan")}),
        ({}, "text"),
        ({}, [1]),
        ({"document": lambda _: b'{"a":\n1}'}, {}),
    ],
)
async def test_an_item_that_the_server_would_refuse_the_request_for_fails_alone(
    real_clock: LoopClock, arguments: dict[str, Any], item: Any
) -> None:
    """B-T26: a bad item fails alone; its neighbours are sent."""
    server = Server()
    server.default = answering({"status": 201})
    neighbour = {"id": "fine", "a": 1}
    given: dict[str, Any] = {"index": "e", **arguments}
    for name in ("index", "operation", "version", "id", "document"):
        wrong = given.get(name)
        if callable(wrong):
            usual = {
                "index": "e",
                "operation": "index",
                "version": None,
                "id": "fine",
                "document": b"{}",
            }[name]
            given[name] = lambda each, wrong=wrong, usual=usual: (
                usual if each is neighbour else wrong(each)
            )
    async with ElasticsearchSink(
        HttpAccess("http://in-process", client=server.client), **given
    ) as sink:
        errors = await send(sink, batch_of([neighbour, item, neighbour]))
        assert {index: type(error) for index, error in errors.items()} == {1: PermanentError}
        assert len(server.requests) == 1


def answering(*said: dict[str, Any], **headers: str) -> Any:
    """A bulk response with these results in turn, one per action."""

    async def step(request: Request) -> Any:
        actions = [
            line
            for line in request.items
            if next(iter(line), "") in {"index", "create", "update", "delete"}
        ]
        items = [
            {next(iter(action)): dict(said[number % len(said)])}
            for number, action in enumerate(actions)
        ]
        body = {"errors": any(each["status"] >= 300 for each in said), "items": items}
        return await reply(200, body, **headers)(request)

    return step


CONFLICT = {
    "status": 409,
    "error": {"type": "version_conflict_engine_exception", "reason": "document already exists"},
}
MISSING = {"status": 404, "result": "not_found"}
SHARD = {
    "status": 503,
    "error": {"type": "unavailable_shards_exception", "reason": "primary shard is not active"},
}
FULL = {"status": 429, "error": {"type": "rejected_execution_exception", "reason": "queue full"}}
UNMAPPED = {
    "status": 400,
    "error": {
        "type": "mapper_parsing_exception",
        "reason": "r",
        "caused_by": {"type": "illegal", "reason": "why"},
    },
}
ID: dict[str, Any] = {"id": "id"}
VERSIONED: dict[str, Any] = {"id": "id", "version": lambda _: 1}


@pytest.mark.parametrize(
    ("arguments", "said", "first", "maybe"),
    [
        ({**ID, "operation": "create"}, CONFLICT, PermanentError, UnverifiableError),
        ({"operation": "create"}, CONFLICT, Outcome.DUPLICATE, Outcome.DUPLICATE),
        ({**ID, "operation": "update"}, CONFLICT, TransientError, TransientError),
        ({**ID, "operation": "upsert"}, CONFLICT, TransientError, TransientError),
        (VERSIONED, CONFLICT, PermanentError, UnverifiableError),
        ({**VERSIONED, "on_stale": "ignore"}, CONFLICT, Outcome.DELIVERED, Outcome.DUPLICATE),
        ({**VERSIONED, "operation": "delete"}, CONFLICT, PermanentError, UnverifiableError),
        ({**ID, "operation": "delete"}, MISSING, PermanentError, Outcome.DUPLICATE),
        ({**ID, "operation": "update"}, MISSING, PermanentError, PermanentError),
        (ID, FULL, ThrottledError, ThrottledError),
        (ID, SHARD, RefusedError, RefusedError),
        (ID, {"status": 500, "error": "old servers say a word"}, TransientError, TransientError),
        (ID, UNMAPPED, PermanentError, PermanentError),
        (ID, {"status": 403}, PermanentError, PermanentError),
        (ID, {"status": 200, "result": "noop"}, Outcome.DELIVERED, Outcome.DELIVERED),
    ],
)
async def test_an_items_status_has_its_outcome(
    real_clock: LoopClock, arguments: dict[str, Any], said: Any, first: Any, maybe: Any
) -> None:
    """B-T26, batcher/4b.11, batcher/4a.4: per item; a conflict is a duplicate only if an earlier
    attempt must have caused it. This server has no stored document to compare.
    """
    server = Server()
    server.default = answering(said, {"status": 200}, retry_after="4")
    chosen: dict[str, Any] = {"index": "e", **arguments}
    async with ElasticsearchSink(
        HttpAccess("http://in-process", client=server.client), **chosen
    ) as sink:
        items = [{"id": number} for number in range(4)]
        batch = batch_of(items, maybe=[2])
        errors = await send(sink, batch)
        for index, expected in ((0, first), (2, maybe)):
            assert (
                batch.delivery.verdict(index)
                if isinstance(expected, Outcome)
                else type(errors.get(index))
            ) is expected
        assert {batch.delivery.verdict(index) for index in (1, 3)} == {Outcome.DELIVERED}
        if first is ThrottledError:
            assert getattr(errors[0], "retry_after", None) == 4.0


async def test_the_servers_reasons_are_told_outermost_first(real_clock: LoopClock) -> None:
    server = Server()
    for said, told in (
        (UNMAPPED, "400 mapper_parsing_exception: r; caused by illegal: why"),
        ({"status": 500, "error": "a word"}, "500 a word"),
        (MISSING, "404 not_found"),
        ({"status": 403}, "403 no reason given"),
    ):
        server.steps.append(answering(said))
        async with ElasticsearchSink(
            HttpAccess("http://in-process", client=server.client), index="e"
        ) as sink:
            errors = await send(sink, batch_of([{}]))
            assert str(errors[0]) == told


async def test_the_request_asks_for_no_more_than_is_read(real_clock: LoopClock) -> None:
    server = Server()
    server.default = answering({"status": 201, "_id": "x", "_version": 1, "result": "created"})
    sink = ElasticsearchSink(
        HttpAccess("http://user:pass@in-process/search/", client=server.client),
        index="e",
        params={"refresh": "wait_for"},
        compression=None,
    )
    async with sink:
        result = await sink.write(batch_of([{}, {}]))
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/search/_bulk")
    assert request.query == f"refresh=wait_for&filter_path={FILTER}"
    assert request.headers["authorization"].startswith("Basic ")
    assert request.headers["content-type"] == "application/x-ndjson"
    assert "content-encoding" not in request.headers
    assert result is not None
    assert result.details[1] == {"status": 201, "_id": "x", "_version": 1, "result": "created"}
    assert (
        repr(sink)
        == "ElasticsearchSink(http://in-process/search/_bulk, index='e', operation='index')"
    )


@pytest.mark.parametrize(
    "answer",
    [
        {"errors": False, "items": [{"index": {"status": 200}}]},
        {"errors": True, "items": [{"index": {"status": 400}}] * 3},
        {"errors": False},
        {"errors": False, "items": [{}, {}]},
        [],
    ],
)
async def test_an_answer_that_does_not_fit_leaves_every_item_unknown(
    real_clock: LoopClock, answer: object
) -> None:
    """B-T44"""
    server = Server()
    server.default = reply(200, answer)
    async with ElasticsearchSink(
        HttpAccess("http://in-process", client=server.client), index="e"
    ) as sink:
        batch = batch_of([{}, {}])
        errors = await send(sink, batch)
        assert {type(error) for error in errors.values()} == {ResultMismatch}
        assert batch.maybe_applied == {0, 1}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"url": 7}, "url='int'"),
    ({"url": "host"}, "absolute URL"),
    ({"url": "http://us:secret@[host"}, "host or port"),
    ({"url": "http://host/?secret=1"}, "see params="),
    ({"params": {"filter_path": "took"}}, "filter_path"),
    ({"index": ""}, "index=''"),
    ({"index": None}, "index=None"),
    ({"operation": "merge"}, "operation='merge'"),
    ({"operation": "update"}, "id=None"),
    ({"operation": "delete"}, "id=None"),
    ({"operation": "create", "version": "v"}, "takes no version"),
    ({"operation": "update", "id": "id", "version": "v"}, "takes no version"),
    ({"id": 5}, "id=5"),
    ({"routing": ""}, "routing=''"),
    ({"pipeline": ""}, "pipeline=''"),
    ({"on_stale": "retry"}, "on_stale='retry'"),
    ({"document": "doc"}, "document='doc'"),
    ({"compression": "zstd"}, "compression='zstd'"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD)
def test_a_bad_argument_is_told_by_name(arguments: dict[str, Any], told: str) -> None:
    """B-T30"""
    chosen: dict[str, Any] = {"url": URL, "index": "e", **arguments}
    with pytest.raises(ConfigError) as caught:
        ElasticsearchSink(access_from(chosen.pop("url"), chosen), **chosen)
    assert told in str(caught.value)
    assert "secret" not in str(caught.value)


def test_what_it_promises() -> None:
    assert ElasticsearchSink(URL, index="e", id="id").capabilities.idempotent
    assert not ElasticsearchSink(URL, index="e").capabilities.idempotent, (
        "in another batch an item has another id"
    )
    assert not ElasticsearchSink(
        URL, index="e", id="id", operation="create"
    ).capabilities.idempotent
    assert not ElasticsearchSink(
        URL, index="e", id="id", operation=lambda _: "index"
    ).capabilities.idempotent
    assert ElasticsearchSink(URL, index="e", pool_size=2).capabilities.max_concurrency == 2
