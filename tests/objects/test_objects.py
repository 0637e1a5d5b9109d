"""The objects of `ObjectSink`: complete, with names that a retry reuses.

White box: the type of a receipt's detail, which no package exports.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.http.http_help import Reply, Server, reply, serving
from tests.object_servers import SECRET
from tests.objects.object_help import Bucket, items_in, losing_answers, written

import sluicegate
from sluicegate import (
    Batcher,
    ConfigError,
    Limits,
    PermanentError,
    RefusedError,
    Retry,
    RowBatch,
    send,
    stack,
)
from sluicegate.objects import ObjectSink
from sluicegate.objects.sink import StoredObject

if TYPE_CHECKING:
    from tests.http.http_help import Request, Step
    from tests.object_servers import ObjectServer, S3Server
    from tests.objects.object_help import Folder

    from sluicegate.batcher import LoopClock


def forwarding(to: ObjectServer, *, without: str = "") -> Step:
    """Forward a request, without one of its headers."""

    async def step(request: Request) -> Reply:
        headers = {name: value for name, value in request.headers.items() if name != without}
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.request(
                request.method,
                f"{to.url}{request.path}?{request.query}".rstrip("?"),
                content=request.raw,
                headers=headers,
            )
        told = {
            name: value
            for name, value in answer.headers.items()
            if name not in {"content-length", "transfer-encoding", "connection", "date", "server"}
        }
        return Reply(answer.status_code, answer.content, told)

    return step


async def test_a_batch_is_an_object_and_a_receipt_names_it(
    real_clock: LoopClock, bucket: Bucket
) -> None:
    sink = ObjectSink(bucket.url, config=bucket.config, compression="zstd", prefix="events")
    async with Batcher(sink, limits=Limits(max_items=3)) as batcher:
        receipts = [await batcher.submit({"n": n}) for n in range(3)]
        await asyncio.gather(*receipts)
    ((path, _),) = bucket.objects().items()
    assert path.startswith("events-")
    assert path.endswith(".ndjson.zst")
    place = receipts[0].detail
    assert isinstance(place, StoredObject)
    assert place.path == path
    assert items_in(bucket.objects()) == [{"n": 0}, {"n": 1}, {"n": 2}]


async def test_partitions_are_folders_of_hive(real_clock: LoopClock, folder: Folder) -> None:
    sink = ObjectSink(
        folder.url, partition_by={"day": lambda item: item["at"].date(), "shop": "shop"}
    )
    at = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    shops: list[Any] = ["a/b=c", None, 7, True, 1.5, "", ["x"]]
    async with sink:
        errors = await written(sink, [{"at": at, "shop": shop} for shop in shops])
    assert sorted(errors) == [4, 5, 6]
    assert all(type(error) is PermanentError for error in errors.values())
    found = sorted(path.rpartition("/")[0] for path in folder.objects())
    assert found == [
        "day=2026-01-31/shop=7",
        "day=2026-01-31/shop=__HIVE_DEFAULT_PARTITION__",
        "day=2026-01-31/shop=a%2Fb%3Dc",
        "day=2026-01-31/shop=true",
    ]


async def test_a_part_that_is_written_again_replaces_itself(
    real_clock: LoopClock, bucket: Bucket
) -> None:
    """batcher/B28: the responses for two of three objects are lost; the retry writes only these,
    without the bad item.
    """
    async with losing_answers(bucket.server.port, count=2) as url:
        sink = stack(
            ObjectSink(bucket.url, config=bucket.server.config(url), partition_by=["part"]),
            Retry(attempts=3),
        )
        items = [{"part": n % 3, "n": n} for n in range(9)]
        async with Batcher(sink, limits=Limits(max_items=10)) as batcher:
            receipts = [await batcher.submit(each) for each in items]
            bad = await batcher.submit({"part": 1, "n": float("inf")})
            outcomes = [await each for each in receipts]
            with pytest.raises(sluicegate.ItemFailed):
                await bad
    assert {each.value for each in outcomes} == {"delivered"}
    assert sorted(items_in(bucket.objects()), key=lambda item: item["n"]) == items
    assert len(bucket.objects()) == 3


async def test_equal_batches_are_objects_each(real_clock: LoopClock, folder: Folder) -> None:
    """Neither replaces the other."""
    async with ObjectSink(folder.url) as sink:
        for _ in range(3):
            assert await written(sink, [{"same": True}]) == {}
    assert len(folder.objects()) == 3


async def test_one_id_with_other_items_replaces_nothing(
    real_clock: LoopClock, folder: Folder
) -> None:
    """For example after a topic was recreated and its records have the offsets of earlier ones."""
    lineage = RowBatch([1]).lineage
    async with ObjectSink(folder.url) as sink:
        for item in ("earlier", "later"):
            assert await send(sink, RowBatch([item], lineage=lineage)) == {}
    assert sorted(items_in(folder.objects())) == ["earlier", "later"]


def is_part(request: Request) -> bool:
    """Whether it uploads a part, of S3 or Azure."""
    return "partNumber=" in request.query or "comp=block&" in request.query


async def test_large_objects_go_in_parts_which_a_failure_leaves_none_of(
    real_clock: LoopClock, bucket: Bucket
) -> None:
    """Objects appear whole or not at all; no hidden part remains."""
    server = Server()
    forward, parts = forwarding(bucket.server), itertools.count(1)

    async def failing(request: Request) -> Any:
        step = reply(500) if is_part(request) and next(parts) == 2 else forward
        return await step(request)

    server.default = failing
    items = ["x" * 1_000_000] * 20
    async with (
        serving(server),
        ObjectSink(bucket.url, config=bucket.server.config(server.url)) as sink,
    ):
        errors = await written(sink, items)
        assert len(errors) == 20
        assert {type(each) for each in errors.values()} == {sluicegate.TransientError}
        assert bucket.objects() == {}
        assert not bucket.uploads()
        server.default = forward
        assert await written(sink, items) == {}
    assert items_in(bucket.objects()) == items
    assert not bucket.uploads()


async def test_a_cancelled_upload_in_parts_leaves_none(
    real_clock: LoopClock, bucket: Bucket
) -> None:
    server = Server()
    begun = asyncio.Event()

    async def slow(request: Request) -> Any:
        if is_part(request):
            begun.set()
        return await forwarding(bucket.server)(request)

    server.default = slow
    async with (
        serving(server),
        ObjectSink(bucket.url, config=bucket.server.config(server.url), close_timeout=60) as sink,
    ):
        write = asyncio.ensure_future(written(sink, ["x" * 1_000_000] * 20))
        await begun.wait()
        write.cancel()
        await asyncio.wait([write])
        assert write.cancelled()
    assert not bucket.uploads()


async def test_what_is_on_disk_is_on_the_disk(
    real_clock: LoopClock, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file and all of its parent folders are synced before a write is reported as delivered."""
    synced: list[str] = []
    real = os.fsync

    def fsync(number: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{number}").readlink()))
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    async with ObjectSink(folder.url, partition_by=["a", "b"]) as sink:
        assert await written(sink, [{"a": 1, "b": 2}]) == {}
    (path,) = folder.objects()
    assert synced == [
        str(folder.path / path),
        str(folder.path / "a=1/b=2"),
        str(folder.path / "a=1"),
        str(folder.path),
    ]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"url": "ftp://x"}, "url"),
        ({"url": "s3://key:secret@bucket"}, "url"),
        ({"url": "s3://bucket?x=1"}, "url"),
        ({"url": "file:///"}, "url"),
        ({"url": "s3:///x"}, "url"),
        ({"url": "az://key:secret@account.blob.core.windows.net/x"}, "url"),
        ({"url": "abfss://key:secret@account.dfs.core.windows.net/x"}, "url"),
        ({"url": "abfss://secret@my-server/x"}, "url"),
        ({"url": 7}, "url"),
        ({"url": "file:///tmp", "config": {"region": "x"}}, "config"),
        ({"url": dict, "client_options": {"a": "b"}}, "client_options"),
        ({"compression": "lzma"}, "compression"),
        ({"partition_by": "day"}, "partition_by"),
        ({"partition_by": {}}, "partition_by"),
        ({"partition_by": {"day": 7}}, "partition_by"),
        ({"prefix": "a/b"}, "prefix"),
        ({"concurrency": 0}, "concurrency"),
        ({"timeout": 0}, "timeout"),
        ({"encode": 3}, "encode"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], names: str) -> None:
    given: dict[str, Any] = {"url": "s3://bucket", **arguments}
    with pytest.raises(ConfigError, match=names) as caught:
        ObjectSink(**given)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "place",
    ["az://{0}", "abfs://{0}", "abfss://{0}@devstoreaccount1.dfs.core.windows.net"],
)
async def test_urls_of_azure(real_clock: LoopClock, azurite: ObjectServer, place: str) -> None:
    """The account is in the options, or in the URL as Azure shows it."""
    bucket = Bucket(azurite, f"urls-{len(place)}")
    config = azurite.config()
    if "@" in place:
        del config["account_name"]
    async with ObjectSink(f"{place.format(bucket.name)}/in/here", config=config) as sink:
        assert await written(sink, [1]) == {}
    assert items_in(bucket.objects()) == [1]
    assert all("/" not in path for path in bucket.objects())


async def test_a_folder_that_is_not_there_is_told_at_opening(
    real_clock: LoopClock, tmp_path: Path
) -> None:
    sink = ObjectSink((tmp_path / "none").as_uri())
    with pytest.raises(RefusedError, match="create the folder"):
        async with sink:
            pass


async def test_options_that_do_not_exist_are_told_at_opening_without_secrets(
    real_clock: LoopClock,
) -> None:
    sink = ObjectSink("s3://bucket", config={"no_such_option": SECRET, "region": "x"})
    with pytest.raises(ConfigError, match="no_such_option") as caught:
        async with sink:
            pass
    assert SECRET not in str(caught.value)


def test_it_is_pickled_and_shows_no_secret(s3: S3Server) -> None:
    sink = pickle.loads(pickle.dumps(ObjectSink("s3://bucket/a", config=s3.config())))
    assert repr(sink) == "ObjectSink('s3://bucket/a')"
    assert SECRET not in f"{vars(sink)}"
