"""batcher/B28: dead letters in an object store, viewed, replayed and purged like any others.

White box: replays are stopped between the steps of the store.
"""

from __future__ import annotations

import gzip
import itertools
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.dlq_help import Cli, keep, module, record
from tests.http.http_help import Server, serving
from tests.object_servers import SERVERS
from tests.objects.object_help import Bucket, Folder
from tests.objects.test_objects import forwarding
from tests.sinks.test_down_behind_a_proxy import HOST
from tests.sinks.test_silent_connections import black_hole

from sluicegate import RefusedError
from sluicegate.letters.letter import Selection
from sluicegate.letters.store import Ending, StoreError
from sluicegate.objects import ObjectSink
from sluicegate.objects.letters import ANSWER_WITHIN, ObjectStore

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.object_servers import ObjectServer, S3Server

    from sluicegate.batcher import LoopClock
    from sluicegate.sinks import DeadLetterRecord

_numbers = itertools.count(1)
EVERY = Selection()
LEASE = 0.2


@pytest.fixture(
    params=[
        "folder",
        "s3",
        *(pytest.param(n, marks=pytest.mark.long) for n in SERVERS if n != "s3"),
    ]
)
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Folder | Bucket:
    """A folder, or a bucket whose credentials are in the environment."""
    if request.param == "folder":
        (tmp_path / "letters").mkdir()
        return Folder(tmp_path / "letters")
    return in_bucket(request.getfixturevalue(request.param), monkeypatch)


def in_bucket(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A new bucket, whose credentials are in the environment."""
    for variable, value in server.environment.items():
        monkeypatch.setenv(variable, value)
    return Bucket(server, f"letters-{next(_numbers)}")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return Cli(capsys)


def keep_at(
    place: Folder | Bucket, records: Iterable[DeadLetterRecord[Any]], **options: Any
) -> None:
    """Store one object."""
    keep(ObjectSink(place.url, config=place.config, prefix="letters", **options), records)


@pytest.mark.parametrize(
    "compression", [None, "gzip", pytest.param("zstd", marks=pytest.mark.long)]
)
def test_letters_are_listed_and_shown_in_their_order(
    cli: Cli, place: Folder | Bucket, compression: Any
) -> None:
    """Across objects whose names have no order."""
    for number in (6, 2, 4, 0):
        keep_at(place, [record(number), record(number + 1)], compression=compression)
    assert cli.keys(place.url) == list(range(8))
    (shown,) = cli("show", place.url, "key-0003")[0:1]
    assert shown == "{"
    assert cli.keys(place.url, "--message", "no 5") == [5]


def test_a_partition_whose_name_begins_like_a_hidden_folder_is_listed(
    cli: Cli, place: Folder | Bucket
) -> None:
    keep_at(place, [record(0)], partition_by={"_day": lambda letter: letter.last_at.date()})
    keep_at(place, [record(1)], manifest=True)
    assert cli.keys(place.url) == [0, 1]


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_an_object_joined_from_several_is_read_and_purged_as_a_whole(
    cli: Cli, tmp_path: Path, compression: Any
) -> None:
    """Compressed files can be concatenated, for example by `cat` or by a store's compose
    operation.
    """
    (tmp_path / "letters").mkdir()
    place = Folder(tmp_path / "letters")
    for number in range(3):
        keep_at(place, [record(number)], compression=compression)
    first, *others = sorted(place.path.iterdir())
    with first.open("ab") as whole:
        for other in others:
            whole.write(other.read_bytes())
            other.unlink()
    assert sorted(cli.keys(place.url)) == [0, 1, 2]
    cli("purge", place.url, "--state", "all", "--message", "no 1", "--yes")
    assert sorted(cli.keys(place.url)) == [0, 2]


def test_a_replay_sends_each_once_and_purging_leaves_the_rest(
    cli: Cli, place: Folder | Bucket, tmp_path: Path
) -> None:
    keep_at(place, map(record, range(6)), compression="gzip")
    keep_at(place, map(record, range(6, 9)))
    module(
        tmp_path,
        f"stack_of_objects_{next(_numbers)}",
        "from sluicegate import *\nsent = []\n"
        "async def sink(batch):\n"
        "    sent.extend(item['n'] for item in batch)\n"
        "    bad = {i: PermanentError('still') for i, item in enumerate(batch) if item['n'] == 4}\n"
        "    return WriteResult.failed(batch, bad)\n",
    )
    name = f"stack_of_objects_{next(_numbers) - 1}"
    cli("replay", place.url, "--to", f"{name}:sink", code=1)
    assert "8 delivered, 1 rejected" in cli.err
    assert sys.modules[name].sent == list(range(9))
    assert cli.keys(place.url) == [4]
    (left,) = cli.letters(place.url)
    assert (left["message"], left["attempts"]) == ("still", 4)
    cli("purge", place.url)
    assert "removed 8" in cli.err
    assert cli.keys(place.url, "--state", "all") == [4]
    (content,) = (
        content for path, content in place.objects().items() if path.startswith("letters-")
    )
    assert json.loads(gzip.decompress(content))["key"] == "key-0004"
    cli("purge", place.url, "--state", "all", "--yes")
    assert [path for path in place.objects() if not path.startswith("_replays/")] == []


def test_what_is_no_letter_is_told_and_left(cli: Cli, place: Folder | Bucket) -> None:
    sink = ObjectSink(place.url, config=place.config, encode=str)
    keep(sink, ["no JSON"])  # type: ignore[list-item]
    keep_at(place, [record(1)])
    cli("list", place.url, code=1)
    assert "unreadable: not JSON" in cli.err
    assert "1 dead letters" in cli.err
    assert any(b"no JSON" in content for content in place.objects().values())


def test_nothing_there_and_names_that_are_wrong(cli: Cli, place: Folder | Bucket) -> None:
    cli("list", place.url, code=2)
    assert "there are no objects of dead letters" in cli.err
    cli("list", "s3://key:secret-password@bucket", code=2)
    assert "secret-password" not in cli.err
    cli("init", place.url)
    assert "nothing to do" in cli.err


async def test_two_replays_at_once_are_refused(
    real_clock: LoopClock, place: Folder | Bucket
) -> None:
    await _kept(place, 2)
    async with (
        ObjectStore(place.url, lease=LEASE) as first,
        ObjectStore(place.url, lease=LEASE) as other,
    ):
        await first.hold()
        with pytest.raises(StoreError, match="another replay"):
            await other.hold()
        await first.begin("b1", ["key-0000"])
    async with ObjectStore(place.url, lease=LEASE) as after:
        await after.hold()
        states = [letter.state async for letter in after.letters(EVERY)]
        assert states == ["interrupted", "pending"]


@pytest.mark.long
async def test_an_unanswered_release_is_bounded(
    real_clock: LoopClock, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All connections go silent during a replay; its lease ends by itself."""
    bucket = in_bucket(s3, monkeypatch)
    await _kept(bucket, 1)
    async with black_hole(s3.port) as hole:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{HOST}:{hole.port}")
        async with ObjectStore(bucket.url) as store:
            await store.hold()
            hole.swallows_new = True
            hole.swallow()
            began = real_clock.now()
        assert real_clock.now() - began < 2 * ANSWER_WITHIN + 0.5
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    assert any(path.startswith("_replays/") for path in bucket.objects())


async def test_a_server_that_replaces_what_it_should_only_create_is_refused(
    real_clock: LoopClock, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With such a server, two replays would not detect each other, and one would replace the
    other's notes. The proxy drops `If-None-Match`.
    """
    bucket = in_bucket(s3, monkeypatch)
    await _kept(bucket, 1)
    proxy = Server()
    proxy.default = forwarding(s3, without="if-none-match")
    async with serving(proxy):
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        async with ObjectStore(bucket.url, lease=LEASE) as store:
            with pytest.raises(StoreError, match="If-None-Match"):
                await store.hold()
    assert not any(path.startswith("_replays/") for path in bucket.objects())


async def test_the_turn_of_a_killed_replay_is_taken_over_and_its_notes_are_refused(
    real_clock: LoopClock, place: Folder | Bucket
) -> None:
    """A replay that was wrongly assumed dead sends nothing more."""
    await _kept(place, 3)
    frozen = ObjectStore(place.url, lease=LEASE)
    await frozen.__aenter__()
    await frozen.hold()
    await frozen.begin("b1", ["key-0001"])
    turn = frozen._turn
    assert turn is not None
    assert turn._renewing is not None
    turn._renewing.cancel()
    async with ObjectStore(place.url, lease=LEASE) as store:
        await store.hold()
        keys = [(each.key, each.state) async for each in store.letters(EVERY)]
        assert keys[0] == ("key-0001", "interrupted")
        await store.begin("b2", ["key-0001"])
        with pytest.raises(StoreError, match="another replay or purge has begun"):
            await frozen.begin("b1", ["key-0002"])
        await store.end("b2", [Ending(key="key-0001", outcome="delivered", state="replayed")])
    async with ObjectStore(place.url) as store:
        assert [each.key async for each in store.letters(EVERY) if each.state == "pending"] == [
            "key-0000",
            "key-0002",
        ]


async def test_a_replay_that_wakes_up_after_a_purge_sends_nothing_more(
    real_clock: LoopClock, place: Folder | Bucket
) -> None:
    """As a laptop that was closed meanwhile. The purge has replaced the notes of the other replay,
    so that their numbers are free again.
    """
    await _kept(place, 3)
    async with ObjectStore(place.url, lease=LEASE) as frozen:
        await frozen.hold()
        assert frozen._turn is not None
        assert frozen._turn._renewing is not None
        frozen._turn._renewing.cancel()
        async with ObjectStore(place.url, lease=LEASE) as other:
            await other.hold()
            done = [f"key-000{number}" for number in range(3)]
            await other.begin("b1", done)
            delivered = [Ending(key=key, outcome="delivered", state="replayed") for key in done]
            await other.end("b1", delivered)
        async with ObjectStore(place.url) as other:
            assert await other.purge(Selection(letters=("key-0001",))) == 1
        with pytest.raises(StoreError, match="another replay or purge has begun"):
            await frozen.begin("b2", done)
    async with ObjectStore(place.url) as store:
        states = {each.key: each.state async for each in store.letters(EVERY)}
    assert states == {"key-0000": "replayed", "key-0002": "replayed"}


async def test_objects_that_are_removed_meanwhile_have_no_letters(
    real_clock: LoopClock, place: Folder | Bucket
) -> None:
    """As by the rule of a bucket that expires old objects."""
    for number in range(3):
        await _kept(place, 1, begin=number)
    async with ObjectStore(place.url) as store:
        passing = store.letters(EVERY)
        seen = [(await anext(passing)).key]
        listed = await store._list()
        await store._open.remove(*(each.path for each in listed))
        seen += [each.key async for each in passing]
        assert seen == ["key-0000"]
        for each in listed:
            await store._purge(each.path, {"key-0001"})
    assert not any(path.startswith("part-") for path in place.objects())


async def test_a_bucket_that_is_removed_meanwhile_is_told(
    real_clock: LoopClock, object_store: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = in_bucket(object_store, monkeypatch)
    await _kept(bucket, 1)
    await _kept(bucket, 1, begin=1)
    async with ObjectStore(bucket.url) as store:
        passing = store.letters(EVERY)
        await anext(passing)
        bucket.server.remove(bucket.name)
        with pytest.raises(RefusedError, match="create the"):
            await anext(passing)


async def test_a_note_that_cannot_be_read_stops_replays(
    real_clock: LoopClock, place: Folder | Bucket
) -> None:
    await _kept(place, 1)
    async with ObjectStore(place.url, lease=LEASE) as store:
        await store.hold()
        await store._store_note(b"torn")
    async with ObjectStore(place.url, lease=LEASE) as store:
        with pytest.raises(StoreError, match="not a note of a replay"):
            await store.hold()


async def _kept(place: Folder | Bucket, count: int, begin: int = 0) -> None:
    from sluicegate import RowBatch, send

    async with ObjectSink(place.url, config=place.config) as sink:
        assert await send(sink, RowBatch(map(record, range(begin, begin + count)))) == {}
