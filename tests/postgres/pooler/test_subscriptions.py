"""Subscriptions through a PgBouncer in transaction mode: leases work, advisory locks are refused.

White box: the slot in the name of a lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.conformance.subscription_locks import SubscriptionLocksConformance
from tests.conformance.subscription_state import SubscriptionStateConformance
from tests.postgres.streams.log_help import Log, installed

from sluicegate import ConfigError
from sluicegate._core.subscriptions import locked_slot
from sluicegate.postgres import PostgresAdvisoryLocks, PostgresSubscriptions

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.postgres.pooler.pgbouncer import PgBouncer

    from sluicegate.batcher import LoopClock
    from sluicegate.consumer import SubscriptionLocks
    from sluicegate.testing import EmbeddedPostgres


@pytest.fixture(scope="session")
def pooled_log(embedded_postgres: EmbeddedPostgres) -> Log:
    return installed(embedded_postgres.dsn)


class Pooled:
    @pytest.fixture(autouse=True)
    def _place(self, pooled_log: Log, bouncer: PgBouncer) -> None:
        self.log, self.dsn = pooled_log, bouncer.dsn

    def state(self) -> PostgresSubscriptions:
        return PostgresSubscriptions(self.dsn, schema=self.log.schema)

    def locks(self) -> PostgresSubscriptions:
        return self.state()

    async def lose(self, locks: SubscriptionLocks, names: Collection[str]) -> None:
        async with self.log.connected() as con:
            await con.executemany(
                f"UPDATE {self.log.sql}.subscription_slot SET lease_until = clock_timestamp() "
                "WHERE name = $1 AND slot = $2",
                [locked_slot(name) for name in names],
            )


class TestPooledState(Pooled, SubscriptionStateConformance):
    """S-T9: positions through a pooler."""


class TestPooledLocks(Pooled, SubscriptionLocksConformance):
    """S-T9: leases through a pooler."""


async def test_advisory_locks_are_refused(bouncer: PgBouncer, real_clock: LoopClock) -> None:
    """P4, S-T8: the session belongs to the pooler, and so would the locks."""
    with pytest.raises(ConfigError, match=r"leads through a pooler.*PostgresSubscriptions"):
        async with PostgresAdvisoryLocks(bouncer.dsn):
            pass
