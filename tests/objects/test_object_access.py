"""Stores that cannot be reached, or accept no credentials: an outage, in which no item is given up.

White box: errors of the library are translated without a store.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from obstore.store import LocalStore, S3Store
from tests.http.http_help import Server, reply, serving
from tests.object_servers import SECRET
from tests.objects.object_help import Bucket, Folder, items_in, written
from tests.objects.test_object_refusals import at, error_of

from sluicegate import (
    Batcher,
    ConfigError,
    DeadLetter,
    Limits,
    RefusedError,
    Retry,
    UnavailableError,
    stack,
)
from sluicegate.objects import ObjectSink
from sluicegate.objects.errors import translate
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.object_servers import S3Server

    from sluicegate.batcher import LoopClock

NOBODY = 65534


@contextmanager
def deaf() -> Iterator[str]:
    """The address of a host that answers no request for a connection, like one that is switched
    off: its queue of connections is full.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(address)
        try:
            yield f"http://127.0.0.1:{address[1]}"
        finally:
            for each in waiting:
                each.close()


@contextmanager
def unreachable(folder: Path) -> Iterator[None]:
    """Take away the permission to reach a folder. Permissions do not restrict root, so it acts as
    another user: for the whole process, as its threads share it.
    """
    is_root, mode = os.geteuid() == 0, folder.parent.stat().st_mode
    folder.parent.chmod(0)
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.parent.chmod(mode)


async def test_a_host_that_accepts_no_connection_is_unavailable(real_clock: LoopClock) -> None:
    """Nothing was sent, so no attempt is used up."""
    with deaf() as url:
        error = await error_of(at(url, timeout=1.0))
    assert type(error) is UnavailableError


async def test_a_certificate_that_is_not_trusted_is_refused(
    real_clock: LoopClock, tmp_path: Path
) -> None:
    certificate = trustme.CA().issue_cert("127.0.0.1")
    chain, key = tmp_path / "chain", tmp_path / "key"
    chain.write_bytes(b"".join(each.bytes() for each in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(str(key))
    async with serving(Server(), ssl_certfile=str(chain), ssl_keyfile=str(key)) as server:
        error = await error_of(at(server.url))
    assert type(error) is RefusedError
    assert "trust the certificate" in error.repair
    assert "UnknownIssuer" in str(error)


async def test_a_credential_provider_that_fails_is_refused_until_it_succeeds(
    real_clock: LoopClock, s3: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    """No item is given up for a failed service for credentials; a log does not quote its error."""
    bucket = Bucket(s3, "by-a-provider")
    asked: list[None] = []

    def provide() -> Any:
        asked.append(None)
        if len(asked) < 4:
            raise RuntimeError(f"no answer for {SECRET}, status code: 500")
        return {"access_key_id": "test", "secret_access_key": SECRET, "expires_at": None}

    def store() -> S3Store:
        options: Any = {"endpoint": s3.url, "region": "us-east-1"}
        return S3Store(
            bucket.name,
            prefix="in/here",
            config=options,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
            credential_provider=provide,
        )

    letters = MemorySink[Any]()
    sink = stack(ObjectSink(store), Retry(attempts=2), DeadLetter(letters))
    async with Batcher(sink, limits=Limits(max_items=1)) as batcher:
        receipt = await batcher.submit({"n": 1})
        assert (await receipt).value == "delivered"
    assert items_in(bucket.objects()) == [{"n": 1}]
    assert "correct the credential provider" in caplog.text
    assert SECRET not in caplog.text
    assert letters.items == []


async def test_a_machine_without_credentials_is_refused(
    real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """obstore asks the machine's service for them, here through a proxy that knows of none."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    server = Server()
    server.default = reply(404)
    async with serving(server):
        sink = ObjectSink(
            "s3://bucket/x",
            config={"region": "us-east-1"},
            client_options={"proxy_url": server.url, "allow_http": True},
        )
        error = await error_of(sink)
    assert type(error) is RefusedError
    assert "no credentials" in str(error)
    assert "pass credentials" in error.repair


@pytest.mark.parametrize(
    ("number", "message", "expected"),
    [
        (24, "Too many open files", UnavailableError),
        (116, "Stale file handle", UnavailableError),
        (107, "Transport endpoint is not connected", UnavailableError),
        (40, "Too many levels of symbolic links", RefusedError),
    ],
)
def test_a_file_system_that_is_away_uses_up_no_attempt(
    number: int, message: str, expected: type[UnavailableError]
) -> None:
    text = f'source: Os {{\n    code: {number},\n    kind: X,\n    message: "{message}",\n}}'
    assert type(translate(ValueError(text), "file:///x")) is expected


async def test_a_folder_that_cannot_be_reached_is_refused_until_it_can(
    real_clock: LoopClock, tmp_path: Path
) -> None:
    """As after a change of the permissions of a folder above it. No item is given up."""
    (tmp_path / "above/in").mkdir(parents=True)
    folder = Folder(tmp_path / "above/in")
    async with ObjectSink(folder.url) as sink:
        assert await written(sink, [1]) == {}
        with unreachable(folder.path):
            (error,) = (await written(sink, [2])).values()
        assert type(error) is RefusedError
        assert "the folders above it accessible" in error.repair
        assert await written(sink, [2]) == {}
    assert sorted(items_in(folder.objects())) == [1, 2]


async def test_a_function_that_returns_a_folder_is_a_mistake(
    real_clock: LoopClock, tmp_path: Path
) -> None:
    """Its objects would not be synced to the disk."""
    sink = ObjectSink(lambda: LocalStore(tmp_path))
    with pytest.raises(ConfigError, match="file:///folder"):
        async with sink:
            pass
