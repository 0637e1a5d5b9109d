"""A connection to NATS: its events, its errors as text, and a bounded end. White box: the
connection below sinks and sources.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from nats import errors as nats
from sluicegate import (
    ConfigError,
    PermanentError,
    RefusedError,
    ThrottledError,
    TransientError,
    UnavailableError,
)
from sluicegate._core.tls import TlsFiles
from sluicegate.nats import connection
from sluicegate.nats.connection import (
    ConnectionEvents,
    Denied,
    close,
    connect,
    denied_by,
    is_login,
    opening_error,
    reason_of,
)
from sluicegate.nats.errors import api_error, no_stream
from sluicegate.nats.options import NatsOptions
from sluicegate.testing import embedded_nats as start_nats
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from pathlib import Path

    from nats.aio.msg import Msg

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedNats

SECRET = "s3cret"
USERS = f"""
authorization {{
  users = [
    {{ user: app, password: {SECRET}, permissions: {{ publish: ["Allowed.>", "$JS.API.>"], subscribe: "_INBOX.>" }} }}
  ]
}}
"""


def options(server: EmbeddedNats | str, **client: Any) -> NatsOptions:
    servers = server if isinstance(server, str) else server.url
    return NatsOptions.of(servers=servers, connect_timeout=2.0, client=client, of="a test")


class Told:
    """The events of a connection, as events and lists."""

    def __init__(self) -> None:
        self.lost, self.back, self.closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.denied: asyncio.Queue[Denied] = asyncio.Queue()
        self.troubles: asyncio.Queue[Exception] = asyncio.Queue()

    @property
    def news(self) -> ConnectionEvents:
        return ConnectionEvents(
            lost=self.lost.set,
            back=self.back.set,
            closed=self.closed.set,
            denied=self.denied.put_nowait,
            error=self.troubles.put_nowait,
        )


async def test_a_killed_server_is_told_and_its_successor_too_and_nothing_is_logged(
    own: EmbeddedNats, real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    client = await connect(options(own, reconnect_time_wait=0.02), told.news)
    try:
        received = asyncio.Event()

        async def on_message(message: object) -> None:
            received.set()

        await client.subscribe("news", cb=on_message)
        await client.flush()
        own.kill()
        await told.lost.wait()
        with pytest.raises(nats.OutboundBufferLimitError):
            await client.publish("news", b"is not buffered")
        own.start()
        await told.back.wait()
        await client.publish("news", b"")
        await received.wait()
        assert not told.closed.is_set()
        assert not told.troubles.empty()
    finally:
        await close(client)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_a_ping_that_is_given_up_does_not_end_the_reader(
    own: EmbeddedNats, real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    client = await connect(options(own))
    try:
        own.pause()
        with pytest.raises(nats.FlushTimeoutError):
            await client.flush(timeout=0.05)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # seconds
        own.resume()
        await client.flush()
        await client.flush()
    finally:
        await close(client)
    assert caplog.records == []


async def test_a_flush_comes_after_what_was_published(real_clock: LoopClock) -> None:
    told = Told()
    with there_or_skip("nats", start_nats(USERS)) as server:
        client = await connect(options(server, user="app", password=SECRET), told.news)
        try:
            for number in range(50):
                await client.publish(f"forbidden.{number}", b"")
                await client.flush()
                assert told.denied.get_nowait().subject == f"forbidden.{number}"
        finally:
            await close(client)


async def test_a_missing_permission_is_told_with_what_it_was_for(real_clock: LoopClock) -> None:
    told = Told()
    with there_or_skip("nats", start_nats(USERS)) as server:
        client = await connect(options(server, user="app", password=SECRET), told.news)
        try:
            await client.publish("Forbidden.Subject", b"")
            assert await told.denied.get() == Denied("publish", "forbidden.subject")
            await client.subscribe("else.>")
            denied = await told.denied.get()
            assert denied == Denied("subscribe", "else.>")
            assert denied.repair == "allow the user to subscribe to 'else.>'"
            assert told.troubles.empty()
        finally:
            await close(client)


async def test_a_user_that_is_removed_is_told_and_may_come_again(real_clock: LoopClock) -> None:
    told = Told()
    with there_or_skip("nats", start_nats(USERS)) as server:
        assert server.pid is not None
        login = options(server, user="app", password=SECRET, reconnect_time_wait=0.02)
        client = await connect(login, told.news)
        try:
            server.configure(USERS.replace("app", "other"))
            os.kill(server.pid, signal.SIGHUP)
            while not is_login(await told.troubles.get()):
                pass
            assert told.lost.is_set()
            server.configure(USERS)
            os.kill(server.pid, signal.SIGHUP)
            await told.back.wait()
        finally:
            await close(client)


async def test_a_message_that_the_server_takes_amiss_closes_the_connection(
    own: EmbeddedNats, real_clock: LoopClock
) -> None:
    """nats-py does not count the headers towards the payload limit."""
    told = Told()
    client = await connect(options(own), told.news)
    try:
        await client.publish("large", bytes(client.max_payload), headers={"one": "more"})
        await told.closed.wait()
        with pytest.raises(nats.ConnectionClosedError):
            await client.publish("large", b"")
    finally:
        await close(client)


async def test_a_refused_login_is_told_without_the_password(real_clock: LoopClock) -> None:
    with there_or_skip("nats", start_nats(USERS)) as server:
        for client in ({}, {"user": "app", "password": f"{SECRET}2"}, {"token": f"{SECRET}2"}):
            with pytest.raises(RefusedError, match="has refused the login; to repair") as raised:
                await connect(options(server, **client))
            assert SECRET not in str(raised.value)
        in_url = server.url.replace("://", f"://app:{SECRET}@")
        await close(await connect(options(in_url)))


async def test_a_server_that_is_down_is_unavailable_and_a_frozen_one_too(
    own: EmbeddedNats, real_clock: LoopClock
) -> None:
    own.pause()
    slow = replace(options(own), connect_timeout=0.1)
    with pytest.raises(UnavailableError, match="no NATS server answers at"):
        await connect(slow)
    own.kill()
    with pytest.raises(UnavailableError, match="no NATS server answers at"):
        await connect(options(own))


async def test_the_second_server_is_used_where_the_first_is_down(
    own: EmbeddedNats, real_clock: LoopClock
) -> None:
    with there_or_skip("nats", start_nats()) as other:
        other.kill()
        both = options(f"{other.url},{own.url}", dont_randomize=True)
        await close(await connect(both))


async def test_credentials_that_cannot_be_read_are_the_callers_mistake(
    own: EmbeddedNats, real_clock: LoopClock, tmp_path: Path
) -> None:
    seed = tmp_path / "seed"
    seed.write_text("no seed")
    with pytest.raises(ConfigError, match="nats-py cannot use its options"):
        await connect(options(own, nkeys_seed=str(seed)))


async def test_a_cancelled_opening_leaves_nothing_open(
    own: EmbeddedNats, real_clock: LoopClock
) -> None:
    own.pause()
    opening = asyncio.ensure_future(connect(options(own)))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(opening), 0.05)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening


async def test_closing_is_bounded_where_the_server_takes_nothing(
    own: EmbeddedNats, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CLOSE_SECONDS", 0.05)
    client = await connect(options(own))
    own.pause()
    for _ in range(40):
        await client.publish("large", bytes(1_000_000))
    await close(client)
    await close(client)


async def test_what_was_not_written_is_not_sent_after_an_outage(
    own: EmbeddedNats, real_clock: LoopClock
) -> None:
    told = Told()
    client = await connect(options(own, reconnect_time_wait=0.02), told.news)
    try:
        received: list[bytes] = []

        async def on_message(message: Msg) -> None:
            received.append(message.data)

        await client.subscribe("late", cb=on_message)
        await client.flush()
        own.pause()
        for _ in range(30):
            await client.publish("large", bytes(client.max_payload))
        await real_clock.sleep(0.05)  # the socket is full, and the next one waits
        await client.publish("late", b"unwritten")
        own.kill()
        await told.lost.wait()
        own.start()
        await told.back.wait()
        await client.publish("late", b"written")
        await client.flush()
        assert received == [b"written"]
    finally:
        await close(client)


async def test_tls_from_files(real_clock: LoopClock, tmp_path: Path) -> None:
    authority = trustme.CA()
    names = {each: str(tmp_path / each) for each in ("ca", "cert", "key")}
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(names["ca"])
    issued.cert_chain_pems[0].write_to_path(names["cert"])
    issued.private_key_pem.write_to_path(names["key"])
    config = f'tls {{ cert_file: "{names["cert"]}", key_file: "{names["key"]}" }}'
    with there_or_skip("nats", start_nats(config)) as server:
        with pytest.raises(RefusedError, match="trust the certificate"):
            await connect(options(server))
        await close(await connect(options(server, tls=TlsFiles(cafile=names["ca"]))))


PLACE = "stream 'ORDERS'"


@pytest.mark.parametrize(
    ("code", "err_code", "description", "kind", "told"),
    [
        (
            400,
            10071,
            "wrong last sequence: 7",
            PermanentError,
            "refuses it: wrong last sequence: 7",
        ),
        (400, 10054, "message size exceeds maximum allowed", PermanentError, "10054"),
        (400, 99999, "new", PermanentError, "99999"),
        (404, 10059, "stream not found", RefusedError, "to repair: create the stream"),
        (404, 10014, "consumer not found", RefusedError, "to repair: create the consumer"),
        (503, 10039, "JetStream not enabled for account", RefusedError, "enable JetStream"),
        (503, 10023, "insufficient resources", RefusedError, "raise the limits of JetStream"),
        (400, 10060, "expected stream does not match", RefusedError, "of the expected stream"),
        (503, 10077, "maximum messages exceeded", ThrottledError, "is full"),
        (503, 10077, "maximum bytes exceeded", ThrottledError, "is full"),
        (503, 10077, "maximum messages per subject exceeded", TransientError, "the subject"),
        (503, 10077, "message too large", PermanentError, "refuses it"),
        (503, 10077, "no space left on device", UnavailableError, "cannot store it"),
        (429, 10167, "too many requests", ThrottledError, "accepts no more"),
        (503, 10008, "JetStream system temporarily unavailable", UnavailableError, "10008"),
        (
            409,
            10158,
            "duplicate message id is in process",
            TransientError,
            "did not carry out the request",
        ),
        (500, 99999, "new", TransientError, "did not carry out the request"),
    ],
)
def test_an_answer_of_jetstream_has_one_meaning(
    code: int, err_code: int, description: str, kind: type[Exception], told: str
) -> None:
    made = api_error(PLACE, code, err_code, description)
    assert type(made) is kind
    assert told in str(made)
    assert str(made).startswith(PLACE)


def test_a_denial_is_read_with_its_quotes() -> None:
    text = 'nats: permissions violation for publish with reply of "a\\"b\\\\c"'
    assert denied_by(nats.Error(text)) == Denied("publish", 'a"b\\c', of_reply=True)
    assert denied_by(ValueError(text)) is None
    assert denied_by(nats.Error("nats: other")) is None


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (nats.Error("nats: 'Authorization Violation'"), "has refused the login"),
        (nats.Error("nats: 'maximum connections exceeded'"), "takes no more connections"),
        (nats.Error('nats: permissions violation for publish to "a"'), "allow the user to publish"),
        (nats.NoRespondersError(), "enable JetStream"),
        (OSError("unreachable"), "no NATS server answers at one:4222"),
        (nats.Error("nats: something new"), "something new"),
    ],
)
def test_trouble_is_told_in_words_for_operators(error: Exception, told: str) -> None:
    assert told in reason_of(error, options("one:4222"))


def test_an_opening_that_the_server_refuses_is_an_outage() -> None:
    full = nats.Error("nats: 'maximum connections exceeded'")
    assert type(opening_error(full, options("one:4222"))) is UnavailableError
    known = UnavailableError("known")
    assert opening_error(known, options("one:4222")) is known


def test_a_subject_without_a_stream_names_both_repairs() -> None:
    told = str(no_stream("a.b"))
    assert "to repair: create a stream with the subject 'a.b', or enable JetStream" in told
