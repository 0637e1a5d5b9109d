"""Tables with identity columns, with rules, and with references to themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("asyncpg")
from tests.postgres.sink.postgres_help import database, whole, written

from sluicegate import ConfigError

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

WAYS: dict[str, dict[str, Any]] = {
    "parameters": {"statement": "values"},
    "COPY": {"statement": "copy"},
}


async def test_an_identity_that_is_always_generated_takes_no_values(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """`COPY` would store them, and `INSERT` would refuse every row."""
    shape = "id int GENERATED ALWAYS AS IDENTITY, word text"
    async with database(embedded_postgres.dsn, shape) as db:
        with pytest.raises(ConfigError, match=r"columns=\['id'\]: the server computes"):
            async with db.sink():
                pass


async def test_a_rule_applies_to_a_batch_of_any_size(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """`COPY` would ignore it."""
    async with database(embedded_postgres.dsn) as db:
        await db.con.execute(
            f"DROP TABLE IF EXISTS audit; CREATE TABLE audit (id int); CREATE RULE also AS ON INSERT "
            f"TO {db.table} DO ALSO INSERT INTO audit VALUES (NEW.id)"
        )
        async with db.sink() as sink:
            assert await written(sink, [(1, "a"), (2, "b")]) == {}
            assert await written(sink, [(number, "c") for number in range(3, 203)]) == {}
        assert await db.con.fetchval("SELECT count(DISTINCT id) FROM audit") == 202


async def test_a_table_with_a_rule_has_no_conflicts_to_handle(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """PostgreSQL would refuse every row."""
    async with database(embedded_postgres.dsn) as db:
        rule = f"CREATE RULE also AS ON UPDATE TO {db.table} DO ALSO NOTIFY changed"
        async with db.sink(on_conflict="update") as sink:
            await db.con.execute(rule)
            error = whole(await written(sink, [(1, "a"), (2, "b")]), 2)
            assert "drop the rule of table" in error.repair
        with pytest.raises(ConfigError, match=r"on_conflict='ignore': .* has a rule"):
            async with db.sink(on_conflict="ignore"):
                pass


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["", "DEFERRABLE INITIALLY DEFERRED"], ids=["at once", "deferred"])
async def test_rows_that_refer_to_later_ones_are_stored_beside_a_bad_row(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str, kind: str
) -> None:
    async with database(embedded_postgres.dsn) as db:
        await db.con.execute(
            f"DROP TABLE {db.table}; CREATE TABLE {db.table} (id int PRIMARY KEY, word int REFERENCES "
            f"{db.table} {kind})"
        )
        rows = [(4, 3), (3, 2), (5, 99), (2, 1), (1, None), (6, 5)]
        async with db.sink(**WAYS[way]) as sink:
            errors = await written(sink, rows)
        assert [*errors] == [2, 5]
        assert await db.rows() == [(1, None), (2, 1), (3, 2), (4, 3)]


async def test_a_row_is_not_stored_after_a_later_one_of_its_key(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """The first row refers to the third and would replace the second."""
    async with database(embedded_postgres.dsn) as db:
        await db.con.execute(
            f"DROP TABLE {db.table}; CREATE TABLE {db.table} (id int PRIMARY KEY, up int REFERENCES "
            f"{db.table}, word text CHECK (word <> 'bad'))"
        )
        rows = [(1, 2, "old"), (1, None, "new"), (2, None, "b"), (3, None, "bad")]
        async with db.sink(("id", "up", "word"), on_conflict="update") as sink:
            assert [*await written(sink, rows)] == [0, 3]
        assert await db.rows() == [(1, None, "new"), (2, None, "b")]
