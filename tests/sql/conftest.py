"""The databases of these tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.sql.mariadb import IS_MYSQL, MariaDbServer, MySqlServer, mariadb_server
from tests.sql.sql_help import SqlTable

from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DRIVERS = ["sqlite", "pymysql"]


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDbServer]:
    """One server for all tests; without strict mode, like a carelessly operated one. It survives a
    kill, but not a power failure: it does not wait for the disk.

    With `SLUICEGATE_MYSQL=1` it is MySQL's own. Skips unless Debian's packages are available, or
    `SLUICEGATE_REQUIRE` names `mariadb` or `mysql`.
    """
    options = (
        "--sql-mode=",
        "--innodb-flush-log-at-trx-commit=2",
        "--innodb-doublewrite=OFF",
        "--loose-debug-no-sync",
    )
    kind = MySqlServer if IS_MYSQL else MariaDbServer
    with there_or_skip(kind.name.lower(), mariadb_server(*options, kind=kind)) as server:
        SqlTable(server.url(database="mysql")).run("CREATE DATABASE IF NOT EXISTS test")
        yield server


@pytest.fixture(params=DRIVERS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> SqlTable:
    """The table `words`, with each driver."""
    made = table_of(request, request.param, tmp_path)
    made.make()
    return made


def table_of(request: pytest.FixtureRequest, driver: str, folder: Path) -> SqlTable:
    """The table of one driver."""
    if driver.endswith("sqlite"):
        file = folder / "rows.db"
        return SqlTable(f"sqlite:///{file}")
    server: MariaDbServer = request.getfixturevalue("mariadb")
    return SqlTable(server.url(driver), server.url())
