"""Bad arguments are reported at once, secrets are never shown, and a description can be pickled."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import pickle
import ssl
from typing import TYPE_CHECKING, Any

import cloudpickle
import httpx
import pytest
from tests.http.access_help import access_from
from tests.http.http_help import Server, batch_of, cut, reply, serving

from sluicegate import ConfigError, RefusedError, send
from sluicegate.errors import MissingExtra, NotPicklableError
from sluicegate.http import HttpAccess, HttpSink

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock

URL = "https://host/bulk"
BAD: list[tuple[dict[str, Any], str]] = [
    ({"url": 7}, "url='int'"),
    ({"url": "host/bulk"}, "absolute URL"),
    ({"url": "ftp://us:secret@host/"}, "absolute URL"),
    ({"url": "http://:secret@/bulk"}, "absolute URL"),
    ({"url": "http://us:secret@host:port/"}, "host or port"),
    ({"url": "http://[us:secret@host/"}, "host or port"),
    ({"url": "http://us:secret@host/a b"}, "absolute URL"),
    ({"url": "http://us:secret@host/", "auth": "Bearer secret"}, "a URL that contains a user"),
    ({"body": "xml"}, "'ndjson', 'json'"),
    ({"encode": "json"}, "encode='json'"),
    ({"parse": 1}, "parse=1"),
    ({"method": "GET"}, "method='GET'"),
    ({"compression": "br"}, "compression='br'"),
    ({"max_bytes": 0}, "max_bytes=0"),
    ({"pool_size": 0}, "pool_size=0"),
    ({"timeout": -1}, "timeout=-1"),
    ({"close_timeout": 0}, "close_timeout=0"),
    ({"idempotency_header": "Idempotency Key"}, "idempotency_header='Idempotency Key'"),
    ({"headers": ["a"]}, "headers='list'"),
    ({"headers": {"a b": "c"}}, "headers='a b'"),
    ({"headers": {"X-Key": "secret\r\nHost: evil"}}, "headers['X-Key']"),
    ({"headers": {"X-Key": "sécret"}}, "printable ASCII"),
    ({"headers": {"X-Key": 5}}, "printable ASCII"),
    ({"headers": {"Authorization": "Bearer secret"}}, "is given by auth="),
    ({"headers": {"Content-Encoding": "gzip"}}, "see compression="),
    ({"auth": "Bearer secret\n"}, "printable ASCII"),
    ({"auth": ("us:er", "secret")}, "colon"),
    ({"auth": ("user",)}, "must be (user, password)"),
    ({"auth": 5}, "must be (user, password)"),
    ({"client": httpx.Limits()}, "must be a function that returns a client"),
    ({"client": Server, "timeout": 1.0}, "combined with client="),
    (
        {"client": Server, "client_options": {"proxy": "http://us:secret@p"}},
        "combined with client=",
    ),
    ({"client_options": [1]}, "client_options='list'"),
    ({"client_options": {"verify": False}, "ssl_cafile": "ca.pem"}, "given by ssl_context="),
    ({"ssl_context": 5}, "ssl_context='int'"),
    ({"ssl_context": Server, "ssl_password": "secret"}, "beside ssl_context="),
    ({"client_options": {"auth": ("us", "secret")}}, "given by auth="),
    ({"client_options": {"headers": {"a": "secret"}}}, "given by headers="),
    ({"client_options": {"follow_redirects": True}}, "GET"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD)
def test_a_bad_argument_is_told_by_name_and_without_secrets(
    arguments: dict[str, Any], told: str
) -> None:
    """B-T30: at construction, before anything is started."""
    chosen: dict[str, Any] = {"url": URL, **arguments}
    with pytest.raises(ConfigError) as caught:
        HttpSink(access_from(chosen.pop("url"), chosen), **chosen)
    assert told in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(("missing", "compression"), [("httpx", None), ("zstandard", "zstd")])
def test_a_missing_extra_is_told(
    monkeypatch: pytest.MonkeyPatch, missing: str, compression: Any
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else find(name)
    )
    with pytest.raises(MissingExtra, match=r'pip install "sluicegate\[http\]"'):
        HttpSink(URL, compression=compression)


@pytest.mark.parametrize("options", [{"no_such_option": "secret"}])
async def test_an_option_that_the_client_refuses_is_told_when_it_is_opened(
    real_clock: LoopClock, options: dict[str, str]
) -> None:
    sink = HttpSink(HttpAccess(URL, client_options=options))
    with pytest.raises(ConfigError) as caught:
        async with sink:
            pass
    assert next(iter(options)) in str(caught.value)
    assert "secret" not in f"{caught.value} {caught.value.__cause__}"
    assert not sink.is_open


async def test_a_factory_that_makes_no_client_is_told(real_clock: LoopClock) -> None:
    with pytest.raises(ConfigError, match="httpx"):
        async with HttpSink(HttpAccess(URL, client=dict)):  # type: ignore[arg-type]  # that is the point
            pass


async def test_a_value_that_is_no_header_is_not_sent_nor_shown(real_clock: LoopClock) -> None:
    async with (
        serving() as server,
        HttpSink(HttpAccess(server.url, auth=lambda: "Bearer hunter2\r\nX: y")) as sink,
    ):
        errors = await send(sink, batch_of("ab"))
        assert {type(error) for error in errors.values()} == {RefusedError}
        assert isinstance(errors[0].__cause__, ConfigError)
        assert "hunter2" not in f"{errors[0]} {errors[0].__cause__}"
        assert server.requests == []


async def test_secrets_are_in_no_repr_error_or_log(
    real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Userinfo, auth, header values and the proxy's password, even if the server quotes the
    request.
    """
    caplog.set_level(logging.DEBUG, logger="httpx")
    caplog.set_level(logging.DEBUG, logger="sluicegate")
    async with serving() as server:
        with_user = server.url.replace("://", "://user:hunter2@") + "/bulk?hidden=1"
        proxy = server.url.replace("://", "://user:hunter8@")
        cases: list[tuple[HttpSink, list[str]]] = [
            (
                HttpSink(HttpAccess(with_user, headers={"X-Api-Key": "hunter4"})),
                ["hunter2", "dXNlcjpodW50ZXIy", "hunter4"],
            ),
            (HttpSink(HttpAccess(server.url, auth="Bearer hunter5")), ["Bearer hunter5"]),
            (
                HttpSink(HttpAccess(server.url, auth=("user", "hunter6"))),
                ["hunter6", "dXNlcjpodW50ZXI2"],
            ),
            (HttpSink(HttpAccess(server.url, auth=lambda: "Bearer hunter7")), ["hunter7"]),
            (HttpSink(HttpAccess("http://elsewhere/", client_options={"proxy": proxy})), []),
        ]
        shown: list[object] = []
        for sink, sent in cases:
            async with sink:
                for step in (reply(401, {"you": sent}), reply(500, {"sent": sent}), cut()):
                    server.steps.append(step)
                    (error,) = set((await send(sink, batch_of("ab"))).values())
                    shown += [error, error.__cause__, vars(error.__cause__).get("body")]
            shown += [
                sink,
                sink._endpoint,
                sink._endpoint.access.client_options,
                sink._endpoint.headers,
            ]
        text = " ".join(f"{each} {each!r}" for each in shown)
        assert "hunter" not in text
        assert "dXNlcj" not in text
        assert "hidden" not in text
        assert "***" in text
        assert "hunter" not in caplog.text


def test_a_description_travels() -> None:
    sink = HttpSink(
        HttpAccess(URL, auth=("a", "b"), ssl_context=lambda: ssl.create_default_context()),
        encode=lambda item: str(item),
    )
    copy = pickle.loads(cloudpickle.dumps(sink))
    assert repr(copy) == repr(sink)
    assert copy._endpoint.auth == sink._endpoint.auth


async def test_pickled_while_open_it_gives_a_closed_description(real_clock: LoopClock) -> None:
    """B-T45"""
    async with HttpSink(URL) as sink:
        copy = pickle.loads(pickle.dumps(sink))
        assert sink.is_open
        assert not copy.is_open
        assert copy._client is None


def test_what_cannot_travel_is_named() -> None:
    sink = HttpSink(HttpAccess(URL, ssl_context=ssl.create_default_context()))
    with pytest.raises(NotPicklableError, match="ssl_context"):
        pickle.dumps(sink)


async def test_one_object_in_two_places_is_opened_once(real_clock: LoopClock) -> None:
    """B-T45: counted opening."""
    made: list[httpx.AsyncClient] = []

    async with serving() as server:

        def client() -> httpx.AsyncClient:
            made.append(httpx.AsyncClient())
            return made[-1]

        sink = HttpSink(HttpAccess(server.url, client=client))
        async with sink:
            async with sink:
                pass
            assert not made[0].is_closed
            assert await send(sink, batch_of("ab")) == {}
        assert made[0].is_closed
        async with sink:
            assert await send(sink, batch_of("ab")) == {}
    assert len(made) == 2


def test_as_many_writes_as_connections() -> None:
    assert HttpSink(URL).capabilities.max_concurrency == 10
    assert HttpSink(URL, pool_size=3).capabilities.max_concurrency == 3
    assert HttpSink(HttpAccess(URL, client=httpx.AsyncClient)).capabilities.max_concurrency is None


async def test_a_client_that_does_not_close_in_time_is_left(real_clock: LoopClock) -> None:
    class Stuck(httpx.AsyncClient):
        async def aclose(self) -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                await super().aclose()

    async with HttpSink(HttpAccess(URL, client=Stuck, close_timeout=0.01)) as sink:
        assert sink.is_open
    assert not sink.is_open
