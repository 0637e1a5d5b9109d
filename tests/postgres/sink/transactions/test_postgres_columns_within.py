"""P-T10, P-T21: columns in a transaction: several binary `COPY` statements, with bad rows among
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.postgres.sink.transactions.postgres_transaction_help import UNIT, place, words

from sluicegate import ArrowBatch, send, transaction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

pa = pytest.importorskip("pyarrow")


def columns(rows: Iterable[tuple[int, str]]) -> ArrowBatch:
    ids, texts = zip(*rows, strict=True)
    return ArrowBatch(
        pa.record_batch({"id": pa.array(ids, pa.int32()), "word": pa.array(texts, pa.string())})
    )


@pytest.mark.parametrize("mode", ["error", "ignore", "update"])
async def test_a_hundred_bad_rows_in_columns_are_refused_alone(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str
) -> None:
    """50 found in the columns and 50 by the server, in two chunks; a third chunk has none, and a
    fourth is written before them.
    """
    async with (
        place(embedded_postgres.dsn, "id int PRIMARY KEY, word text CHECK (word <> 'no')") as db,
        db.sink(on_conflict=mode) as sink,
    ):
        async with transaction(sink, UNIT) as tx:
            assert await send(tx, columns(words(10, 50_000))) == {}
            for start in (0, 10_000):
                rows = words(5000, start)
                bad = range(7, 5000, 100)
                for index in bad:
                    rows[index] = (rows[index][0], ("no", "\0")[index // 100 % 2])
                assert list(await send(tx, columns(rows))) == list(bad)
            assert await send(tx, columns(words(500, 20_000))) == {}
            assert await db.rows() == []
        assert (
            await db.con.fetchval(f"SELECT count(*) FROM {db.table}") == 10 + 2 * (5000 - 50) + 500
        )
