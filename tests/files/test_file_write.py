"""Items become lines of a file, in order; items that cannot be encoded fail alone."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.files.file_help import lines, names, room, written

from sluicegate import (
    Batcher,
    ClosedError,
    ConfigError,
    DeadLetter,
    ErrorClass,
    Limits,
    Outcome,
    PermanentError,
    RefusedError,
    RowBatch,
    Timeout,
    TransientError,
    UnknownOutcomeError,
    stack,
)
from sluicegate.files import FileSink
from sluicegate.testing import ScriptedSink, partial

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import FakeClock


@dataclass
class Event:
    id: UUID
    at: datetime
    cost: Decimal


async def test_every_item_is_a_line_and_later_openings_append(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    sink = FileSink(path)
    for first in (0, 100):
        async with sink:
            assert await written(sink, range(first, first + 50)) == {}
            assert await written(sink, range(first + 50, first + 100)) == {}
            assert lines(path) == list(range(first + 100)), (
                "all of it can be read while the file is open"
            )
    assert names(tmp_path) == ["a.jsonl", "a.jsonl.lock"]


async def test_what_cannot_be_encoded_fails_alone(fake_clock: FakeClock, tmp_path: Path) -> None:
    """batcher/B28, batcher/4a.7."""
    circle: list[Any] = []
    circle.append(circle)
    async with FileSink(tmp_path / "a") as sink:
        errors = await written(
            sink, ["ü\n", 1j, float("nan"), circle, {"k": None}, object(), b"raw"]
        )
        assert {index: type(error) for index, error in errors.items()} == dict.fromkeys(
            [1, 2, 3, 5, 6], PermanentError
        )
        assert all(error.__cause__ is not None for error in errors.values())
        assert lines(tmp_path / "a") == ["ü\n", {"k": None}]
        assert list(await written(sink, [object()])) == [0]
        event = Event(UUID(int=1), datetime(2026, 1, 2, tzinfo=UTC), Decimal("1.50"))
        assert await written(sink, [event, date(2026, 1, 2)]) == {}
        plain = {"id": str(UUID(int=1)), "at": "2026-01-02T00:00:00+00:00", "cost": "1.50"}
        assert lines(tmp_path / "a")[2:] == [plain, "2026-01-02"]


async def test_an_encoder_of_the_users_own_makes_the_lines(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    async with FileSink(tmp_path / "a", encode=lambda item: item * 2) as sink:
        errors = await written(sink, ["a", b"b", 3, "c\n", None])
        assert sorted(errors) == [2, 3, 4]
    assert (tmp_path / "a").read_bytes() == b"aa\nbb\n"


async def test_writes_at_the_same_time_take_turns(fake_clock: FakeClock, tmp_path: Path) -> None:
    async with FileSink(tmp_path / "a") as sink:
        await asyncio.gather(
            *(written(sink, [f"{number} {place}" for place in range(20)]) for number in range(20))
        )
    assert lines(tmp_path / "a") == [
        f"{number} {place}" for number in range(20) for place in range(20)
    ]


async def test_dead_letters_go_to_a_file(fake_clock: FakeClock, tmp_path: Path) -> None:
    """B-T19, batcher/B28: each with its reason, and before its item's outcome is final."""
    inner: ScriptedSink[int] = ScriptedSink(
        [partial({1: PermanentError("odd")}), partial({0: PermanentError("odd too")})]
    )
    sink = stack(inner, DeadLetter(FileSink(tmp_path / "dead.jsonl")))
    async with Batcher(sink, limits=Limits(max_items=2)) as batcher:
        receipts = [await batcher.submit(number) for number in range(4)]
        assert await receipts[1].settled() is Outcome.DEAD_LETTERED
        assert [record["item"] for record in lines(tmp_path / "dead.jsonl")] == [1]
    records = lines(tmp_path / "dead.jsonl")
    assert [(record["item"], record["message"], record["attempts"]) for record in records] == [
        (1, "odd", 1),
        (2, "odd too", 1),
    ]


async def test_a_cut_write_ends_with_its_thread_and_none_starts_beside_it(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    """B-T58: a thread cannot be stopped, so its items are unknown, and the next write waits for its
    end.
    """
    gate, inside = threading.Event(), threading.Event()

    def encode(item: object) -> str:
        if item == "stuck":
            inside.set()
            gate.wait(20)
        return str(item)

    sink = stack(FileSink(tmp_path / "a", encode=encode), Timeout(1.0))
    async with Batcher(sink, clock=fake_clock, limits=Limits(max_items=1, workers=2)) as batcher:
        cut, later = await batcher.submit("stuck"), await batcher.submit("later")
        await asyncio.to_thread(inside.wait, 20)
        await fake_clock.advance(1.5, wait_for_threads=False)
        assert (cut.outcome, later.outcome) == (Outcome.UNKNOWN, Outcome.UNKNOWN)
        assert (tmp_path / "a").read_bytes() == b""
        gate.set()
        assert await (await batcher.submit("last")) is Outcome.DELIVERED
    assert (tmp_path / "a").read_bytes() == b"stuck\nlast\n", (
        "what was cut before its turn has left nothing"
    )


@pytest.mark.parametrize("fsync", ["always", "close", "never"])
async def test_a_batch_is_on_the_disk_when_the_policy_says_so(
    fake_clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: Any
) -> None:
    """Only the calls are checked: the effect would need a power failure."""
    synced: list[int] = []
    really = os.fsync

    def fsync_and_tell(file: int) -> None:
        synced.append(file)
        really(file)

    monkeypatch.setattr(os, "fsync", fsync_and_tell)
    async with FileSink(tmp_path / "a", fsync=fsync) as sink:
        at_opening = len(synced)
        assert await written(sink, ["x"]) == {}
        assert await written(sink, ["y"]) == {}
        assert len(synced) - at_opening == (2 if fsync == "always" else 0)
    assert len(synced) == {"always": 3, "close": 2, "never": 0}[fsync], (
        "one is the folder's, for the file's name"
    )


async def test_a_full_disk_takes_nothing_and_is_no_items_fault(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    """batcher/4c: producers wait. The remains of the failed write are cut off, and the next write
    succeeds.
    """
    async with FileSink(tmp_path / "a") as sink:
        assert await written(sink, ["x" * 50]) == {}
        with room(100):
            errors = await written(sink, ["y" * 30] * 5)
        assert len(errors) == 5
        assert {sink.classify(error) for error in errors.values()} == {ErrorClass.REFUSED}
        assert lines(tmp_path / "a") == ["x" * 50]
        assert await written(sink, ["z"]) == {}
        assert lines(tmp_path / "a") == ["x" * 50, "z"]


async def test_what_cannot_be_taken_back_or_synced_is_unknown(
    fake_clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    async with FileSink(tmp_path / "a") as sink:
        with monkeypatch.context() as broken:
            broken.setattr(os, "ftruncate", fails)
            with room(50):
                (error, *_) = (await written(sink, ["y" * 30] * 5)).values()
            assert isinstance(error, UnknownOutcomeError)
        assert await written(sink, ["a"]) == {}
        assert lines(tmp_path / "a") == ["y" * 30, "a"], (
            "the line that was whole may stay, and the torn one is out of the way"
        )
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", fails)
            (error,) = (await written(sink, ["b"])).values()
            assert isinstance(error, UnknownOutcomeError)
        assert await written(sink, ["c"]) == {}
        assert lines(tmp_path / "a") == ["y" * 30, "a", "b", "c"]


@pytest.mark.parametrize("how", ["moved", "removed"])
async def test_a_file_that_was_taken_away_is_begun_anew(
    fake_clock: FakeClock, tmp_path: Path, how: str
) -> None:
    async with FileSink(tmp_path / "a") as sink:
        assert await written(sink, ["x"]) == {}
        if how == "moved":
            (tmp_path / "a").rename(tmp_path / "b")
        else:
            (tmp_path / "a").unlink()
        assert await written(sink, ["y"]) == {}
        assert lines(tmp_path / "a") == ["y"]
        assert how == "removed" or lines(tmp_path / "b") == ["x"]


async def test_a_folder_that_was_taken_away_refuses_everything(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    async with FileSink(folder / "a") as sink:
        folder.rename(tmp_path / "away")
        (error,) = (await written(sink, ["x"])).values()
        assert isinstance(error, RefusedError)
        assert error.repair == f"create the folder {folder}"
        (tmp_path / "away").rename(folder)
        assert await written(sink, ["x"]) == {}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(28, "No space left on device"), ErrorClass.REFUSED),
        (OSError(122, "Disk quota exceeded"), ErrorClass.REFUSED),
        (OSError(27, "File too large"), ErrorClass.REFUSED),
        (PermissionError(13, "Permission denied"), ErrorClass.REFUSED),
        (OSError(30, "Read-only file system"), ErrorClass.REFUSED),
        (FileNotFoundError(2, "No such file or directory"), ErrorClass.REFUSED),
        (OSError(24, "Too many open files"), ErrorClass.UNAVAILABLE),
        (OSError(12, "Cannot allocate memory"), ErrorClass.UNAVAILABLE),
        (OSError(5, "Input/output error"), ErrorClass.TRANSIENT),
        (TransientError("ours"), ErrorClass.TRANSIENT),
        (ValueError("nobody's"), None),
    ],
)
def test_an_error_is_classed_by_its_number(
    error: BaseException, expected: ErrorClass | None
) -> None:
    """batcher/B25."""
    classify = FileSink("unopened").classify
    assert classify(error) is expected
    if expected is not None:
        around = RuntimeError("around")
        around.__cause__ = error
        assert classify(around) is expected


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"path": ""}, "path"),
        ({"path": 7}, "path"),
        ({"path": b"a"}, "path"),
        ({"path": "folder/"}, "path"),
        ({"path": "a\0b"}, "path"),
        ({"encode": "json"}, "encode"),
        ({"fsync": True}, "fsync"),
    ],
)
def test_a_bad_argument_is_named_at_construction(arguments: dict[str, Any], name: str) -> None:
    given: dict[str, Any] = {"path": "a"}
    with pytest.raises(ConfigError, match=f"^{name}="):
        FileSink(**(given | arguments))


async def test_what_cannot_be_opened_is_told_by_its_path(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, told, repair in (
        ("none/a", "No such file", "create the folder"),
        ("folder", "Is a directory", "move the folder"),
    ):
        with pytest.raises(
            RefusedError,
            match=f"{name} cannot be written: {told}.*; to repair: {repair} {tmp_path}",
        ):
            async with FileSink(tmp_path / name):
                pass
    sink = FileSink(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"^path='.*pipe': .*not a plain file"):
        async with sink:
            pass
    assert not sink.is_open


async def test_a_description_is_closed_and_travels(fake_clock: FakeClock, tmp_path: Path) -> None:
    """B-T45."""
    sink = FileSink(tmp_path / "a")
    assert repr(sink) == f"FileSink('{tmp_path}/a')"
    with pytest.raises(ClosedError):
        await sink.write(RowBatch([1]))
    async with sink:
        again = pickle.loads(pickle.dumps(sink))
        assert not again.is_open
        assert again.path == sink.path
    async with again:
        assert await written(again, [1]) == {}


async def test_each_process_may_have_a_file_of_its_own(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    """As Spark workers need it: they share a description but must not share a file."""
    sink = FileSink(tmp_path / "dead.jsonl", per_process=True)
    async with sink:
        await written(sink, range(3))
    assert sink.path.name == f"dead-{socket.gethostname()}-{os.getpid()}.jsonl"
    assert lines(sink.path) == [0, 1, 2]
    assert names(tmp_path) == [sink.path.name, f"{sink.path.name}.lock"]
