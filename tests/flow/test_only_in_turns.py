"""State access from outside the turn, which would belong to another event.

White box: the store of one partition, without a consumer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import ConfigError
from sluicegate.consumer import TopicPartition
from sluicegate.flow.state.changes import ChangeLog
from sluicegate.flow.state.store import JsonState, KeptStore

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("real_clock")


def store_of(partition: int = 0, codec: Any = None) -> KeptStore:
    """An empty store."""
    part, log = TopicPartition("t", partition), ChangeLog(1000, 1 << 20)
    return KeptStore(part, {}, log, codec or JsonState(), lambda key, stored: None)


ACCESSES: list[Callable[[KeptStore], object]] = [
    lambda store: store.get("a"),
    lambda store: store.put("a", 1),
    lambda store: store.delete("a"),
    lambda store: store.range(),
    len,
    lambda store: store.add_forwarded(None),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("access", ACCESSES)
async def test_a_task_that_is_not_of_the_turn(access: Callable[[KeptStore], object]) -> None:
    """consumer/G31: a job, a task that outlived its turn, and another partition's event cannot use
    the store in the turn of an event.
    """
    store, other = store_of(0), store_of(1)
    begun, done = asyncio.Event(), asyncio.Event()

    async def turn() -> None:
        store.begin_turn(1)
        begun.set()
        await done.wait()
        store.end_turn(counts=True)

    async def late() -> None:
        await begun.wait()
        access(store)

    store.begin_turn(0)
    task = asyncio.create_task(late())
    await asyncio.sleep(0)
    store.end_turn(counts=True)
    running = asyncio.create_task(turn())
    with pytest.raises(ConfigError, match="only in the turn of an event of the partition"):
        await task
    other.begin_turn(0)
    with pytest.raises(ConfigError, match="only in the turn of an event of the partition"):
        access(store)
    done.set()
    await running
    assert len(store.log) == 0


async def test_tasks_and_threads_of_the_turn() -> None:
    """They may use the store."""
    store = store_of()

    async def put(key: str) -> None:
        store.put(key, 1)

    store.begin_turn(0)
    await asyncio.gather(put("a"), put("b"))
    await asyncio.to_thread(store.put, "c", 1)
    assert [key for key, _ in store.range()] == ["a", "b", "c"]
    store.end_turn(counts=True)
    assert store.log.take(1).changes == {"a": "1", "b": "1", "c": "1"}


@pytest.mark.parametrize("key", [b"a", 1, None])
async def test_a_key_that_is_not_text(key: Any) -> None:
    """A look-up with the record's own key, which is bytes, would find nothing."""
    store = store_of()
    store.begin_turn(0)
    store.put("a", 1)
    for access in (store.get, store.delete, lambda key: store.put(key, 1)):
        with pytest.raises(ConfigError, match="must be text"):
            access(key)


class Odd:
    """A codec that encodes to the wrong type."""

    def __init__(self, column: str, stored: object) -> None:
        self.column = column
        self.stored = stored

    def encode(self, value: object) -> Any:
        return self.stored

    def decode(self, stored: object) -> object:
        return stored


@pytest.mark.parametrize("codec", [Odd("bytea", "text"), Odd("json", b"{}"), Odd("text", None)])
async def test_a_codec_that_encodes_another_type(codec: Odd) -> None:
    """It fails the turn instead of every commit of the partition."""
    store = store_of(codec=codec)
    store.begin_turn(0)
    with pytest.raises(ConfigError, match=r"codec=.*must encode values as"):
        store.put("a", 1)
