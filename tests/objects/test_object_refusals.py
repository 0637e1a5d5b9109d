"""The errors of object stores: refused until a repair, transient, or unknown."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import shutil
import socket
from typing import TYPE_CHECKING, Any

import pytest
from tests.http.http_help import Server, hang, reply, serving
from tests.object_servers import SECRET, SERVERS, object_server
from tests.objects.object_help import Bucket, Folder, items_in, losing_answers, written

from sluicegate import (
    RefusedError,
    SinkError,
    ThrottledError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
)
from sluicegate.errors import TimedOutError, TooLargeError
from sluicegate.objects import ObjectSink
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.object_servers import ObjectServer, S3Server

    from sluicegate.batcher import LoopClock

CONFIG = {"region": "us-east-1", "access_key_id": "test", "secret_access_key": SECRET}


def at(url: str, **options: Any) -> ObjectSink:
    return ObjectSink("s3://bucket/x", config={"endpoint": url, **CONFIG}, **options)


async def error_of(sink: ObjectSink, items: Sequence[Any] = (1, 2, 3)) -> SinkError:
    """The single error of a write of three items."""
    async with sink:
        errors = await written(sink, items)
    assert len(errors) == 3
    (error,) = {id(each): each for each in errors.values()}.values()
    assert isinstance(error, SinkError)
    assert SECRET not in f"{error!r} {error.__cause__!r} {error.__context__!r}"
    return error


@pytest.mark.parametrize(
    ("status", "code", "expected", "repair"),
    [
        (404, "NoSuchBucket", RefusedError, "create the bucket"),
        (403, "AccessDenied", RefusedError, "s3:PutObject"),
        (403, "InvalidAccessKeyId", RefusedError, "access key"),
        (403, "SignatureDoesNotMatch", RefusedError, "secret key"),
        (400, "ExpiredToken", RefusedError, "expired"),
        (400, "AuthorizationHeaderMalformed", RefusedError, "region"),
        (301, "PermanentRedirect", RefusedError, "region"),
        (400, "InvalidStorageClass", RefusedError, "settings"),
        (400, "EntityTooLarge", TooLargeError, None),
        (503, "SlowDown", ThrottledError, None),
        (429, "", ThrottledError, None),
        (507, "XMinioStorageFull", RefusedError, "free space"),
        (502, "", UnavailableError, None),
        (500, "InternalError", TransientError, None),
        (409, "OperationAborted", TransientError, None),
        (408, "RequestTimeout", TransientError, None),
    ],
)
async def test_answers(
    real_clock: LoopClock, status: int, code: str, expected: type[SinkError], repair: str | None
) -> None:
    body = f"<Error><Code>{code}</Code><Message>why</Message></Error>" if code else ""
    server = Server()
    server.default = reply(status, body.encode())
    async with serving(server):
        error = await error_of(at(server.url))
    assert type(error) is expected
    assert "s3://bucket/x" in str(error)
    assert str(status) in str(error)
    if repair is not None:
        assert isinstance(error, RefusedError)
        assert repair in error.repair
    assert len(server.requests) == 1, "the stack's Retry decides about another try"


async def test_answers_of_google(real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """No emulator accepts the uploads of obstore's client, so this one is scripted."""
    monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
    server = Server()
    server.default = reply(200, etag='"tag"')
    no_bucket = b"<Error><Code>NoSuchBucket</Code><Message>none\nRequest 7</Message></Error>"
    server.steps += [reply(404, no_bucket), reply(400, {"error": {"message": "bad type"}})]
    async with serving(server):
        key = {"gcs_base_url": server.url, "disable_oauth": True, "client_email": ""}
        account = json.dumps(key | {"private_key": "", "private_key_id": ""})
        sink = ObjectSink("gs://bucket/x", config={"service_account_key": account}, prefix="p")
        told = [str(await error_of(sink)) for _ in range(2)]
        async with sink:
            assert await written(sink, [1]) == {}
    assert "404 NoSuchBucket: none; to repair: create the bucket" in told[0]
    assert "400: bad type; to repair" in told[1]
    assert server.requests[-1].path.startswith("/bucket/x/p-")


async def test_a_container_that_is_being_deleted_is_an_outage(real_clock: LoopClock) -> None:
    server = Server()
    server.default = reply(409, b"<Error><Code>ContainerBeingDeleted</Code></Error>")
    async with serving(server):
        config = {"endpoint": server.url, "account_name": "a", "account_key": "a2V5"}
        error = await error_of(ObjectSink("az://bucket/x", config=config))
    assert type(error) is RefusedError
    assert "create the container" in error.repair


async def test_a_lost_answer_and_silence_are_unknown(real_clock: LoopClock, s3: S3Server) -> None:
    async with losing_answers(s3.port, count=1) as url:
        assert type(await error_of(at(url))) is UnknownOutcomeError
    server = Server()
    server.default = hang()
    async with serving(server):
        error = await error_of(at(server.url, timeout=0.2))
    assert type(error) is TimedOutError


async def test_a_folder_called_redirect_changes_no_class(real_clock: LoopClock) -> None:
    server = Server()
    server.default = hang()
    async with serving(server):
        config = {"endpoint": server.url, **CONFIG}
        error = await error_of(ObjectSink("s3://bucket/redirect", config=config, timeout=0.2))
    assert type(error) is TimedOutError


async def test_where_nothing_listens_is_unavailable(real_clock: LoopClock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    error = await error_of(at(f"http://127.0.0.1:{port}"))
    assert type(error) is UnavailableError
    error = await error_of(at("http://store.invalid"))
    assert type(error) is UnavailableError


async def test_an_endpoint_without_tls_is_not_used_unasked(
    real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    error = await error_of(ObjectSink("s3://bucket", config=CONFIG))
    assert type(error) is RefusedError
    assert "allow_http" in error.repair


async def test_a_real_server_without_the_bucket(
    real_clock: LoopClock, object_store: ObjectServer
) -> None:
    place = object_store.place("no-such-bucket")
    for items in ([1, 2, 3], ["x" * 3_000_000] * 3):  # the second in parts
        error = await error_of(ObjectSink(place, config=object_store.config()), items)
        assert type(error) is RefusedError
        assert error.repair.startswith("create the")
    object_store.bucket("no-such-bucket")
    async with ObjectSink(place, config=object_store.config()) as sink:
        assert await written(sink, [1]) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({}, id="key"),
        pytest.param({"access_key_id": "nobody", "account_name": "nobody"}, id="user"),
    ],
)
@pytest.mark.parametrize("object_store", ["azurite", "minio"], indirect=True)
async def test_a_real_server_with_wrong_credentials(
    real_clock: LoopClock, object_store: ObjectServer, bucket: Bucket, wrong: dict[str, str]
) -> None:
    """moto accepts any."""
    config = object_store.config()
    swapped = {"secret_access_key": "not this one", "account_key": "bm90IHRoaXMgb25l"} | wrong
    config |= {name: value for name, value in swapped.items() if name in config}
    error = await error_of(ObjectSink(bucket.url, config=config))
    assert type(error) is RefusedError
    assert error.repair.startswith("correct the")
    assert bucket.objects() == {}


async def test_a_folder_without_rights_or_room(real_clock: LoopClock, folder: Folder) -> None:
    """The folder becomes a file, and so cannot contain objects."""
    sink = ObjectSink(folder.url, partition_by=["day"])
    (folder.path / "day=1").write_text("in the way")
    async with sink:
        errors = await written(sink, [{"day": 1}, {"day": 2}])
        assert [type(errors[0]), sorted(errors)] == [RefusedError, [0]]
        assert len(folder.objects()) == 2
        (folder.path / "day=1").unlink()
        assert await written(sink, [{"day": 1}]) == {}


async def test_a_folder_that_is_removed_is_not_made_anew(
    real_clock: LoopClock, folder: Folder
) -> None:
    """It may belong to another disk."""
    (folder.path / "in").mkdir()
    inside = Folder(folder.path / "in")
    async with ObjectSink(inside.url) as sink:
        assert await written(sink, [1]) == {}
        shutil.rmtree(inside.path)
        (error,) = (await written(sink, [2])).values()
        assert type(error) is RefusedError
        assert "create the folder" in error.repair
        assert not inside.path.exists()
        inside.path.mkdir()
        assert await written(sink, [3]) == {}
    assert items_in(inside.objects()) == [3]


async def test_a_link_that_leads_to_another_folder_by_now_is_followed(
    real_clock: LoopClock, tmp_path: Path
) -> None:
    """For example a link to the current release: the objects are where readers of the URL find
    them.
    """
    folders, link = [tmp_path / "first", tmp_path / "second"], tmp_path / "current"
    for folder in folders:
        folder.mkdir()
    link.symlink_to(folders[0])
    async with ObjectSink(link.as_uri()) as sink:
        assert await written(sink, [1]) == {}
        link.unlink()
        link.symlink_to(folders[1])
        assert await written(sink, [2]) == {}
    assert [items_in(Folder(folder).objects()) for folder in folders] == [[1], [2]]


async def test_a_broken_link_in_place_of_a_partition(real_clock: LoopClock, folder: Folder) -> None:
    (folder.path / "day=1").symlink_to(folder.path / "none")
    async with ObjectSink(folder.url, partition_by=["day"]) as sink:
        (error,) = (await written(sink, [{"day": 1}])).values()
    assert type(error) is RefusedError
    assert "broken link" in error.repair


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EACCES, RefusedError),  # a folder that is writable but cannot be opened for a sync
        (errno.ENOSPC, RefusedError),
        (errno.EIO, UnknownOutcomeError),
    ],
)
async def test_a_file_that_cannot_be_synced(
    real_clock: LoopClock,
    folder: Folder,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    expected: type[SinkError],
) -> None:
    def fsync(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    async with ObjectSink(folder.url) as sink:
        (error,) = (await written(sink, [1])).values()
    assert type(error) is expected
    assert os.strerror(number) in str(error)


async def test_a_file_that_is_larger_than_this_process_may_write(
    real_clock: LoopClock, folder: Folder
) -> None:
    """So `Split` sends it in two parts. Python ignores the signal that accompanies the error."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with ObjectSink(folder.url) as sink:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        try:
            (error,) = (await written(sink, ["x" * 60_000])).values()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert type(error) is TooLargeError
    assert folder.objects() == {}


@pytest.mark.long
@pytest.mark.parametrize("name", SERVERS)
async def test_a_server_that_is_frozen_or_killed(real_clock: LoopClock, name: str) -> None:
    """While the server is frozen the outcome is unknown; while it is down the store is unavailable.
    Both are temporary.
    """
    with there_or_skip(name, object_server(name)) as server:
        server.bucket("bucket")
        place = server.place("bucket")
        hasty = ObjectSink(place, config=server.config(), timeout=0.5)
        async with hasty, ObjectSink(place, config=server.config()) as sink:
            server.pause()
            errors = await written(hasty, ["frozen"])
            assert type(errors[0]) is TimedOutError
            server.resume()
            assert await written(sink, ["on"]) == {}
            await asyncio.to_thread(server.kill)
            errors = await written(sink, ["dead"])
            assert isinstance(errors[0], (UnavailableError, UnknownOutcomeError))
            await asyncio.to_thread(server.start)
            if name != "minio":
                assert await written(sink, ["lost bucket"]) != {}
                server.bucket("bucket")
            assert await written(sink, ["again"]) == {}
            found = sorted(items_in(server.contents("bucket")))
            assert found == (["again", "on"] if name == "minio" else ["again"])
