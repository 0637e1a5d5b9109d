"""Refusals by the server, and operator changes under a source: each is a reason in `explain()` or
an error, and ends with its cause.

White box: waits of the source are shortened or lengthened.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError
from tests.nats.jetstream.local_help import Running, running
from tests.nats.jetstream.streams_help import Stream, new_stream, plain

from sluicegate import ConfigError
from sluicegate.nats.jetstream import channel, moves
from sluicegate.testing import embedded_nats as start_nats
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedNats

pytestmark = pytest.mark.usefixtures("real_clock")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the wait for a denied answer."""
    monkeypatch.setattr(channel, "REQUEST_WITHIN", 0.5)


USERS = """
authorization {
  users = [
    { user: admin, password: secret }
    { user: app, password: hidden, permissions: { publish: { DENIED }, subscribe: ["_INBOX.>", "_SLUICEGATE.>"] } }
  ]
}
"""
ADMIN: dict[str, Any] = {"user": "admin", "password": "secret"}
APP: dict[str, Any] = {"user": "app", "password": "hidden"}


def with_users(server: EmbeddedNats, *denied: str) -> None:
    """A configuration in which `app` may publish everything except these subjects."""
    subjects = ", ".join(f'"{each}"' for each in denied)
    rights = f"deny: [{subjects}]" if denied else 'allow: [">"]'
    server.configure(USERS.replace("DENIED", rights))


async def restarted(server: EmbeddedNats, *denied: str) -> None:
    with_users(server, *denied)
    await asyncio.to_thread(server.restart)


def reload(server: EmbeddedNats) -> None:
    """Let a running server reload its configuration."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGHUP)


async def not_run(here: Running) -> str:
    """The error that ends the run."""
    await asyncio.wait([here.run])
    error = here.run.exception()
    assert isinstance(error, ConfigError)
    return str(error)


async def refused(server: EmbeddedNats, stream: str, **source: Any) -> str:
    """The `ConfigError` of opening or running a source."""
    try:
        async with running(server, stream, **source) as here:
            return await not_run(here)
    except ConfigError as error:
        return str(error)


# -- missing streams and consumers -----------------------------------------------------------------


async def test_a_missing_stream_is_told_and_read_once_it_is_created(
    embedded_nats: EmbeddedNats,
) -> None:
    """consumer/C:N5."""
    async with plain(embedded_nats) as client:
        stream = Stream(embedded_nats, client, None)
        async with running(embedded_nats, stream.name) as here:
            await here.trouble("create the stream")
            await stream.create()
            await here.handled(*await stream.publish("a", ""))
            await here.recovered()


async def test_a_missing_consumer_is_told_and_read_once_it_is_created(
    embedded_nats: EmbeddedNats,
) -> None:
    """consumer/C:N5: with `create=False`."""
    async with new_stream(embedded_nats) as stream:
        sent = await stream.publish("a", "")
        async with running(embedded_nats, stream.name, create=False) as here:
            await here.trouble("create the consumer")
            config = ConsumerConfig(durable_name="d", ack_policy=AckPolicy.EXPLICIT)
            await stream.js.add_consumer(stream.name, config)
            await here.handled(*sent)
            await here.recovered()


async def test_a_server_that_is_down_at_the_start_is_told_and_read_once_it_is_up(
    own: EmbeddedNats,
) -> None:
    """consumer/C:N5."""
    async with new_stream(own) as stream:
        await asyncio.to_thread(own.kill)
        async with running(own, stream.name) as here:
            await here.trouble("no NATS server answers")
            await asyncio.to_thread(own.start)
            await here.handled(*await stream.publish("a", ""))
            await here.recovered()


async def test_a_server_without_jetstream_is_told() -> None:
    """consumer/C:N5."""
    with there_or_skip("nats", start_nats(jetstream=False)) as server:
        async with running(server, "S") as here:
            await here.trouble("enable JetStream")


# -- unsuitable streams and consumers --------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "source", "told"),
    [
        ({"deliver_subject": "somewhere"}, {}, "pushes its messages"),
        ({"ack_policy": AckPolicy.NONE}, {}, "has the ack policy 'none'"),
        ({"ack_policy": AckPolicy.ALL}, {}, "has the ack policy 'all'"),
        ({"filter_subject": "other"}, {"subjects": "mine"}, "reads "),
        ({"headers_only": True}, {}, "delivers headers only"),
    ],
)
async def test_a_consumer_of_another_kind_is_an_error(
    embedded_nats: EmbeddedNats, config: dict[str, Any], source: dict[str, str], told: str
) -> None:
    """consumer/C:N5: a consumer of the same name; the error says what to do."""
    async with new_stream(embedded_nats) as stream:
        for given in (config, source):
            for name in given.keys() & {"filter_subject", "subjects"}:
                given[name] = f"{stream.name}.{given[name]}"
        made: dict[str, Any] = {"durable_name": "d", "ack_policy": AckPolicy.EXPLICIT, **config}
        await stream.js.add_consumer(stream.name, ConsumerConfig(**made))
        error = await refused(embedded_nats, stream.name, **source)
        assert f"the consumer 'd' of the stream '{stream.name}' {told}" in error
        assert "give another name as durable=" in error


@pytest.mark.parametrize(("there", "told"), [(None, "no partitions"), (4, "4 partitions")])
async def test_a_stream_that_is_divided_otherwise_is_an_error(
    embedded_nats: EmbeddedNats, there: int | None, told: str
) -> None:
    """consumer/C:N9."""
    async with new_stream(embedded_nats, there) as stream:
        error = await refused(embedded_nats, stream.name, partitions=8)
        assert f"divides its subjects into {told}, but partitions=8" in error


# -- rights ----------------------------------------------------------------------------------------


async def test_a_wrong_password_is_told_and_not_shown(own: EmbeddedNats) -> None:
    """consumer/C:N5: it is shown neither in the reason nor in a repr."""
    await restarted(own)
    async with new_stream(own, login=ADMIN) as stream:
        login: dict[str, Any] = {"user": "app", "password": "topsecret"}
        async with running(own, stream.name, **login) as here:
            told = await here.trouble("has refused the login")
            assert "topsecret" not in told
            assert "topsecret" not in repr(here.source)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    "denied",
    ["$JS.API.STREAM.INFO.>", "$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.MSG.NEXT.>"],
)
async def test_a_missing_right_is_told_and_over_once_it_is_given(
    own: EmbeddedNats, denied: str
) -> None:
    """consumer/C:N5: the trouble names the subject."""
    await restarted(own, denied)
    async with new_stream(own, login=ADMIN) as stream:
        sent = await stream.publish("a", "")
        async with running(own, stream.name, **APP) as here:
            told = await here.trouble("allow the user to publish to")
            assert denied.removesuffix(">").lower() in told
            await restarted(own)
            await here.handled(*sent)
            await here.recovered()


async def test_acknowledgements_that_are_denied_are_told(own: EmbeddedNats) -> None:
    """consumer/C:N5, consumer/C:C7: nothing is lost; they take effect once they are allowed."""
    await restarted(own, "$JS.ACK.>")
    async with new_stream(own, login=ADMIN) as stream:
        sent = await stream.publish("a", "", "", "")
        async with running(own, stream.name, **APP) as here:
            await here.handled(*sent)
            told = await here.trouble("allow the user to publish to")
            assert "$js.ack." in told
            assert await stream.pending() == len(sent)
            await restarted(own)
            await here.recovered()
            await here.handled(*await stream.publish("a", ""))
            await stream.until_unsettled(0)
            assert len(here.ended) == len(sent) + 1, "not handled again by the same process"


async def test_a_user_who_is_removed_and_allowed_again_goes_on(own: EmbeddedNats) -> None:
    """consumer/C:N5: the server ends the connection; handlers that ran meanwhile are settled if it
    is in time.
    """
    await restarted(own)
    async with new_stream(own, login=ADMIN) as stream:
        async with running(own, stream.name, ack_wait=10.0, **APP) as here:
            held = await stream.publish("a", "hold", "")
            await here.until(lambda: held[0] in [each for each, _ in here.began])
            own.configure(USERS.replace("app", "other").replace("DENIED", 'allow: [">"]'))
            reload(own)
            await here.trouble("has refused the login")
            here.gate.set()
            with_users(own)
            reload(own)
            await here.handled(*held, *await stream.publish("b", ""))
            await here.recovered()
            await stream.until_unsettled(0)
            assert here.ended[: len(held)] == held or held[0] in here.ended


# -- changes under an open source ------------------------------------------------------------------


async def test_a_consumer_that_is_deleted_is_made_again_where_it_stood(
    embedded_nats: EmbeddedNats,
) -> None:
    """consumer/C:C7: nothing is lost; only running messages are handled again."""
    async with new_stream(embedded_nats) as stream:
        async with running(embedded_nats, stream.name) as here:
            done = await stream.publish("a", "", "", "")
            await here.handled(*done)
            await stream.until_unsettled(0)
            held = await stream.publish("a", "hold", "")
            await here.until(lambda: held[0] in [each for each, _ in here.began])
            await stream.js.delete_consumer(stream.name, "d")
            here.gate.set()
            await here.handled(*held, *await stream.publish("b", ""))
            await stream.until_unsettled(0)
            assert [each for each in here.ended if each in done] == done


async def test_a_deleted_consumer_is_not_made_again_before_its_files_are_removed(
    embedded_nats: EmbeddedNats, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/C:C7: otherwise the new one would take over an older state from them."""
    monkeypatch.setattr(moves, "REMOVED_WITHIN", 3_600.0)
    async with new_stream(embedded_nats) as stream:
        async with running(embedded_nats, stream.name) as here:
            await here.handled(*await stream.publish("a", ""))
            await stream.until_unsettled(0)
            await stream.js.delete_consumer(stream.name, "d")
            await here.until(lambda: "was deleted" in caplog.text)
            for _ in range(50):
                with pytest.raises(NotFoundError):
                    await stream.js.consumer_info(stream.name, "d")


@pytest.mark.parametrize("is_running", [False, True])
async def test_a_stream_that_is_deleted_and_created_again_is_read_from_its_beginning(
    embedded_nats: EmbeddedNats, is_running: bool
) -> None:
    """consumer/C:C7: its sequence numbers belong to other messages."""
    async with new_stream(embedded_nats) as stream:
        async with running(embedded_nats, stream.name) as here:
            await here.handled(*await stream.publish("a", *[""] * 20))
            await stream.until_unsettled(0)
            if is_running:
                (held,) = await stream.publish("a", "hold")
                await here.until(lambda: held in [each for each, _ in here.began])
            await stream.js.delete_stream(stream.name)
            here.gate.set()
            here.ended.clear()
            await stream.create()
            sent = await stream.publish("a", *[""] * 10)
            assert sent[0] == 1
            await here.handled(*sent)
            assert [each for each in here.ended if each <= 10] == sent
            await stream.until_unsettled(0)


@pytest.mark.parametrize("keeps", [0, 1])
async def test_a_stream_that_is_purged_goes_on_with_what_is_published_then(
    embedded_nats: EmbeddedNats, keeps: int
) -> None:
    """consumer/C:C7: removed messages delay nothing, even if they are held."""
    async with new_stream(embedded_nats) as stream:
        async with running(embedded_nats, stream.name, prefetch=5) as here:
            held = await stream.publish("a", "hold", *[""] * 20)
            await here.until(lambda: held[0] in [each for each, _ in here.began])
            await stream.js.purge_stream(stream.name, keep=keeps)
            here.gate.set()
            await here.handled(*await stream.publish("a", "", ""))
            await stream.until_unsettled(0)


async def test_a_new_consumer_begins_where_it_is_told(embedded_nats: EmbeddedNats) -> None:
    """O-T23: after the stored messages, with `start="latest"`."""
    async with new_stream(embedded_nats) as stream:
        await stream.publish("a", *[""] * 5)
        async with running(embedded_nats, stream.name, start="latest") as here:
            await stream.until_unsettled(0)
            (told,) = await stream.consumers()
            assert told.config.deliver_policy == DeliverPolicy.NEW
            sent = await stream.publish("a", "", "")
            await here.handled(*sent)
            assert here.ended == sent
