"""The pages on events that are completed later show the output of their programs, and it is
correct.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.examples.example import load, printed_on

from sluicegate.consumer import MemoryLog, TopicPartition
from sluicegate.consumer.jobs import MemoryState

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import FakeClock

USERS = TopicPartition("users", 0)


def test_the_migration_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """G-T23, consumer/G10: each account is seeded once, each event booked once, and both sides
    agree; also after a start without state.
    """
    asyncio.run(load("dual_write").main())
    assert capsys.readouterr().out == printed_on("how-to/complete-events-later.md")[0]


def test_each_account_is_seeded_once_and_both_have_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """G-T23, consumer/G10: many events of an account are handled before its first one is
    finalised.
    """
    program, log, state = load("dual_write"), MemoryLog(), MemoryState(keep=True)
    path = tmp_path / "old.db"
    program.make_old_database(path)
    for number in range(60):
        log.produce("movements", number, key=("ann", "bob", "cid")[number % 3])
    asyncio.run(program.Migration(path).run(log, state))
    (store,) = state.stores.values()
    expected = {"ann": 100 + 570, "bob": 20 + 590, "cid": 5 + 610}
    assert {key: account.balance for key, account in store.range()} == expected
    assert program.balances(path) == expected
    assert capsys.readouterr().out.count("from the old database") == 3


async def test_batches_print_what_the_page_shows(
    fake_clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """G-T23, G-T10: an order in two batches has one callback, with the error of one line."""
    await load("batch_items").main()
    assert capsys.readouterr().out == printed_on("how-to/complete-events-later.md")[1]


async def test_parked_rows_print_what_the_page_shows(
    fake_clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """G-T23, G-T13, G-T11: rows are parked, retried when due, parked again under their own keys, a
    few per tick, and written after a restart.
    """
    await load("park_and_retry").main()
    assert capsys.readouterr().out == printed_on("how-to/complete-events-later.md")[2]


@pytest.mark.parametrize("seconds", [0.5, 5.5, 6.5, 7.5])
async def test_a_parked_row_outlives_a_retry_that_is_cut(
    fake_clock: FakeClock, seconds: float
) -> None:
    """G-T13: whenever the consumer stops, the next one writes each row."""
    program, log, state = load("park_and_retry"), MemoryLog(), MemoryState(keep=True)
    table = program.Table()
    write = table.write

    async def hang_in_the_first_retry(items: list[Any]) -> None:
        if table.refused and items[0].value.parked_as is not None:
            await asyncio.Event().wait()
        await write(items)

    table.write = hang_in_the_first_retry
    for key in ("ann", "bob"):
        log.produce("users", key, key=key)
    table.refused = {"ann", "bob"}
    await program.run(log, table, state, seconds)
    assert {key for _, (key, *_) in state.stores[USERS].range("failed/")} == table.refused
    table.refused = set()
    await program.run(log, table, state, 20.0)
    assert table.rows.keys() == {"ann", "bob"}
    assert len(state.stores[USERS]) == 0


async def test_parked_rows_can_be_stored_as_json(fake_clock: FakeClock) -> None:
    """G-T13: as in a `PostgresState`, which the page recommends."""
    program, log, state = load("park_and_retry"), MemoryLog(), MemoryState(keep=True)
    table = program.Table()
    log.produce("users", "a@example.com", key="ann")
    table.refused = {"ann"}
    await program.run(log, table, state, 1.0)
    for key, value in state.stores[USERS].range("failed/"):
        state.stores[USERS].put(key, json.loads(json.dumps(value)))
    table.refused = set()
    await program.run(log, table, state, 20.0)
    assert table.rows["ann"].value == "a@example.com"
    assert len(state.stores[USERS]) == 0


async def test_a_retry_does_not_undo_a_later_version(fake_clock: FakeClock) -> None:
    """G-T13: a row is written while an older one of its key is parked."""
    program, log, state = load("park_and_retry"), MemoryLog(), MemoryState(keep=True)
    table = program.Table()
    log.produce("users", "old", key="ann")
    table.refused = {"ann"}
    await program.run(log, table, state, 1.0)
    log.produce("users", "new", key="ann")
    table.refused = set()
    await program.run(log, table, state, 20.0)
    assert table.rows["ann"].value == "new"
    assert len(state.stores[USERS]) == 0
