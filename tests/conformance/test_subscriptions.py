"""The conformance suites of subscriptions: every kind of positions and locks passes them.

White box: the slot that a server locks for a name.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from tests.conformance.sqlite_subscriptions import SQLiteSubscriptions
from tests.conformance.subscription_locks import SubscriptionLocksConformance
from tests.conformance.subscription_state import SubscriptionStateConformance
from tests.postgres.streams.log_help import Log, installed
from tests.postgres.subscriptions.frozen import MovedClock

from sluicegate._core.subscriptions import locked_slot
from sluicegate.consumer import MemorySubscriptions
from sluicegate.postgres import PostgresAccess, PostgresAdvisoryLocks, PostgresSubscriptions

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from sluicegate.consumer import SubscriptionLocks
    from sluicegate.testing import EmbeddedPostgres


class OfMemory:
    """One memory per test, whose clock the test moves."""

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


class OfSQLite:
    """One file per test, and a clock that the test moves."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.clock = MovedClock()
        self.path = tmp_path / "subscriptions.sqlite"

    def state(self) -> SQLiteSubscriptions:
        return SQLiteSubscriptions(self.path, clock=self.clock)

    def locks(self) -> SQLiteSubscriptions:
        return self.state()

    async def lose(self, locks: SubscriptionLocks, names: Collection[str]) -> None:
        self.clock.ahead += 31.0


class TestSQLiteState(OfSQLite, SubscriptionStateConformance):
    """S9, S-T9, S-T6, S-T11: positions in a SQLite file."""


class TestSQLiteLocks(OfSQLite, SubscriptionLocksConformance):
    """S11, S-T9, S-T8: leases in a SQLite file."""


@pytest.fixture(scope="session")
def shared_log(embedded_postgres: EmbeddedPostgres) -> Log:
    """A log whose subscriptions are shared by all tests here."""
    return installed(embedded_postgres.dsn)


class OfPostgres:
    """One schema for all tests; a lease is ended in its row."""

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
    """S9, S-T9, S-T6, S-T11: positions in the schema of the log."""


class TestPostgresLocks(OfPostgres, SubscriptionLocksConformance):
    """S-T9, S-T8: leases in the schema of the log."""


class TestPostgresAdvisoryLocks(SubscriptionLocksConformance):
    """S11, S-T9, S-T8: session-level advisory locks, which are lost with the session."""

    @pytest.fixture(autouse=True)
    def _place(self, shared_log: Log) -> None:
        self.log = shared_log
        self.names = itertools.count()

    def locks(self) -> PostgresAdvisoryLocks:
        name = f"locks {next(self.names)}"
        named = {"server_settings": {"application_name": name}}
        return PostgresAdvisoryLocks(PostgresAccess(self.log.dsn, connect_options=named))

    async def lose(self, locks: SubscriptionLocks, names: Collection[str]) -> None:
        """End the first session."""
        async with self.log.connected() as con:
            await con.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE application_name = 'locks 0'"
            )
