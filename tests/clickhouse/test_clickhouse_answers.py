"""The meaning of a server's responses for a write, and the effect of a truncated body.

White box: the class of an error, its text in a log, and the settings of a request.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest
from tests.clickhouse.clickhouse_help import PLAIN, Words, bad, told, written
from tests.http.access_help import access_from
from tests.http.http_help import Reply, Request, Server, Step, reply, serving

from sluicegate import ConfigError, ErrorClass, PermanentError, ThrottledError
from sluicegate._core.classify import classified
from sluicegate._core.logs import for_log
from sluicegate.clickhouse import ClickHouseSink
from sluicegate.clickhouse.errors import ClickHouseError
from sluicegate.clickhouse.server import own_settings
from sluicegate.http import HttpAccess

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.clickhouse.servers import EngineServer

pytestmark = pytest.mark.usefixtures("real_clock")
KNOWN = ["insert_deduplication_token", "async_insert", "insert_distributed_sync"]
FACTS = reply(200, {"data": [["26.9.2.1", KNOWN]]})
VIEWS = "deduplicate_blocks_in_dependent_materialized_views"
COLUMNS = reply(200, {"data": [["id", "UInt32", ""], ["word", "String", ""]]})
ENGINE = reply(200, {"data": [["ReplicatedMergeTree", "ReplicatedMergeTree() ORDER BY id"]]})
HEADER = "x-clickhouse-exception-code"


@asynccontextmanager
async def opened(
    *, facts: Step = FACTS, **options: Any
) -> AsyncGenerator[tuple[ClickHouseSink, Server]]:
    """A sink of a server with scripted responses."""
    async with serving() as server:
        server.steps.extend([facts, ENGINE])
        server.always[b"system.columns"] = COLUMNS
        given: dict[str, Any] = {"format": "json", "client_options": PLAIN, **options}
        async with ClickHouseSink(access_from(server.url, given), table="words", **given) as sink:
            yield sink, server


ANSWERS = [
    (reply(200, b"", **{HEADER: "209"}), ErrorClass.UNKNOWN),
    (reply(200, b"", **{HEADER: "252"}), ErrorClass.THROTTLE),
    (reply(200, b"Code: 241. DB::Exception: Memory limit"), ErrorClass.TRANSIENT),
    (reply(200, b"<html>Log in here</html>"), ErrorClass.UNKNOWN),
    (reply(500, b"Code: 60, e.displayText() = DB::Exception: absent"), ErrorClass.REFUSED),
    (reply(500, b"Code: 243. DB::Exception: Cannot reserve"), ErrorClass.REFUSED),
    (reply(500, b"Code: 75. DB::Exception: errno: 28, x"), ErrorClass.REFUSED),
    (reply(500, b"Code: 516. DB::Exception: failed"), ErrorClass.REFUSED),
    (reply(500, b"Code: 497. DB::Exception: Not enough"), ErrorClass.REFUSED),
    (reply(500, b"Code: 242. DB::Exception: read only"), ErrorClass.UNAVAILABLE),
    (reply(500, b"Code: 202. DB::Exception: queries"), ErrorClass.THROTTLE),
    (reply(500, b"Code: 319. DB::Exception: unknown"), ErrorClass.UNKNOWN),
    (reply(500, b"Code: 159. DB::Exception: Timeout"), ErrorClass.UNKNOWN),
    (reply(500, b"Code: 1002. DB::Exception: unlisted"), ErrorClass.TRANSIENT),
    (reply(400, b"Code: 99999. DB::Exception: unlisted"), ErrorClass.PERMANENT),
    (reply(503, b"no ClickHouse here"), ErrorClass.UNAVAILABLE),
    (reply(413, b"too long for a proxy"), ErrorClass.PERMANENT),
]


async def test_the_code_of_an_exception_decides() -> None:
    """Also with status 200, or any other status."""
    async with opened() as (sink, server):
        for answer, kind in ANSWERS:
            server.steps.append(answer)
            errors = await written(sink, [(1, "a")])
            assert classified(errors[0], sink.classify) is kind, errors[0]
            if kind is ErrorClass.REFUSED:  # the table may have been altered
                server.steps.extend([FACTS] if "absent" in str(errors[0]) else [])
            assert await written(sink, [(1, "a")]) == {}


async def test_an_error_has_its_code_and_shows_no_row_in_logs() -> None:
    async with opened() as (sink, server):
        text = b"Code: 117. DB::Exception: bad: much-too-private: (at row 1) (INCORRECT_DATA)"
        server.default = reply(400, text)
        (error,) = (await written(sink, [(1, "a")])).values()
        assert isinstance(error, PermanentError)
        assert isinstance(error.__cause__, ClickHouseError)
        assert (error.__cause__.code, error.__cause__.name) == (117, "INCORRECT_DATA")
        assert "private" in str(error)
        assert "private" not in for_log(error)


async def test_a_row_that_is_blamed_wrongly_is_delivered() -> None:
    """The server always blames the first row of a body; the bad row is still found."""

    async def step(request: Request) -> Reply:
        rows = json.loads(request.body)
        if any(row["id"] == 70 for row in rows):
            return Reply(400, b"Code: 27. DB::Exception: Cannot parse: (at row 1)")
        stored.extend(row["id"] for row in rows)
        return Reply()

    stored: list[int] = []
    async with opened() as (sink, server):
        server.default = step
        assert bad(await written(sink, [(number, "x") for number in range(100)])) == [70]
        assert stored == [number for number in range(100) if number != 70]
        assert len(server.requests) < 3 + 2 + 2 * 8


async def test_a_blamed_row_costs_three_requests() -> None:
    """Every part has its own token, which stays the same when it is sent again."""

    async def step(request: Request) -> Reply:
        rows = json.loads(request.body)
        wrong = [at for at, row in enumerate(rows, 1) if row["id"] == 70]
        (token,) = parse_qs(request.query)["insert_deduplication_token"]
        assert tokens.setdefault(token, rows) == rows
        if wrong:
            text = f"Code: 27. DB::Exception: Cannot parse: (at row {wrong[0]})"
            return Reply(400, text.encode())
        return Reply()

    tokens: dict[str, Any] = {}
    async with opened() as (sink, server):
        server.default = step
        assert bad(await written(sink, [(number, "x") for number in range(100)])) == [70]
        assert sorted(map(len, tokens.values())) == [1, 29, 70, 100]


async def test_settings_are_those_that_the_server_knows() -> None:
    async with opened(settings={"insert_quorum": 2}) as (sink, server):
        assert await written(sink, [(1, "a")]) == {}
        sent = parse_qs(server.requests[-1].query)
        assert sent.pop("insert_deduplication_token")
        assert sent == {
            "query": ["INSERT INTO `words` (`id`, `word`) FORMAT JSONEachRow"],
            "wait_end_of_query": ["1"],
            "async_insert": ["0"],
            "insert_distributed_sync": ["1"],
            "insert_quorum": ["2"],
        }


@pytest.mark.parametrize(
    ("version", "options", "sent"),
    [
        ("24.7.1.1", {}, ["1"]),
        ("24.6.1.1", {}, None),
        ("25.8.1.1", {"async_insert": True}, None),
        ("25.8.1.1", {"settings": {VIEWS: 0}}, ["0"]),
    ],
)
async def test_views_recognize_repeated_rows_where_they_do_it_by_the_token(
    version: str, options: dict[str, Any], sent: list[str] | None
) -> None:
    """By default, views of 24.7 to 25.x store them again, as do those of 26.9 with this setting at
    0. Earlier ones compare the rows of the view itself.
    """
    facts = reply(200, {"data": [[version, [*KNOWN, VIEWS]]]})
    async with opened(facts=facts, **options) as (sink, server):
        assert await written(sink, [(1, "a")]) == {}
        assert parse_qs(server.requests[-1].query).get(VIEWS) == sent


async def test_what_answers_may_be_no_server_of_clickhouse() -> None:
    async with serving() as server:
        server.default = reply(200, b"<html>Welcome</html>")
        sink = ClickHouseSink(HttpAccess(server.url, client_options=PLAIN), table="words")
        with pytest.raises(ConfigError, match="is not from ClickHouse; to repair: correct the URL"):
            async with sink:
                pass


async def test_a_throttle_ends_the_batch() -> None:
    async with opened(max_bytes=60) as (sink, server):
        server.default = reply(500, b"Code: 252. DB::Exception: Too many parts", retry_after="7")
        errors = await written(sink, [(number, "x" * 20) for number in range(5)])
        assert {type(error) for error in errors.values()} == {ThrottledError}
        assert len(errors) == 5
        assert len(server.requests) == 3
        assert getattr(errors[0], "retry_after", None) == 7.0


@pytest.mark.parametrize("format_name", ["arrow", "json"])
async def test_a_body_that_was_cut_off_is_refused(engine: EngineServer, format_name: str) -> None:
    """Wherever it is truncated: no part of it is stored under the token of the whole body."""
    words = Words(engine, format=format_name)
    rows = [(number, "x" * (number % 7)) for number in range(20)]
    async with serving() as server:
        server.steps.extend([FACTS, ENGINE])
        server.always[b"system.columns"] = COLUMNS
        sink = words.sink(url=server.url, format=format_name)
        async with sink:
            assert await written(sink, rows) == {}
    sent = server.requests[-1]
    insert = parse_qs(sent.query)["query"][0]
    settings = {"insert_deduplication_token": "t", "input_format_parallel_parsing": "0"}
    step = sent.body.index(b"}") + 1 if format_name == "json" else 100
    for end in (
        *range(step, len(sent.body) - 100, step),
        len(sent.body) - (9 if format_name == "arrow" else 1),
    ):
        words.server.post(insert, settings, sent.body[:end])
    assert words.server.post(insert, settings, sent.body) == 200
    assert words.rows() == told(rows)


@pytest.mark.long
def test_a_body_is_one_block_however_many_rows_it_has(engine: EngineServer) -> None:
    """So none of it is stored if its last row is refused; otherwise two million rows would be."""
    words = Words(engine, format="json")
    words.make("id UInt32, CONSTRAINT small CHECK id < 9000000")
    rows = b",".join(b'{"id":%d}' % number for number in range(4_000_000))
    settings = own_settings(deduplicate=True, async_insert=False)
    insert = "INSERT INTO words (id) FORMAT JSONEachRow"
    assert words.server.post(insert, settings, b"[" + rows + b',{"id":9000000}]') == 500
    assert words.rows("count()", "1") == [("0",)]
