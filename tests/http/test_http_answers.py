"""Arbitrary data after the headers of a success: it never looks like an unapplied request, and its
memory is bounded. White box: the bounded decompression of an answer.
"""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import zstandard
from tests.http.http_help import Reply, Request, Server, batch_of, cut, outcomes, reply, serving

from sluicegate import (
    Backoff,
    Batcher,
    Outcome,
    PermanentError,
    Retry,
    ThrottledError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    send,
    stack,
)
from sluicegate.errors import ResultMismatch
from sluicegate.http import ElasticsearchSink, HttpAccess, HttpResponse, HttpSink, client
from sluicegate.http.client import Inflater

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sluicegate import Batch
    from sluicegate.batcher import LoopClock

ITEMS = [{"id": number} for number in range(4)]
STRANGE = [
    {"retry_after": "Fri, 31 Dec 9999 23:59:59 -99999999999999"},
    {"retry_after": "Fri, 31 Dec 99999999999999999999 23:59:59 GMT"},
    {
        "retry_after": "Wed, 21 Oct 2015 07:28:00 GMT",
        "date": "Fri, 31 Dec 9999 23:59:59 +99999999999999",
    },
    {"retry_after": "Fri, 31 Dec 9999 23:59:59 -9999"},
    {"retry_after": "Fri, 31 Dec 9999 23:59:59 +9959"},
    {"retry_after": "9" * 5_000},
    {"retry_after": "1e308"},
    {"retry_after": "nan"},
    {"content_type": "text/html; charset=no-such-charset"},
    {"location": "http://[::1"},
    {"set_cookie": "a=b; expires=Fri, 31 Dec 9999 23:59:59 -9999; max-age=1e308"},
]


def every_one(response: HttpResponse, batch: Batch[Any]) -> None:
    """A `parse` function that reads the response and trusts the status."""


@pytest.mark.parametrize("parse", [None, every_one])
async def test_no_header_turns_a_success_into_a_failure(real_clock: LoopClock, parse: Any) -> None:
    """A date that overflows once raised an unlisted error after the success, and the items were
    sent three times.
    """
    async with serving() as server:
        sink = stack(HttpSink(server.url, parse=parse), Retry(backoff=Backoff(base=0.0)))
        async with Batcher(sink) as batcher:
            for count, headers in enumerate(STRANGE, 1):
                server.default = reply(200, {"fine": True}, **headers)
                await batcher.add_many(ITEMS)
                await batcher.flush()
                assert batcher.tally().delivered == count * len(ITEMS), headers
                assert len(server.requests) == count, headers


@pytest.mark.parametrize("status", [429, 503])
async def test_an_unreadable_header_leaves_the_status_its_meaning(
    real_clock: LoopClock, status: int
) -> None:
    async with serving() as server, HttpSink(server.url) as sink:
        for headers in STRANGE:
            server.default = reply(status, **headers)
            error = (await send(sink, batch_of(ITEMS)))[0]
            assert isinstance(error, (ThrottledError, UnavailableError)), headers
            assert error.retry_after is None or 0 <= error.retry_after <= 366 * 86_400, headers


BROKEN: list[tuple[str, bytes, dict[str, str]]] = [
    ("no gzip at all", b"plain", {"content_encoding": "gzip"}),
    ("cut gzip", gzip.compress(b"x" * 10_000)[:-9], {"content_encoding": "gzip"}),
    ("gzip with garbage behind", gzip.compress(b"{}") + b"garbage", {"content_encoding": "gzip"}),
    ("an encoding that was not asked for", zstandard.compress(b"{}"), {"content_encoding": "zstd"}),
    ("an encoding that nobody knows", b"{}", {"content_encoding": "x" * 500}),
    ("several encodings", b"{}", {"content_encoding": "gzip, gzip"}),
    ("nothing", b"", {}),
    ("no JSON", b"<html>", {}),
    ("not UTF-8", b'{"a": "\xff\xfe"}', {}),
    ("too deep", b"[" * 100_000, {}),
    ("too deep objects", b'{"items":' * 100_000, {}),
    ("a huge number", b'{"items": ' + b"1" * 5_000 + b"}", {}),
]


@pytest.mark.parametrize(("_what", "body", "headers"), BROKEN, ids=[name for name, _, _ in BROKEN])
@pytest.mark.parametrize("make", ["http", "elasticsearch"])
async def test_an_answer_that_cannot_be_read_leaves_every_item_unknown(
    real_clock: LoopClock, make: str, _what: str, body: bytes, headers: dict[str, str]
) -> None:
    """Nothing is resent automatically, because the request was a success."""

    def parse(response: HttpResponse, batch: Batch[Any]) -> None:
        json.loads(response.body)

    server = Server()
    server.default = reply(200, body, **headers)
    if make == "http":
        one: HttpSink | ElasticsearchSink = HttpSink(
            HttpAccess(server.url, client=server.client), parse=parse
        )
    else:
        one = ElasticsearchSink(HttpAccess(server.url, client=server.client), index="e")
    async with one:
        batch = batch_of(ITEMS)
        errors = await send(stack(one, Retry(backoff=Backoff(base=0.0))), batch)
    assert {type(error) for error in errors.values()} == {ResultMismatch}
    assert set(outcomes(batch)) == {Outcome.UNKNOWN}
    assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"plain", zstandard.compress(b"{}"), b"[" * 100_000])
async def test_an_answer_that_is_not_needed_is_not_read(real_clock: LoopClock, body: bytes) -> None:
    """Without `parse` the status is sufficient."""
    async with serving() as server, HttpSink(server.url) as sink:
        server.default = reply(200, body, content_encoding="gzip")
        assert await send(sink, batch_of(ITEMS)) == {}


async def test_an_answer_that_breaks_off_leaves_every_item_unknown(real_clock: LoopClock) -> None:
    async with serving() as server:
        for parse in (None, every_one):
            async with HttpSink(server.url, parse=parse) as sink:
                server.steps.append(cut())
                batch = batch_of(ITEMS)
                errors = await send(sink, batch)
                assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
                assert batch.maybe_applied == {0, 1, 2, 3}


async def test_a_refusal_that_breaks_off_is_still_a_refusal(real_clock: LoopClock) -> None:
    """The status decides, and the read error is the cause."""

    async def step(_: Request) -> Reply:
        return Reply(400, b"a reason that", cut=True)

    async with serving() as server, HttpSink(server.url) as sink:
        server.default = step
        error = (await send(sink, batch_of(ITEMS)))[0]
        assert isinstance(error, PermanentError)
        assert error.__cause__ is not None
        assert isinstance(error.__cause__.__cause__, httpx.RemoteProtocolError)


class OddClient(httpx.AsyncClient):
    """A response whose body raises an unusual exception."""

    error: BaseException = LookupError("what is this")

    async def send(self, *args: Any, **options: Any) -> httpx.Response:
        response = await super().send(*args, **options)
        error = self.error

        class Odd(httpx.AsyncByteStream):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                yield b"{"
                raise error

        await response.aread()
        odd = httpx.Response(response.status_code, headers=response.headers, stream=Odd())
        odd.request = response.request
        return odd


@pytest.mark.parametrize(
    "error",
    [
        LookupError("odd"),
        OSError("odd"),
        MemoryError(),
        httpx.ConnectError("odd"),
        RecursionError(),
    ],
)
async def test_any_exception_while_a_success_is_read_leaves_every_item_unknown(
    real_clock: LoopClock, error: Exception
) -> None:
    class Client(OddClient):
        pass

    Client.error = error
    async with serving() as server:
        for parse in (None, every_one):
            async with HttpSink(HttpAccess(server.url, client=Client), parse=parse) as sink:
                batch = batch_of(ITEMS)
                errors = await send(sink, batch)
                assert {isinstance(each, UnknownOutcomeError) for each in errors.values()} == {True}
                assert batch.maybe_applied == {0, 1, 2, 3}


async def test_an_answer_that_was_read_stands_though_closing_it_fails(
    real_clock: LoopClock,
) -> None:
    class Client(httpx.AsyncClient):
        async def send(self, *args: Any, **options: Any) -> httpx.Response:
            response = await super().send(*args, **options)
            await response.aread()

            async def aclose() -> None:
                raise OSError("cannot be closed")

            response.aclose = aclose  # type: ignore[method-assign]  # that is the point
            return response

    async with serving() as server, HttpSink(HttpAccess(server.url, client=Client)) as sink:
        server.steps.extend([reply(), reply(400)])
        assert await send(sink, batch_of(ITEMS)) == {}
        assert {type(error) for error in (await send(sink, batch_of(ITEMS))).values()} == {
            PermanentError
        }


async def test_a_response_hook_may_read_the_answer_first(real_clock: LoopClock) -> None:
    """Like httpx hooks that log it; a hook that raises after a success leaves the items unknown."""
    seen: list[bytes] = []

    async def read(response: httpx.Response) -> None:
        seen.append(await response.aread())

    async def fail(response: httpx.Response) -> None:
        raise ValueError("the hook is wrong")

    def parse(response: HttpResponse, batch: Batch[Any]) -> None:
        assert json.loads(response.body) == {"fine": 1}

    async with serving() as server:
        server.default = reply(200, gzip.compress(b'{"fine": 1}'), content_encoding="gzip")
        for given in (None, parse):
            async with HttpSink(
                HttpAccess(server.url, client_options={"event_hooks": {"response": [read]}}),
                parse=given,
            ) as sink:
                assert await send(sink, batch_of(ITEMS)) == {}
        assert seen == [b'{"fine": 1}'] * 2
        async with HttpSink(
            HttpAccess(server.url, client_options={"event_hooks": {"response": [fail]}})
        ) as sink:
            errors = await send(sink, batch_of(ITEMS))
            assert {type(error) for error in errors.values()} == {UnknownOutcomeError}


# -- answers without an end ------------------------------------------------------------------------


def bomb(megabytes: int) -> bytes:
    """Data that decompress to a thousand times their size."""
    stream = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return b"".join(
        [*(stream.compress(bytes(1024 * 1024)) for _ in range(megabytes)), stream.flush()]
    )


@pytest.mark.parametrize("make", ["http", "elasticsearch"])
async def test_a_compressed_answer_costs_no_more_than_the_limit(
    real_clock: LoopClock, make: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 KB that decompress to 64 MB, most of it in one chunk; the limit is 1 MB."""
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 1_000_000)
    body = bomb(64)
    async with serving() as server:
        server.default = reply(200, body, content_encoding="gzip")
        one = (
            HttpSink(server.url, parse=every_one, pool_size=1)
            if make == "http"
            else ElasticsearchSink(server.url, index="e", pool_size=1)
        )
        async with one as sink:
            tracemalloc.start()
            try:
                errors = await send(sink, batch_of(ITEMS))
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert {type(error) for error in errors.values()} == {ResultMismatch}
            assert "longer than 1000000 bytes" in str(errors[0])
            assert peak < 4_000_000, peak
            server.default = reply(
                200, {"errors": False, "items": [{"index": {"status": 201}}] * 4}
            )
            assert await send(sink, batch_of(ITEMS)) == {}, "the connection's place is free again"


async def test_an_answer_of_exactly_the_limit_is_read(
    real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b'"' + b"x" * 9_998 + b'"'
    lengths: list[int] = []

    def parse(response: HttpResponse, batch: Batch[Any]) -> None:
        lengths.append(len(response.body))

    async with serving() as server:
        for body, headers in (
            (text, {}),
            (gzip.compress(text), {"content_encoding": "gzip"}),
            (zlib.compress(text), {"content_encoding": "deflate"}),
        ):
            server.default = reply(200, body, **headers)
            async with HttpSink(server.url, parse=parse) as sink:
                monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 10_000)
                assert await send(sink, batch_of(ITEMS)) == {}
                monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 9_999)
                assert isinstance((await send(sink, batch_of(ITEMS)))[0], ResultMismatch)
    assert lengths == [10_000] * 3


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_an_answer_without_an_end_is_cut_off_and_its_connection_closed(
    real_clock: LoopClock, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A success without `parse` is read up to the limit, any other status only at its beginning."""
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 1_000_000)
    async with serving() as server, HttpSink(server.url, pool_size=1) as sink:
        server.default = reply(status, bytes(4_000_000))
        for _ in range(3):
            error = (await send(sink, batch_of(ITEMS)))[0]
            assert (
                type(error)
                is {200: ResultMismatch, 400: PermanentError, 500: TransientError}[status]
            )
        transport: Any = getattr(sink._client, "_transport", None)
        assert transport._pool.connections == []
        server.default = reply(200)
        assert await send(sink, batch_of(ITEMS)) == {}


async def test_a_refusal_that_is_a_bomb_costs_little(real_clock: LoopClock) -> None:
    async with serving() as server, HttpSink(server.url) as sink:
        server.default = reply(400, bomb(32), content_encoding="gzip")
        tracemalloc.start()
        try:
            error = (await send(sink, batch_of(ITEMS)))[0]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert isinstance(error, PermanentError)
        assert peak < 2_000_000, peak


@pytest.mark.parametrize("wbits", [zlib.MAX_WBITS, zlib.MAX_WBITS | 16])
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 300_000])
@pytest.mark.parametrize("chunk", [1_000, 1_000_000])
def test_compressed_data_is_the_same_after_pieces(wbits: int, size: int, chunk: int) -> None:
    """Several members in sequence, however they arrive; never more than 64 KiB at once."""
    data = bytes(number * number % 251 for number in range(size))
    stream = zlib.compressobj(wbits=wbits)
    member = stream.compress(data) + stream.flush()
    raw = member * 2
    inflater = Inflater()
    pieces = [
        piece
        for start in range(0, len(raw), chunk)
        for piece in inflater.pieces(raw[start : start + chunk])
    ]
    inflater.check_end()
    assert b"".join(pieces) == data * 2
    assert max(map(len, pieces)) <= 65_536
    half = Inflater()
    assert list(half.pieces(member[:-1])) is not None
    with pytest.raises(zlib.error, match="incomplete"):
        half.check_end()
