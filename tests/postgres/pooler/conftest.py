"""A PgBouncer for the tests in this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.postgres.pooler.pgbouncer import PgBouncer, running

from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluicegate.testing import EmbeddedPostgres


@pytest.fixture(scope="session")
def bouncer(embedded_postgres: EmbeddedPostgres) -> Iterator[PgBouncer]:
    """Skip if PgBouncer is unavailable, unless `SLUICEGATE_REQUIRE` names it (`pgbouncer`)."""
    with there_or_skip("pgbouncer", running(embedded_postgres)) as found:
        yield found
