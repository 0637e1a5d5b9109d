"""The suites of subscriptions: every form of positions and locks passes them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import asyncpg
import pytest

import penstock
from penstock import LoopClock
from penstock.sources.subscriptions import (
    MemorySubscriptions,
    PostgresSubscriptions,
    locked_slot,
)
from penstock.testing.conformance import (
    SubscriptionLocksConformance,
    SubscriptionStateConformance,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.sources.subscriptions import SubscriptionLocks
    from penstock.testing import EmbeddedPostgres

_SCHEMA = "conformance"


class MovedClock(LoopClock):
    """The loop's clock, moved by a test."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


class OfMemory:
    """A memory per test, whose clock the test moves."""

    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        self.clock = MovedClock()
        self.first = MemorySubscriptions(clock=self.clock)

    def state(self) -> MemorySubscriptions:
        return MemorySubscriptions(shared_with=self.first, clock=self.clock)

    def locks(self) -> MemorySubscriptions:
        return self.state()

    async def lose(self, locks: SubscriptionLocks, names: Collection[str]) -> None:
        self.clock.ahead += 31.0


class TestMemoryState(OfMemory, SubscriptionStateConformance):
    """S-T9, S-T6, S-T11: positions in memory."""


class TestMemoryLocks(OfMemory, SubscriptionLocksConformance):
    """S-T9, S-T8: locks in memory."""


@pytest.fixture(scope="session")
def schema_dsn(embedded_postgres: EmbeddedPostgres) -> str:
    """A server with the schema of a log."""
    asyncio.run(_install(embedded_postgres.dsn))
    return embedded_postgres.dsn


async def _install(dsn: str) -> None:
    folder = Path(penstock.__file__).parent / "_clients/postgres/schema/migrations"
    text = (folder / "0001_streams.sql").read_text(encoding="utf-8")
    con = await asyncpg.connect(dsn)
    await con.execute(f"CREATE SCHEMA {_SCHEMA}")
    await con.execute(text.replace("{schema}", _SCHEMA).replace("{class}", "77"))
    await con.close()


class OfPostgres:
    """A schema for all tests; a lease is ended in its row."""

    @pytest.fixture(autouse=True)
    def _place(self, schema_dsn: str) -> None:
        self.dsn = schema_dsn

    def state(self) -> PostgresSubscriptions:
        return PostgresSubscriptions(self.dsn, schema=_SCHEMA)

    def locks(self) -> PostgresSubscriptions:
        return self.state()

    async def lose(self, locks: SubscriptionLocks, names: Collection[str]) -> None:
        con = cast("Any", await asyncpg.connect(self.dsn))
        await con.executemany(
            f"UPDATE {_SCHEMA}.subscription_slot SET lease_until = clock_timestamp() "
            "WHERE name = $1 AND slot = $2",
            [locked_slot(name) for name in names],
        )
        await con.close()


class TestPostgresState(OfPostgres, SubscriptionStateConformance):
    """S-T9, S-T6, S-T11: positions in the schema of the log."""


class TestPostgresLocks(OfPostgres, SubscriptionLocksConformance):
    """S-T9, S-T8: leases in the schema of the log."""
