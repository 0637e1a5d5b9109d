"""Items of a spool: what the user's functions and destinations get, and items that fail.

White box: the extent of an interrupted batch is written directly.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from spooling.files.store_help import opened, put
from spooling.spools import Rejecting, parked, spooled, stored

from sluicegate import (
    DeadLetter,
    ItemFailed,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    stack,
)
from sluicegate.consumer import Poison
from sluicegate.errors import ItemTooLarge
from sluicegate.flow.spooling.segment import Extent
from sluicegate.flow.spooling.store import Work
from sluicegate.sinks import MemorySink
from sluicegate.testing import BlockingSink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sluicegate.testing import FakeClock

ROWS = [{"id": n, "to": "ab"[n % 2]} for n in range(6)]


@pytest.mark.parametrize("is_dead_lettered", [False, True])
async def test_functions_of_items_and_dead_letters_get_the_items_themselves(
    tmp_path: Path, fake_clock: FakeClock, is_dead_lettered: bool
) -> None:
    seen = defaultdict[str, list[Any]](list)

    def note(name: str, result: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def function(item: Any) -> Any:
            seen[name].append(item)
            return result(item)

        return function

    def failed(items: Sequence[Any], error: BaseException) -> None:
        seen["failed"] += items

    letters = MemorySink[Any]()
    sink: Any = Rejecting(lambda item: item["id"] == 2)
    used = stack(sink, Retry(), DeadLetter(letters)) if is_dead_lettered else sink
    limits = Limits(max_items=4, max_bytes=1000, max_delay=0.01)
    options: dict[str, Any] = {
        "key": note("key", lambda item: item["to"]),
        "tenant": note("tenant", lambda item: item["to"]),
        "size_of": note("size_of", lambda _: 10),
        "on_failure": failed,
        "limits": limits,
    }
    async with spooled(tmp_path / "spool", used, fake_clock, **options) as batcher:
        await batcher.add_many(ROWS)
    assert sorted(item["id"] for item in sink.applied) == [0, 1, 3, 4, 5]
    for items in (sink.applied, seen["key"], seen["tenant"], seen["size_of"], seen["failed"]):
        assert all(item in ROWS for item in items)
    assert {item["id"] for item in seen["tenant"]} == {0, 1, 2, 3, 4, 5}
    if is_dead_lettered:
        assert [letter.item for letter in letters.items] == [ROWS[2]]
    else:
        assert seen["failed"] == [ROWS[2]]
    assert len(parked(tmp_path / "spool")) == (not is_dead_lettered)
    assert stored(tmp_path / "spool") == []


async def test_rejected_items_are_parked_and_their_neighbours_delivered(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    sink = Rejecting(lambda item: item % 10 == 3)
    async with spooled(tmp_path / "spool", sink, fake_clock, on_failure=lambda *_: None) as batcher:
        await batcher.add_many(range(30))
        await fake_clock.advance(60)
    assert sorted(sink.applied) == [n for n in range(30) if n % 10 != 3]
    assert parked(tmp_path / "spool") == [
        (b"%d" % n, "PermanentError", "rejected") for n in (3, 13, 23)
    ]


async def test_poison_of_the_users_own_takes_the_place_of_parking(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    letters = MemorySink[Any]()
    spool = {"poison": Poison("skip", dead_letters=letters)}
    sink = Rejecting(lambda item: item == 1)
    async with spooled(
        tmp_path / "spool", sink, fake_clock, spool, on_failure=lambda *_: None
    ) as batcher:
        await batcher.add_many([0, 1, 2])
    assert sink.applied == [0, 2]
    assert [letter.error_type for letter in letters.items] == ["PermanentError"]
    assert parked(tmp_path / "spool") == []


def deep() -> Any:
    item: list[Any] = []
    for _ in range(100_000):
        item = [item]
    return item


def recursive() -> Any:
    item: list[Any] = []
    item.append(item)
    return item


def fails(item: object) -> bytes:
    if item == "bad":
        raise ValueError("no")
    return str(item).encode()


BAD: dict[str, tuple[Any, dict[str, Any]]] = {
    "object": (object(), {}),
    "a part": ({"a": 1, "b": object()}, {}),
    "deep": (deep(), {}),
    "recursive": (recursive(), {}),
    "encode raises": ("bad", {"encode": fails, "decode": int}),
    "encode returns text": (1, {"encode": lambda item: "1" if item == 1 else b"%d" % item}),
}


@pytest.mark.parametrize(("bad", "spool"), BAD.values(), ids=BAD)
async def test_an_item_that_cannot_be_encoded_is_rejected_alone(
    tmp_path: Path, fake_clock: FakeClock, bad: Any, spool: dict[str, Any]
) -> None:
    folder = tmp_path / "spool"
    async with spooled(
        folder, BlockingSink(), fake_clock, spool, on_failure=lambda *_: None, shutdown_deadline=1
    ) as batcher:
        with pytest.raises(ItemFailed) as failed:
            await batcher.add_many([2, bad, 3])
        assert failed.value.outcome is Outcome.REJECTED
        assert isinstance(failed.value.__cause__, PermanentError)
        assert stored(folder) == [2, 3]


async def test_a_damaged_value_is_parked_and_its_neighbours_delivered(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    folder, sink = tmp_path / "spool", BlockingSink[int]()
    batcher = spooled(folder, sink, fake_clock, shutdown_deadline=1)
    async with batcher:
        await batcher.add_many([10, 11, 12])
    (path,) = folder.glob("*.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE items SET value = ? WHERE offset = 1", (b"1?",))
    sink.release()
    async with batcher:
        pass
    assert sorted(sink.applied) == [10, 12]
    ((value, _, message),) = parked(folder)
    assert value == b"1?"
    assert "item 1 is damaged" in message


async def test_an_item_that_cannot_be_decoded_is_parked(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    sink = MemorySink[int]()
    spool = {"encode": lambda item: str(item).encode(), "decode": int}
    async with spooled(tmp_path / "spool", sink, fake_clock, spool) as batcher:
        await batcher.add_many([1, "x", 2])
    assert sink.items == [1, 2]
    ((value, error_type, _),) = parked(tmp_path / "spool")
    assert (value, error_type) == (b"x", "ValueError")


@pytest.mark.parametrize("function", ["key", "tenant"])
async def test_an_interrupted_batch_with_an_item_without_a_key_stops_nothing(
    tmp_path: Path, fake_clock: FakeClock, function: str
) -> None:
    store = opened(tmp_path)
    put(store, b"bad", b"good")
    store.apply([Work(keeps=Extent("batch", [0, 1]))])
    store.close()

    def of(item: bytes) -> bytes:
        if item == b"bad":
            raise LookupError(item)
        return item

    sink = MemorySink[bytes]()
    options: dict[str, Any] = {function: of}
    async with spooled(tmp_path, sink, fake_clock, **options) as batcher:
        await batcher.deliver(b"next")
    assert sink.items == [b"good", b"next"]
    assert [value for value, _, _ in parked(tmp_path)] == [b"bad"]


async def test_an_item_older_than_max_age_is_parked(tmp_path: Path, fake_clock: FakeClock) -> None:
    folder, sink = tmp_path / "spool", BlockingSink[int]()
    spool = {"max_age": 3600}
    batcher = spooled(folder, sink, fake_clock, spool, shutdown_deadline=1)
    async with batcher:
        await batcher.add(1)
    (path,) = folder.glob("*.db")
    await fake_clock.advance(3000)
    async with batcher:
        await batcher.add(2)
    with closing(sqlite3.connect(path)) as db:  # as after a kill before the first write
        db.execute("DELETE FROM extents")
        db.commit()
    await fake_clock.advance(1000)
    sink.release()
    async with batcher:
        await batcher.add(3)
    assert sink.applied == [2, 3]
    ((value, _, message),) = parked(folder)
    assert value == b"1"
    assert message == "older than max_age=3600 s"


async def test_an_item_that_is_too_large_is_dead_lettered_as_it_is(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    letters, sink = MemorySink[Any](), MemorySink[bytes]()
    batcher = spooled(
        tmp_path,
        stack(sink, DeadLetter(letters)),
        fake_clock,
        limits=Limits(max_items=4, max_bytes=10, max_delay=0.01),
        oversize="dead_letter",
    )
    async with batcher:
        await batcher.add_many([b"1", bytes(20), b"2"])
    assert sink.items == [b"1", b"2"]
    assert [letter.item for letter in letters.items] == [bytes(20)]


async def test_an_item_that_is_too_large_is_refused_by_add(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    sink = MemorySink[str]()
    limits = Limits(max_items=5, max_bytes=10, max_delay=0.01)
    options: dict[str, Any] = {"limits": limits, "size_of": len, "oversize": "reject"}
    async with spooled(tmp_path / "spool", sink, fake_clock, **options) as batcher:
        with pytest.raises(ItemTooLarge):
            await batcher.add("x" * 50)
        await batcher.add_many(["a" * 6, "b" * 6])
    assert sink.items == ["a" * 6, "b" * 6]


@dataclass
class Placed:
    order: int
    amount: float


async def test_an_object_returns_as_its_fields_and_decode_makes_it_an_object_again(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    for decode, items in (
        (None, [{"order": 1, "amount": 2.5}]),
        (lambda fields: Placed(**fields), [Placed(1, 2.5)]),
    ):
        sink = MemorySink[Any]()
        folder = tmp_path / str(len(sink.items) + (decode is None))
        async with spooled(folder, sink, fake_clock, {"decode": decode}) as batcher:
            await batcher.add(Placed(1, 2.5))
        assert sink.items == items
