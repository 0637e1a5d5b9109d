"""Materialized views of a table, whose rows are also stored once."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.clickhouse.clickhouse_help import TOKENS, told

from sluicegate import RowBatch, UnknownOutcomeError, send

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.clickhouse.clickhouse_help import Words

pytestmark = pytest.mark.usefixtures("real_clock")

ROWS = [(number, f"word {number}") for number in range(10)]


@contextmanager
def view(words: Words, columns: str) -> Iterator[None]:
    """A view of the table, which stores its rows in the table `seen`."""
    words.server.run(f"CREATE MATERIALIZED VIEW view TO seen AS SELECT {columns} FROM words")
    try:
        yield
    finally:
        words.server.run("DROP TABLE view")


def create_seen(words: Words) -> None:
    words.server.run("DROP TABLE IF EXISTS seen")
    words.server.run(
        f"CREATE TABLE seen (id UInt32, word String) ENGINE = MergeTree ORDER BY id{TOKENS}"
    )


def seen(words: Words) -> list[tuple[str, ...]]:
    return words.server.rows("SELECT id, word FROM seen ORDER BY id")


async def test_rows_that_are_sent_again_are_in_a_view_once(words: Words) -> None:
    """As after a lost response. Another batch with the same rows is stored again."""
    create_seen(words)
    with view(words, "id, word"):
        lineage = RowBatch(ROWS).lineage
        async with words.sink() as sink:
            for _ in range(2):
                assert await send(sink, RowBatch(ROWS, lineage=lineage)) == {}
            assert (await words.looked(), seen(words)) == (told(ROWS), told(ROWS))
            assert await send(sink, RowBatch(ROWS)) == {}
    assert len(await words.looked()) == len(seen(words)) == 20


async def test_a_view_that_failed_at_first_has_the_rows_after_its_repair(words: Words) -> None:
    create_seen(words)
    lineage = RowBatch(ROWS).lineage
    async with words.sink() as sink:
        with view(words, "throwIf(id = 5) + id AS id, word"):
            errors = await send(sink, RowBatch(ROWS, lineage=lineage))
            assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
        with view(words, "id, word"):
            assert await send(sink, RowBatch(ROWS, lineage=lineage)) == {}
    assert (await words.looked(), seen(words)) == (told(ROWS), told(ROWS))
