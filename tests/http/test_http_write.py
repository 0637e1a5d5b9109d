"""`HttpSink` and a server on loopback: the requests, and the outcome of every item.

White box: the cause of an item's error.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx
import httpx2
import pytest
import trustme
from tests.http.http_help import (
    Reply,
    Request,
    Server,
    at_most,
    batch_of,
    cut,
    hang,
    outcomes,
    reply,
    serving,
)

from sluicegate import (
    Backoff,
    Batcher,
    ClosedError,
    Limits,
    Outcome,
    PermanentError,
    RefusedError,
    Retry,
    ThrottledError,
    Timeout,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    WriteResult,
    send,
    stack,
)
from sluicegate.batcher import Adaptive
from sluicegate.errors import ResultMismatch, TimedOutError
from sluicegate.http import HttpAccess, HttpResponse, HttpSink
from sluicegate.http.errors import HttpStatusError

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import FakeClock

ITEMS = [{"id": number, "word": f"wörd {number}"} for number in range(10)]
ALL = list(range(10))


def in_process(server: Server, **options: Any) -> HttpSink:
    return HttpSink(HttpAccess("http://in-process/bulk", client=server.client), **options)


async def test_a_line_per_item(real_clock: LoopClock) -> None:
    """B-T26, batcher/B41: NDJSON, one request, everything delivered."""
    async with serving() as server, HttpSink(f"{server.url}/bulk?a=1") as sink:
        batch = batch_of(ITEMS)
        assert await send(sink, batch) == {}
        (request,) = server.requests
        assert (request.method, request.path, request.query) == ("POST", "/bulk", "a=1")
        assert request.headers["content-type"] == "application/x-ndjson"
        assert "authorization" not in request.headers
        assert request.body.endswith(b"\n")
        assert request.items == ITEMS
        assert set(outcomes(batch)) == {Outcome.DELIVERED}


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("word", ["short", "long " * 20_000])
async def test_bodies_are_compressed(real_clock: LoopClock, compression: Any, word: str) -> None:
    """B-T26: short ones inline, long ones in a thread; the received data are the same."""
    items = [{"word": word}] * 2
    async with (
        serving() as server,
        HttpSink(server.url, compression=compression, body="json") as sink,
    ):
        assert await send(sink, batch_of(items)) == {}
        (request,) = server.requests
        assert request.headers["content-encoding"] == compression
        assert request.raw != request.body
        assert json.loads(request.body) == items


async def test_the_users_own_encoder_body_headers_and_method(real_clock: LoopClock) -> None:
    async with serving() as server:
        sink = HttpSink(
            HttpAccess(server.url, headers={"Content-Type": "text/plain", "X-Tenant": "blue"}),
            encode=lambda item: f"cpu,host={item} value=1",
            body=lambda records: b"#" + b"|".join(records),
            method="PUT",
        )
        async with sink:
            assert await send(sink, batch_of(["a", "b"])) == {}
        (request,) = server.requests
        assert request.method == "PUT"
        assert request.body == b"#cpu,host=a value=1|cpu,host=b value=1"
        assert (request.headers["content-type"], request.headers["x-tenant"]) == (
            "text/plain",
            "blue",
        )


@pytest.mark.parametrize("compression", [None, "gzip"])
async def test_a_long_batch_goes_as_several_requests(
    real_clock: LoopClock, compression: Any
) -> None:
    """B-T26, batcher/4a.3: the ceiling applies to uncompressed bytes; an item above it fails
    alone.
    """
    items = [*ITEMS[:5], {"word": "x" * 200}, *ITEMS[5:], float("nan")]
    async with (
        serving() as server,
        HttpSink(server.url, max_bytes=100, compression=compression) as sink,
    ):
        batch = batch_of(items)
        errors = await send(sink, batch)
        assert {index: type(error) for index, error in errors.items()} == {
            5: PermanentError,
            11: PermanentError,
        }
        assert "max_bytes=100" in str(errors[5])
        assert "cannot be encoded" in str(errors[11])
        assert [item for request in server.requests for item in request.items] == ITEMS
        assert len(server.requests) > 1
        assert max(len(request.body) for request in server.requests) <= 100


async def test_nothing_is_sent_of_a_batch_of_bad_items(real_clock: LoopClock) -> None:
    async with serving() as server, HttpSink(server.url) as sink:
        assert set(await send(sink, batch_of([object(), object()]))) == {0, 1}
        assert server.requests == []


async def test_too_large_for_the_server_is_cut_in_two(real_clock: LoopClock) -> None:
    """batcher/4b.5: the batch is split after a 413; an item that is too large fails alone, and its
    neighbours are delivered in order.
    """
    items = [*ITEMS[:3], {"word": "x" * 200}, *ITEMS[3:]]
    async with serving() as server, HttpSink(server.url) as sink:
        server.default = at_most(120)
        errors = await send(sink, batch_of(items))
        assert list(errors) == [3]
        assert isinstance(errors[3], PermanentError)
        assert isinstance(errors[3].__cause__, HttpStatusError)
        taken = [
            item
            for request in server.requests
            if len(request.body) <= 120
            for item in request.items
        ]
        assert taken == ITEMS


def odd_ones_fail(response: HttpResponse, batch: Batch[Any]) -> WriteResult:
    """A server that responds with one status per item."""
    statuses = json.loads(response.body)
    errors = {
        409: PermanentError("there"),
        429: ThrottledError("slow", retry_after=response.retry_after),
    }
    answers = [Outcome.DUPLICATE if status == 208 else errors.get(status) for status in statuses]
    return WriteResult.from_outcomes(batch, answers, details={0: "first"})


async def test_outcomes_of_items_that_nothing_reads_are_unknown(real_clock: LoopClock) -> None:
    """A 207 means that some items may have failed. Without `parse` none of them is delivered."""
    async with serving() as server, HttpSink(server.url) as sink:
        server.steps.append(reply(207, [201, 500]))
        batch = batch_of("ab")
        errors = await send(sink, batch)
        assert {type(error) for error in errors.values()} == {ResultMismatch}
        assert "parse=" in str(errors[0])
        assert await send(sink, batch_of("cd")) == {}


async def test_a_servers_answer_for_each_item_is_routed(real_clock: LoopClock) -> None:
    """B-T26, batcher/B41: by position, through the parser; `Retry-After` applies to single
    items.
    """
    async with serving() as server, HttpSink(server.url, parse=odd_ones_fail) as sink:
        server.steps.append(reply(207, [200, 409, 208, 429], Retry_After="7"))
        batch = batch_of("abcd")
        result = await sink.write(batch)
        assert result is not None
        assert result.details == {0: "first"}
        server.steps.append(reply(207, [200, 409, 208, 429], Retry_After="7"))
        errors = await send(sink, batch)
        assert {index: type(error) for index, error in errors.items()} == {
            1: PermanentError,
            3: ThrottledError,
        }
        assert getattr(errors[3], "retry_after", None) == 7.0
        assert outcomes(batch) == [
            Outcome.DELIVERED,
            Outcome.REJECTED,
            Outcome.DUPLICATE,
            Outcome.REJECTED,
        ]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ([200] * 9, "9 answers for a batch of 10"),
        (b"", "JSONDecodeError"),
        (b"{", "JSONDecodeError"),
        ({"a": 1}, "1 answers"),
    ],
)
async def test_an_answer_that_does_not_fit_leaves_every_item_unknown(
    real_clock: LoopClock, body: object, told: str
) -> None:
    """B-T44: the length is checked; no item counts as delivered."""
    async with serving() as server, HttpSink(server.url, parse=odd_ones_fail) as sink:
        server.steps.append(reply(200, body))
        batch = batch_of(ITEMS)
        errors = await send(sink, batch)
        assert {type(error) for error in errors.values()} == {ResultMismatch}
        assert told in str(errors[0])
        assert set(outcomes(batch)) == {Outcome.UNKNOWN}


@pytest.mark.parametrize("result", [WriteResult(3), WriteResult(11), "fine"])
async def test_a_parser_that_answers_for_others_is_not_believed(
    real_clock: LoopClock, result: Any
) -> None:
    async with (
        serving() as server,
        HttpSink(server.url, parse=lambda _response, _batch: result) as sink,
    ):
        errors = await send(sink, batch_of(ITEMS))
        assert {type(error) for error in errors.values()} == {ResultMismatch}


async def test_a_parser_may_fail_the_whole_request(real_clock: LoopClock) -> None:
    def parse(_response: HttpResponse, _batch: Batch[Any]) -> None:
        raise TransientError("try again, it says")

    async with serving() as server, HttpSink(server.url, parse=parse) as sink:
        errors = await send(sink, batch_of(ITEMS))
        assert {str(error) for error in errors.values()} == {"try again, it says"}


async def test_the_key_is_the_same_for_the_same_items_and_no_others(real_clock: LoopClock) -> None:
    """B-T39: two disjoint picks have different keys; the same pick again has the same key."""
    async with (
        serving() as server,
        HttpSink(server.url, idempotency_header="Idempotency-Key") as sink,
    ):
        batch = batch_of(ITEMS)
        for indices in ([0, 1], [2, 3], [0, 1]):
            await sink.write(batch.pick(indices))
        keys = [request.headers["idempotency-key"] for request in server.requests]
        assert keys[0] == keys[2] == batch.pick([0, 1]).write_key
        assert keys[0] != keys[1]
        assert not sink.capabilities.idempotent
        assert HttpSink(server.url, idempotent=True).capabilities.idempotent


async def test_the_key_of_a_way_with_any_name_is_a_valid_header(real_clock: LoopClock) -> None:
    async with (
        serving() as server,
        HttpSink(server.url, idempotency_header="Idempotency-Key") as sink,
    ):
        with batch_of(ITEMS).child("späte\r\nBriefe", lambda outcome: outcome) as ways:
            for way in ways.values():
                assert await send(sink, way) == {}
        assert "%0D%0A" in server.requests[0].headers["idempotency-key"]


async def test_each_way_to_log_in(real_clock: LoopClock) -> None:
    tokens = iter(["Bearer one", "Bearer two"])

    async def token() -> str:
        return next(tokens)

    async with serving() as server:
        sent: list[str] = []
        with_user = server.url.replace("://", "://us%40er:pa%3Ass@")
        sinks = [
            HttpSink(HttpAccess(server.url, auth=("us@er", "pa:ss"))),
            HttpSink(with_user),
            HttpSink(HttpAccess(server.url, auth="ApiKey abc")),
            HttpSink(HttpAccess(server.url, auth=token)),
            HttpSink(HttpAccess(server.url, auth=lambda: "Bearer plain")),
        ]
        for sink in sinks:
            async with sink:
                assert await send(sink, batch_of(ITEMS)) == {}
                sent.append(server.requests[-1].headers["authorization"])
        assert sent == [
            "Basic dXNAZXI6cGE6c3M=",
            "Basic dXNAZXI6cGE6c3M=",
            "ApiKey abc",
            "Bearer one",
            "Bearer plain",
        ]


async def test_a_throttled_write_sends_nothing_more(real_clock: LoopClock) -> None:
    """batcher/4a.6: the rest of the batch waits, too, without a request or an attempt."""
    async with serving() as server, HttpSink(server.url, max_bytes=70) as sink:
        server.steps.extend([reply(), reply(429, retry_after="3")])
        batch = batch_of(ITEMS)
        errors = await send(sink, batch)
        assert len(server.requests) == 2
        assert list(errors) == ALL[2:]
        assert {type(error) for error in errors.values()} == {ThrottledError}
        assert {getattr(error, "retry_after", None) for error in errors.values()} == {3.0}


@pytest.mark.parametrize(
    ("status", "kind"), [(400, PermanentError), (500, TransientError), (504, TimedOutError)]
)
async def test_another_failure_keeps_no_other_request_from_being_sent(
    real_clock: LoopClock, status: int, kind: type[Exception]
) -> None:
    async with serving() as server, HttpSink(server.url, max_bytes=70) as sink:
        server.steps.extend([reply(), reply(status)])
        batch = batch_of(ITEMS)
        errors = await send(sink, batch)
        assert len(server.requests) == 5
        assert {index: type(error) for index, error in errors.items()} == {2: kind, 3: kind}


async def test_what_a_request_delivered_is_settled_before_the_next_one(
    fake_clock: FakeClock,
) -> None:
    """B-T41, batcher/4a.5: if the second request is cut, the first one's items stay delivered."""
    server = Server()
    server.steps.extend([reply(), hang()])
    async with in_process(server, max_bytes=70, parse=lambda _response, _batch: None) as sink:
        batch = batch_of(ITEMS)
        errors = await send(stack(sink, Timeout(5.0)), batch)
        assert list(errors) == ALL[2:]
        assert {type(error) for error in errors.values()} == {TimedOutError}
        assert outcomes(batch)[:2] == [Outcome.DELIVERED] * 2


async def test_only_rejected_items_are_sent_again(real_clock: LoopClock) -> None:
    """B-T18, batcher/4a.5: 5 of 10 are throttled; the second request carries exactly those, in
    order.
    """
    async with serving() as server, HttpSink(server.url, parse=odd_ones_fail) as sink:
        server.steps.extend([reply(207, [200, 429] * 5, Retry_After="0"), reply(207, [200] * 5)])
        batch = batch_of(ITEMS)
        assert await send(stack(sink, Retry(backoff=Backoff(base=0.0))), batch) == {}
        assert server.requests[1].items == ITEMS[1::2]


async def test_retry_after_is_waited_for(fake_clock: FakeClock) -> None:
    """batcher/4a.6: as a minimum for the wait, in seconds and as a date."""
    server = Server()
    server.steps.extend(
        [
            reply(429, retry_after="11"),
            reply(
                503,
                retry_after="Wed, 21 Oct 2015 07:28:00 GMT",
                date="Wed, 21 Oct 2015 07:27:47 GMT",
            ),
        ]
    )
    async with in_process(server) as sink:
        began = fake_clock.now()
        assert await send(stack(sink, Retry(backoff=Backoff(base=0.0))), batch_of(ITEMS)) == {}
        assert fake_clock.now() - began == pytest.approx(11 + 13)
        assert len(server.requests) == 3


async def test_a_connection_that_is_closed_leaves_the_outcome_unknown(
    real_clock: LoopClock,
) -> None:
    async with serving() as server, HttpSink(server.url) as sink:
        server.steps.append(cut())
        batch = batch_of(ITEMS)
        errors = await send(sink, batch)
        assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
        assert batch.maybe_applied == frozenset(ALL)


async def test_silence_leaves_the_outcome_unknown(real_clock: LoopClock) -> None:
    """batcher/B25: a timeout after the request was sent leaves its outcome open."""

    def client() -> httpx.AsyncClient:
        """Connecting and sending may take longer on a busy machine."""
        return httpx.AsyncClient(timeout=httpx.Timeout(30.0, read=0.05))

    async with serving() as server, HttpSink(HttpAccess(server.url, client=client)) as sink:
        server.steps.append(hang())
        errors = await send(sink, batch_of(ITEMS))
        assert {type(error) for error in errors.values()} == {TimedOutError}
        assert "ReadTimeout" in str(errors[0])


async def test_nobody_there_is_unavailable(real_clock: LoopClock) -> None:
    async with serving() as server:
        url = server.url
    async with HttpSink(f"{url}/bulk?key=hidden", max_bytes=70) as sink:
        errors = await send(sink, batch_of(ITEMS))
        assert {type(error) for error in errors.values()} == {UnavailableError}
        assert list(errors) == ALL
        assert f"no connection to {url}/bulk" in str(errors[0])
        assert "hidden" not in str(errors[0])


async def test_a_name_that_does_not_resolve_is_unavailable(real_clock: LoopClock) -> None:
    async with HttpSink("http://nowhere.invalid/") as sink:
        errors = await send(sink, batch_of(ITEMS))
        assert {type(error) for error in errors.values()} == {UnavailableError}
        assert "nowhere.invalid" in str(errors[0])


@pytest.mark.parametrize(
    ("host", "until", "trusted", "told"),
    [
        ("127.0.0.1", None, True, None),
        ("127.0.0.1", None, False, "CERTIFICATE_VERIFY_FAILED"),
        ("127.0.0.1", datetime(2001, 1, 1, tzinfo=UTC), True, "certificate has expired"),
        ("elsewhere.invalid", None, True, "not valid for '127.0.0.1'"),
    ],
)
async def test_tls_with_a_context_of_ones_own_and_a_certificate_that_is_wrong(
    real_clock: LoopClock,
    tmp_path: Any,
    host: str,
    until: datetime | None,
    trusted: bool,
    told: str | None,
) -> None:
    """TLS options are passed through; the error names the fault of a certificate, nothing is sent,
    and no item is refused because of it.
    """
    authority = trustme.CA()
    certificate = authority.issue_cert(
        host, not_after=until, not_before=datetime(2000, 1, 1, tzinfo=UTC)
    )
    chain, key, root = tmp_path / "chain.pem", tmp_path / "key.pem", tmp_path / "root.pem"
    chain.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(root))

    def context() -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(root))

    options: dict[str, Any] = {"ssl_context": context} if trusted else {}
    async with (
        serving(ssl_certfile=str(chain), ssl_keyfile=str(key)) as server,
        HttpSink(HttpAccess(server.url, **options)) as sink,
    ):
        errors = await send(sink, batch_of(ITEMS))
        if told is None:
            assert errors == {}
            return
        assert {type(error) for error in errors.values()} == {UnavailableError}
        assert told in str(errors[0])
        assert server.requests == []


async def test_wrong_credentials_are_told(real_clock: LoopClock) -> None:
    async with (
        serving() as server,
        HttpSink(HttpAccess(server.url, auth=("user", "wrong-one"))) as sink,
    ):
        server.steps.append(reply(401, {"error": "unknown user"}))
        errors = await send(sink, batch_of(ITEMS))
        assert {type(error) for error in errors.values()} == {RefusedError}
        assert str(errors[0]).startswith(
            f'HTTP 401 Unauthorized from {server.url}: {{"error": "unknown user"}}; to repair: '
            "give credentials"
        )


async def test_a_proxy_is_used(real_clock: LoopClock) -> None:
    async with (
        serving() as server,
        HttpSink(
            HttpAccess("http://elsewhere.invalid/bulk", client_options={"proxy": server.url})
        ) as sink,
    ):
        assert await send(sink, batch_of(ITEMS)) == {}
        assert server.requests[0].headers["host"] == "elsewhere.invalid"


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("is_async", [True, False])
async def test_any_client_of_that_shape_is_used_and_closed(
    real_clock: LoopClock, library: Any, is_async: bool
) -> None:
    made: list[Any] = []

    def plain() -> Any:
        made.append(library.AsyncClient())
        return made[-1]

    async def slowly() -> Any:
        return plain()

    async with (
        serving() as server,
        HttpSink(HttpAccess(server.url, client=slowly if is_async else plain)) as sink,
    ):
        assert await send(sink, batch_of(ITEMS)) == {}
        server.steps.append(cut())
        assert isinstance((await send(sink, batch_of(ITEMS)))[0], UnknownOutcomeError)
    assert made[0].is_closed


async def test_a_redirect_is_not_followed(real_clock: LoopClock) -> None:
    """A POST that becomes a GET has no body, and its success would be misread."""

    def client() -> httpx.AsyncClient:
        return httpx.AsyncClient(follow_redirects=True)

    async with serving() as server, HttpSink(HttpAccess(server.url, client=client)) as sink:
        server.steps.append(reply(302, location="https://us:hidden@elsewhere/new?hidden=1#hidden"))
        errors = await send(sink, batch_of(ITEMS))
        assert {type(error) for error in errors.values()} == {RefusedError}
        assert "redirects, https://elsewhere/new, or log in" in str(errors[0])
        assert "hidden" not in str(errors[0])
        assert len(server.requests) == 1


async def test_a_closed_sink_says_so(real_clock: LoopClock) -> None:
    with pytest.raises(ClosedError, match="not open"):
        await HttpSink("http://127.0.0.1:1").write(batch_of(ITEMS))


async def test_a_cancelled_write_leaves_the_next_one_a_connection(real_clock: LoopClock) -> None:
    async with serving() as server, HttpSink(server.url, pool_size=1) as sink:
        server.steps.append(hang())
        batch = batch_of(ITEMS)
        task = asyncio.create_task(send(sink, batch))
        await server.called.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert batch.maybe_applied == frozenset(ALL)
        assert await send(sink, batch_of(ITEMS)) == {}


async def test_a_write_cancelled_at_any_moment_gives_its_connection_back(
    real_clock: LoopClock,
) -> None:
    """One connection; the write is cancelled after every number of loop iterations."""
    async with (
        serving() as server,
        HttpSink(HttpAccess(server.url, timeout=5.0), pool_size=1) as sink,
    ):
        ended = False
        for turns in range(200):
            write = asyncio.create_task(send(sink, batch_of(ITEMS)))
            for _ in range(turns):
                await real_clock.sleep(0)
            ended = write.done()
            write.cancel()
            await asyncio.wait([write])
            assert await send(sink, batch_of(ITEMS)) == {}, f"after {turns} turns"
            if ended:
                break
        assert ended, "no write was given the time to end"


async def test_a_stack_over_http_delivers_everything(fake_clock: FakeClock) -> None:
    """The usual stack: a transient error, an outage and a throttle, and no item is lost or sent
    twice.
    """
    server = Server()
    server.steps.extend([reply(500), reply(503), reply(429)])
    taken: list[Any] = []

    async def keep(request: Request) -> Reply:
        taken.extend(request.items)
        return Reply()

    server.default = keep
    async with Batcher(stack(in_process(server), Timeout(5.0), Retry()), name="audit") as batcher:
        await batcher.add_many(ITEMS)
        await batcher.flush()
    assert batcher.report is not None
    assert batcher.report.tally.delivered == len(ITEMS)
    assert taken == ITEMS


async def test_a_413_that_was_split_still_tells_that_it_was_too_much(fake_clock: FakeClock) -> None:
    """batcher/B45: an adaptive batcher gets the signal, although every item is delivered."""
    server = Server()
    limits = Limits(max_items=2, max_delay=0.1)
    async with Batcher(
        in_process(server), limits=limits, adaptive=Adaptive(min_items=1)
    ) as batcher:
        for _ in range(10):
            server.steps.extend([reply(413), reply(), reply()])
            await batcher.add_many(ITEMS[:2])
            await batcher.flush()
        await fake_clock.run_until_idle()
        assert batcher.stats().max_items == 1
        assert batcher.tally().delivered == 20
