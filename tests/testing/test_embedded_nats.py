"""The embedded NATS server: starts as any user, stops like a crash, restarts on the same port and
data. White box: the folder of its data.
"""

from __future__ import annotations

import os
import signal
from contextlib import asynccontextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from nats.aio.client import Client
from nats.errors import MaxPayloadError, NoServersError
from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError

from sluicegate.nats import server as module
from sluicegate.testing import EmbeddedNats, EmbeddedUnavailable
from sluicegate.testing import embedded_nats as start_nats
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sluicegate.batcher import LoopClock

USERS = """
authorization {
  users = [
    { user: writer, password: secret, permissions: { publish: "allowed.>", subscribe: "_INBOX.>" } }
  ]
}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedNats]:
    """A server for this module, which tests kill."""
    with there_or_skip("nats", start_nats()) as server:
        yield server


@pytest.fixture
def running(server: EmbeddedNats) -> EmbeddedNats:
    server.start()
    return server


async def ignored(error: Exception) -> None:
    """Print nothing."""


@asynccontextmanager
async def connected(server: EmbeddedNats, **options: Any) -> AsyncIterator[Client]:
    client = Client()
    try:
        await client.connect(server.url, allow_reconnect=False, error_cb=ignored, **options)
        yield client
    finally:
        await client.close()  # also where it could not connect


@pytest.mark.parametrize(
    "way", ["the process alone", "kill", "paused, kill", "stop", "paused, stop"]
)
async def test_what_was_acknowledged_survives_and_the_port_stays(
    running: EmbeddedNats, real_clock: LoopClock, way: str
) -> None:
    before, url = running.pid, running.url
    assert before is not None
    name = f"kept-{before}"
    async with connected(running) as client:
        context = client.jetstream()
        await context.add_stream(name=name, subjects=[name])
        assert (await context.publish(name, b"kept")).seq == 1
        if way.startswith("paused"):
            running.pause()
        if way == "the process alone":
            os.kill(before, signal.SIGKILL)
            psutil.wait_procs([psutil.Process(before)], timeout=20)
        elif way.endswith("stop"):
            running.stop()
        else:
            running.kill()
    assert running.pid is None
    running.restart()
    assert running.url == url
    assert running.pid not in {None, before}
    async with connected(running) as client:
        context = client.jetstream()
        assert (await context.get_msg(name, 1)).data == b"kept"
        assert (await context.publish(name, b"and more")).seq == 2


async def test_users_and_their_permissions_come_from_the_configuration(
    real_clock: LoopClock,
) -> None:
    with there_or_skip("nats", start_nats(USERS)) as guarded:
        with pytest.raises(Exception, match="Authorization Violation"):
            async with connected(guarded):
                pass
        async with connected(guarded, user="writer", password="secret") as client:
            await client.publish("forbidden", b"")
            await client.flush()
            await client.flush()  # the first ping may arrive before the message
            assert "permissions violation" in str(client.last_error)


async def test_a_limit_of_the_payload_comes_from_the_configuration(real_clock: LoopClock) -> None:
    with there_or_skip("nats", start_nats("max_payload: 1000")) as small:
        async with connected(small) as client:
            with pytest.raises(MaxPayloadError):
                await client.publish("large", bytes(1001))


async def test_jetstream_can_be_left_out(real_clock: LoopClock) -> None:
    with there_or_skip("nats", start_nats(jetstream=False)) as core:
        async with connected(core) as client:
            with pytest.raises((NoStreamResponseError, ServiceUnavailableError)):
                await client.jetstream().publish("subject", b"")


async def test_limits_of_jetstream_come_from_the_configuration(real_clock: LoopClock) -> None:
    limits = 'jetstream { max_file_store: 1MB }\nport: 1\nhost: "0.0.0.0"'
    with there_or_skip("nats", start_nats(limits)) as server:
        async with connected(server) as client:
            context = client.jetstream()
            with pytest.raises(APIError, match="insufficient storage"):
                await context.add_stream(name="large", max_bytes=2 << 20)
        assert (server._servers[0].home / "data" / "jetstream").is_dir()


def test_another_folder_for_the_data_is_refused() -> None:
    with pytest.raises(EmbeddedUnavailable, match="store_dir"):
        start_nats('jetstream { store_dir: "/nowhere" }').__enter__()


async def test_a_changed_configuration_is_read_at_the_next_start(
    running: EmbeddedNats, real_clock: LoopClock
) -> None:
    running.configure("max_payload: 1000")
    running.restart()
    try:
        async with connected(running) as client:
            assert client.max_payload == 1000
    finally:
        running.configure("")
        running.restart()


def test_a_setting_that_the_server_refuses_is_told_and_nothing_is_left() -> None:
    with pytest.raises(EmbeddedUnavailable, match="no_such_setting"):
        start_nats("no_such_setting: true").__enter__()


def test_another_server_at_the_port_is_not_taken_for_this_one(
    running: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "free_port", lambda: running.port)
    with pytest.raises(EmbeddedUnavailable, match="address already in use"):
        start_nats().__enter__()
    assert running.pid is not None


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PACKAGE", "no-such-package")
    with pytest.raises(EmbeddedUnavailable, match=r"testing-nats"):
        start_nats().__enter__()


def test_a_package_without_the_program_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "files", lambda package: None)
    with pytest.raises(EmbeddedUnavailable, match="no program"):
        start_nats().__enter__()


async def test_a_lost_server_is_told_by_the_client(
    running: EmbeddedNats, real_clock: LoopClock
) -> None:
    running.kill()
    with pytest.raises((NoServersError, OSError)):
        async with connected(running, max_reconnect_attempts=1, reconnect_time_wait=0):
            pass
