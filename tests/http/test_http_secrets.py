"""A server that quotes the request: no message, repr or log line shows a secret in any form. White
box: the masks of secrets, and texts for logs.
"""

from __future__ import annotations

import base64
import html
import json
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

import httpx
import pytest
from tests.http.http_help import Reply, Request, batch_of, serving

from sluicegate import Batcher, DeadLetter, Retry, WriteResult, send, stack
from sluicegate._core.logs import for_log
from sluicegate.http import ElasticsearchSink, HttpAccess, HttpResponse, HttpSink
from sluicegate.http.errors import HttpStatusError
from sluicegate.http.secrets import Secrets
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.batcher import LoopClock

PASSWORD = 'pa"ss/w ö:rd%1'
PAIR = f"app:{PASSWORD}"


def forms(secret: str) -> list[str]:
    """The forms in which a server may quote it."""
    encoded = secret.encode()
    return [
        secret,
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
        json.dumps({"request": json.dumps(secret)}),
        quote(secret),
        quote(secret, safe=""),
        quote(secret, safe="").lower(),
        quote_plus(secret),
        base64.b64encode(encoded).decode(),
        base64.urlsafe_b64encode(encoded).decode(),
        html.escape(secret),
        repr(secret),
        "\0".join(secret),
    ]


def basic(user: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize("form", [*forms(PASSWORD), *forms(PAIR)])
def test_every_form_of_a_password_is_replaced(form: str) -> None:
    shown = Secrets(basic("app", PASSWORD)).redact(f"no such user <{form}>, sorry")
    assert shown.startswith("no such user <")
    assert shown.endswith(">, sorry")
    assert "***" in shown
    for trace in (
        "ss/w",
        "ss%2",
        "ss\\",
        "w ö",
        base64.b64encode(PASSWORD.encode()).decode()[:8],
        base64.b64encode(PAIR.encode()).decode()[:8],
    ):
        assert trace not in shown


@pytest.mark.parametrize("form", forms("tok/en=="))
def test_values_of_the_query_of_headers_and_of_cookies_are_replaced(form: str) -> None:
    for secrets in (
        Secrets({}, f"http://host/bulk?refresh=true&key={quote('tok/en==', safe='')}"),
        Secrets({}, "http://host/bulk?key=tok/en=="),
        Secrets({}, "http://host/bulk?tok%2fen%3d%3d"),
        Secrets({"x-api-key": "tok/en=="}),
        Secrets({"authorization": "Bearer tok/en=="}),
        Secrets({"authorization": "tok/en=="}),
        Secrets({}, client_options={"params": {"key": "tok/en=="}}),
        Secrets({}, client_options={"params": "key=tok/en=="}),
        Secrets({}, client_options={"cookies": {"session": "tok/en=="}}),
        Secrets({}, client_options={"proxy": "http://us:tok%2Fen%3D%3D@proxy:1"}),
        Secrets(
            {}, client_options={"proxy": httpx.Proxy("http://proxy:1", auth=("us", "tok/en=="))}
        ),
        Secrets({"authorization": "ApiKey " + base64.b64encode(b"id:tok/en==").decode()}),
    ):
        assert "tok" not in secrets.redact(f"you sent {form}").replace("\0", "")


def test_a_short_secret_is_replaced_as_a_word() -> None:
    """Replacing it inside words would make the message unreadable."""
    secrets = Secrets(
        {**basic("app", "it"), "x-tag": "blue", "x-number": "1"},
        "http://h/?k=wait&v=2&refresh=true&filter_path=items",
    )
    assert (
        secrets.redact("it waits with item 1: wait, blue=(blue) v=2, true items")
        == "*** waits with item 1: ***, ***=(***) v=2, true items"
    )


def test_nothing_that_is_given_makes_it_raise() -> None:
    for headers in (
        {"authorization": "Basic not base64!"},
        {"authorization": "Basic /w=="},
        {"authorization": ""},
        {"authorization": " "},
        {},
    ):
        for url in ("", "http://host/", "http://host/?=&a&a="):
            for proxy in (None, "http://[proxy", object(), ("a",)):
                assert (
                    Secrets(headers, url, {"proxy": proxy, "params": 5}).redact(
                        "text \ud800 with half a pair"
                    )
                    == "text ? with half a pair"
                )


def test_the_beginning_of_a_secret_at_the_end_of_a_text_that_was_cut_is_left_out() -> None:
    secrets = Secrets({"authorization": "Bearer 0123456789abcdef"})
    text = "you sent " * 100 + "0123456789abcdef"
    for length in range(890, len(text)):
        assert "0123" not in secrets.redact_beginning(text[:length])
    assert secrets.redact_beginning("short") == ""


def quoting(status: int, *, per_item: bool = False) -> Any:
    """A server that quotes the request line and every header, and user and password in plain
    text.
    """

    async def step(request: Request) -> Reply:
        authorization = request.headers["authorization"]
        clear = (
            base64.b64decode(authorization.split()[1]).decode()
            if authorization.startswith("Basic ")
            else authorization
        )
        quoted = [
            f"{request.method} {request.path}?{request.query}",
            dict(request.headers),
            clear,
            quote(clear),
            json.dumps(clear),
        ]
        if not per_item:
            return Reply(status, json.dumps(quoted).encode())
        error = {
            "type": "security_exception",
            "reason": f"Preview of field's value: 'item-value', {json.dumps(quoted)}",
        }
        said = [{"index": {"status": status, "error": {**error, "caused_by": error}}}] * len(
            request.items[::2]
        )
        return Reply(200, json.dumps({"errors": True, "items": said}).encode())

    return step


async def test_a_server_that_quotes_everything_gives_nothing_away(
    real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Through a batcher with retries and dead letters, for every class of status, for whole
    requests and single items.
    """
    caplog.set_level(logging.DEBUG, logger="sluicegate")
    shown: list[object] = []
    async with serving() as server:
        url = server.url.replace("://", "://app:hunter%222%2F@")
        for status in (400, 403, 404, 429, 500):
            for per_item in (False, True):
                server.default = quoting(status, per_item=per_item)
                sinks: list[ElasticsearchSink | HttpSink] = [
                    ElasticsearchSink(url, index="e", params={"key": "hunter3"})
                ]
                if not per_item:
                    sinks.append(
                        HttpSink(
                            HttpAccess(f"{url}/bulk?key=hunter3", headers={"x-key": "hunter4"})
                        )
                    )
                for sink in sinks:
                    async with sink:
                        error = (await send(sink, batch_of([{"a": "item-value"}])))[0]
                    shown += [error, error.__cause__, for_log(error), sink]
                    if isinstance(error.__cause__, HttpStatusError):
                        shown.append(error.__cause__.body)
                    assert "item-value" not in for_log(error)
                    assert "a=" not in for_log(error)
        letters: MemorySink[Any] = MemorySink()
        server.default = quoting(400, per_item=True)
        whole = stack(
            ElasticsearchSink(url, index="e", params={"key": "hunter3"}),
            Retry(attempts=1),
            DeadLetter(letters),
        )
        async with Batcher(whole) as batcher:
            await batcher.add({"a": "item-value"})
        shown += [letters.items, caplog.text]
        assert len(letters.items) == 1
    text = " ".join(f"{each} {each!r}" for each in shown)
    assert "hunter" not in text
    assert base64.b64encode(b'app:hunter"2/').decode() not in text
    assert "***" in text


async def test_a_parse_function_can_redact_what_it_quotes(real_clock: LoopClock) -> None:
    """Its exceptions are redacted automatically."""

    def parse(response: HttpResponse, batch: Batch[Any]) -> WriteResult:
        text = response.body.decode()
        assert "hunter2" in text
        assert "hunter2" not in response.redact(text)
        raise ValueError(text)

    async with (
        serving() as server,
        HttpSink(HttpAccess(server.url, auth="Bearer hunter2"), parse=parse) as sink,
    ):
        server.default = quoting(200)
        error = (await send(sink, batch_of("a")))[0]
        assert "hunter" not in f"{error} {for_log(error)}"
        assert "authorization" in str(error)
        assert "authorization" not in for_log(error)


async def test_what_an_encoder_raises_may_quote_the_item_and_is_in_no_log(
    real_clock: LoopClock,
) -> None:
    def encode(item: str) -> bytes:
        raise ValueError(f"cannot encode {item}")

    async with serving() as server, HttpSink(server.url, encode=encode) as sink:
        error = (await send(sink, batch_of(["item-value"])))[0]
        assert "item-value" in str(error)
        assert for_log(error).startswith(
            "PermanentError: the item cannot be encoded (ValueError at "
        )
