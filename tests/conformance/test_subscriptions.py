"""The suites of subscriptions: every form of positions and locks passes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.streams.log_help import Log, installed

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
def shared_log(embedded_postgres: EmbeddedPostgres) -> Log:
    """A log whose subscriptions are those of all tests here."""
    return installed(embedded_postgres.dsn)


class OfPostgres:
    """A schema for all tests; a lease is ended in its row."""

    @pytest.fixture(autouse=True)
    def _place(self, shared_log: Log) -> None:
        self.log = shared_log

    def state(self) -> PostgresSubscriptions:
        return PostgresSubscriptions(self.log.dsn, schema=self.log.schema)

    def locks(self) -> PostgresSubscriptions:
        return self.state()

    async def lose(self, locks: SubscriptionLocks, names: Collection[str]) -> None:
        async with self.log.connected() as con:
            await con.executemany(
                f"UPDATE {self.log.sql}.subscription_slot SET lease_until = clock_timestamp() "
                "WHERE name = $1 AND slot = $2",
                [locked_slot(name) for name in names],
            )


class TestPostgresState(OfPostgres, SubscriptionStateConformance):
    """S-T9, S-T6, S-T11: positions in the schema of the log."""


class TestPostgresLocks(OfPostgres, SubscriptionLocksConformance):
    """S-T9, S-T8: leases in the schema of the log."""
