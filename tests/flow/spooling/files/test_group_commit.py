"""White box: works that wait together share transactions, and fail apart."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spooling.files.store_help import encoded, opened, put, unsettled

from sluicegate import RefusedError, flow
from sluicegate.flow.spooling.store import Work

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.flow.spooling.segment import Segment
    from sluicegate.testing import FakeClock


def limit(segment: Segment, pages: int) -> None:
    """Bound a file, as a full disk does."""
    segment._db.execute(f"PRAGMA max_page_count = {pages}")  # the only connection


async def test_puts_of_one_moment_share_a_transaction(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    """The first one is stored at once; those that arrive meanwhile are the next group."""
    spool = flow.spool(tmp_path)
    spool.sink()
    spool.source()
    async with spool._folder.opened() as running:
        statements: list[str] = []
        running.store.segments[-1]._db.set_trace_callback(statements.append)
        puts = [running.put([encoded(b"%d" % at)]) for at in range(100)]
        assert await asyncio.gather(*puts) == [*range(100)]
        later = [running.put([encoded(b"%d" % at)]) for at in range(100, 200)]
        first = asyncio.ensure_future(running.put([encoded(b"first")]))
        await asyncio.sleep(0)
        assert [await first, *await asyncio.gather(*later)] == [*range(100, 201)]
        assert statements.count("COMMIT") in {2, 3}
        assert len(unsettled(running.store)) == 201


def test_a_failed_transaction_fails_its_own_works_only(tmp_path: Path) -> None:
    """A work on two files has no effect on the earlier one if the later one refuses it. What is
    settled is known although there is no room to store that.
    """
    store = opened(tmp_path)
    assert put(store, *[bytes(1 << 14)] * 5).error is None
    assert put(store, b"").first == 5
    second = store.segments[1]
    large = [encoded(bytes(1 << 15))]

    def works() -> dict[str, Work]:
        return {
            "fails": Work(puts=large),
            "shares the file": Work(settles=[(5, 6)]),
            "has another file": Work(settles=[(0, 1)]),
        }

    def failed(works: dict[str, Work]) -> list[str]:
        store.apply([*works.values()])
        return [name for name, work in works.items() if work.error is not None]

    limit(second, 1)
    assert failed(works()) == ["fails"]
    on_two = {"on two files": Work(puts=large, settles=[(1, 2)]), "beside": Work(settles=[(2, 3)])}
    assert failed(on_two) == ["on two files", "beside"]
    assert [*unsettled(store)] == [1, 2, 3, 4]
    limit(second, 1 << 30)
    assert failed(works()) == []
    assert failed({"on two files": Work(puts=large, settles=[(1, 2)])}) == []
    assert [*unsettled(store)] == [2, 3, 4, 6, 7]
    store.close()
    store = opened(tmp_path)
    assert [*unsettled(store)] == [2, 3, 4, 6, 7]
    store.close()


async def test_a_refused_put_is_told_and_repeated_once(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    """Its neighbours in the queue are stored by the next group."""
    spool = flow.spool(tmp_path)
    spool.sink()
    spool.source()
    async with spool._folder.opened() as running:
        limit(running.store.segments[-1], 1)
        told = await asyncio.gather(
            *(running.put([encoded(bytes(1 << 15))]) for _ in range(3)), return_exceptions=True
        )
        assert [type(error) for error in told] == [RefusedError] * 3
        assert "disk is full" in str(told[0])
        limit(running.store.segments[-1], 1 << 30)
        assert await running.put([encoded(b"again")]) == 0
        assert unsettled(running.store) == {0: b"again"}
