"""Transactions in PostgreSQL: commit, rollback, the ledger, and bad rows in between.

White box: fewer versions are kept in the ledger.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from asyncpg import LockNotAvailableError
from tests.postgres.sink.postgres_help import batch_of, proxied
from tests.postgres.sink.transactions.postgres_transaction_help import UNIT, place, words

from sluicegate import ConfigError, Outcome, PermanentError, send, transaction
from sluicegate.errors import NonDeterministicReplay, TransactionLost, UnitRefused
from sluicegate.postgres import PostgresSink
from sluicegate.postgres.sink import ledger
from sluicegate.sinks import Counts

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate.batcher import LoopClock
    from sluicegate.sinks import Unit
    from sluicegate.testing import EmbeddedPostgres


async def test_what_is_written_is_seen_with_the_commit(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """design 3.2: several writes by all statements, and the ledger's row, commit together."""
    async with place(embedded_postgres.dsn) as db, db.sink() as sink:
        async with transaction(sink, UNIT) as tx:
            assert tx.committed is None
            assert await send(tx, batch_of(words(3))) == {}
            assert await send(tx, batch_of(words(500, 10))) == {}
            tx.record(Counts(rows=503, delivered=503))
            assert await db.rows() == []
        assert len(await db.rows()) == 503
        assert tx.committed is not None
        assert await db.entries("version, part, parts, rule, rows, delivered, letters_held") == [
            (7, 1, 4, "id", 503, 503, 0)
        ]


@pytest.mark.parametrize("unit", [None, UNIT])
async def test_left_by_an_exception_it_leaves_nothing(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, unit: Unit | None
) -> None:
    async with place(embedded_postgres.dsn) as db, db.sink(pool_size=1) as sink:
        with pytest.raises(LookupError):
            async with transaction(sink, unit) as tx:
                assert await send(tx, batch_of(words(60))) == {}
                raise LookupError
        assert await db.rows() == []
        async with transaction(sink, unit) as tx:
            assert await send(tx, batch_of(words(2))) == {}
        assert await db.rows() == words(2)


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("error", {}),
        ("ignore", {}),
        ("update", {"staging_threshold": 1}),
        ("update", {}),
    ],
)
async def test_bad_rows_are_refused_alone_in_every_write(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str, options: dict[str, Any]
) -> None:
    """P-T21, P-T10: 100 bad rows of several kinds over several writes, sifted in savepoints;
    exactly those are refused.
    """
    columns = "id int PRIMARY KEY, word text NOT NULL CHECK (word <> 'no')"
    async with (
        place(embedded_postgres.dsn, columns) as db,
        db.sink(on_conflict=mode, **options) as sink,
    ):
        async with transaction(sink, UNIT) as tx:
            for start in (0, 1000, 2000):
                rows: list[tuple[int, Any]] = list(words(200, start))
                bad = range(3, 102, 3)
                for place_, index in enumerate(bad):
                    rows[index] = (rows[index][0], ("no", None, "\0")[place_ % 3])
                errors = await send(tx, batch_of(rows))
                assert list(errors) == list(bad)
                assert {type(error) for error in errors.values()} == {PermanentError}
            assert await send(tx, batch_of(words(10, 5000))) == {}
        assert len(await db.rows()) == 3 * (200 - 33) + 10


async def test_deferred_constraints_blame_their_row(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """As in a single write, which ends with its own transaction."""
    async with (
        place(
            embedded_postgres.dsn, "id int UNIQUE DEFERRABLE INITIALLY DEFERRED, word text"
        ) as db,
        db.sink() as sink,
    ):
        async with transaction(sink, UNIT) as tx:
            assert list(await send(tx, batch_of([(1, "a"), (1, "b"), (2, "c")]))) == [1]
        assert await db.rows() == [(1, "a"), (2, "c")]


async def test_a_second_attempt_waits_and_finds_how_the_first_has_ended(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """P-T7: after a commit it writes nothing, after a rollback it writes."""
    async with (
        place(embedded_postgres.dsn) as db,
        proxied(db.dsn) as (proxy, through),
        db.sink() as sink,
        db.sink(dsn=through) as other,
    ):
        for unit, error in ((UNIT, None), (replace(UNIT, part=2), LookupError())):
            first = transaction(sink, unit)
            tx = await first.__aenter__()
            assert await send(tx, batch_of(words(5, unit.part * 10))) == {}
            tx.record(Counts(rows=5))
            has_come = asyncio.Event()
            proxy.cut_request = tells(has_come, b"B")
            second = asyncio.create_task(attempt(other, 5, unit, start=unit.part * 10))
            await has_come.wait()
            assert not await first.__aexit__(None if error is None else type(error), error, None)
            ended = Outcome.DUPLICATE if error is None else Outcome.DELIVERED
            assert (await second).delivery.verdicts(range(5)) == {ended: 5}
        assert await db.rows() == words(5, 10) + words(5, 20)
        assert await db.entries() == [(7, 1), (7, 2)]


async def test_a_second_attempt_does_not_go_on_beside_the_first(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """P-T7: it waits for as long as the server's lock timeout permits."""
    impatient = {"server_settings": {"lock_timeout": "20"}}
    async with (
        place(embedded_postgres.dsn) as db,
        db.sink() as sink,
        db.sink(connect_options=impatient) as other,
    ):
        await attempt(sink, 1, replace(UNIT, part=0))
        async with transaction(sink, UNIT):
            with pytest.raises(LockNotAvailableError):
                await attempt(other, 5)
            await attempt(other, 5, replace(UNIT, part=2), start=10)


def tells(event: asyncio.Event, wanted: bytes) -> Callable[[bytes, bytes], bool]:
    """A function for `Proxy.cut_request` that cuts nothing but signals such a message."""

    def look(kind: bytes, body: bytes) -> bool:
        if kind == wanted:
            event.set()
        return False

    return look


async def attempt(sink: Any, rows: int, unit: Unit = UNIT, *, start: int = 0) -> Any:
    batch = batch_of(words(rows, start))
    async with transaction(sink, unit) as tx:
        assert await send(tx, batch) == {}
        tx.record(Counts(rows=rows, delivered=rows))
    return batch


async def test_a_zombie_writes_nothing_visible(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """P-T8: it still holds a rolled-back transaction, and continues."""
    async with place(embedded_postgres.dsn) as db, db.sink(pool_size=1) as sink:
        zombie = transaction(sink, UNIT)
        tx = await zombie.__aenter__()
        assert await send(tx, batch_of(words(60))) == {}
        await zombie.__aexit__(LookupError, LookupError(), None)
        await attempt(sink, 2)
        errors = await send(tx, batch_of(words(60, 100)))
        assert {type(error) for error in errors.values()} == {TransactionLost}
        assert await db.rows() == words(2)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"parts": 8}, "in 4 parts"),
        ({"rule": "word"}, "'id'"),
        ({"parts": 8, "part": 1}, "4 parts"),
    ],
)
async def test_other_parts_of_a_version_are_refused(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, changed: dict[str, Any], said: str
) -> None:
    """P-T6"""
    async with place(embedded_postgres.dsn) as db, db.sink() as sink:
        await attempt(sink, 2)
        with pytest.raises(UnitRefused, match=said):
            await attempt(sink, 2, replace(UNIT, **{"part": 2, **changed}))
        assert await db.rows() == words(2)


async def test_other_parts_that_were_under_way_are_refused_at_the_commit(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """P-T6: when it began, the other division of the version was not visible."""
    async with place(embedded_postgres.dsn) as db, db.sink() as sink:
        await attempt(sink, 1, replace(UNIT, version=1))
        with pytest.raises(UnitRefused):
            async with transaction(sink, replace(UNIT, part=2, parts=8)) as tx:
                assert await send(tx, batch_of(words(2, 100))) == {}
                await attempt(sink, 2, start=10)
        assert await db.rows() == [(0, "word 0"), *words(2, 10)]


async def test_other_rows_under_a_committed_name_are_an_error(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with place(embedded_postgres.dsn) as db, db.sink() as sink:
        await attempt(sink, 2)
        with pytest.raises(NonDeterministicReplay, match=r"2 rows.*has 3"):
            await attempt(sink, 3)
        assert await db.rows() == words(2)


async def test_the_ledger_keeps_the_last_versions_and_refuses_older_ones(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions need not be consecutive; another application has its own versions."""
    monkeypatch.setattr(ledger, "KEPT_VERSIONS", 2)
    async with place(embedded_postgres.dsn) as db, db.sink() as sink:
        for number, version in enumerate((1, 1000, 5000, 5001)):
            for part in (0, 1):
                await attempt(
                    sink, 1, replace(UNIT, version=version, part=part), start=number * 10 + part
                )
        await attempt(sink, 1, replace(UNIT, application="other", version=1), start=100)
        assert await db.entries("application, version, part") == [
            ("orders", 5000, 0), ("orders", 5000, 1), ("orders", 5001, 0), ("orders", 5001, 1), ("other", 1, 1),
        ]  # fmt: skip
        with pytest.raises(UnitRefused, match="keeps 2 versions"):
            await attempt(sink, 1, replace(UNIT, version=1000), start=200)
        assert (await attempt(sink, 1, replace(UNIT, version=5000))).delivery.verdicts([0]) == {
            Outcome.DUPLICATE: 1
        }


async def test_the_ledger_is_made_on_demand_by_whoever_comes_first(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """By many concurrent attempts, and with a name that needs quotes."""
    async with (
        place(embedded_postgres.dsn) as db,
        db.sink(pool_size=8) as some,
        db.sink(pool_size=8) as others,
    ):
        await asyncio.gather(
            *(
                attempt((some, others)[part % 2], 1, replace(UNIT, part=part, parts=16), start=part)
                for part in range(16)
            )
        )
        assert len(await db.entries()) == 16
        odd = PostgresSink(
            db.dsn, table=db.table, columns=("id", "word"), ledger=f'{db.table} "odd"'
        )
        async with odd:
            await attempt(odd, 1, start=100)
        async with PostgresSink(
            db.dsn, table=db.table, columns=("id", "word"), ledger=db.table
        ) as same:
            with pytest.raises(ConfigError, match="another shape"):
                await attempt(same, 1)


async def test_writes_side_by_side_take_turns(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        place(embedded_postgres.dsn) as db,
        db.sink(on_conflict="update", staging_threshold=1) as sink,
    ):
        async with transaction(sink, UNIT) as tx:
            answers = await asyncio.gather(
                *(send(tx, batch_of(words(60, start * 100))) for start in range(6))
            )
        assert answers == [{}] * 6
        assert len(await db.rows()) == 360


def test_a_bad_ledger_is_refused() -> None:
    with pytest.raises(ConfigError, match="ledger=0"):
        PostgresSink("postgresql://h/d", table="t", columns=("id",), ledger=cast("str", 0))
