from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from tests.examples.reader import local_index

from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluicegate.testing import EmbeddedPostgres

_NUMBERS = itertools.count()


@pytest.fixture
def database(embedded_postgres: EmbeddedPostgres) -> Iterator[str]:
    """The DSN of a test's own database, in which programs create their tables and logs."""
    name = f"example_{next(_NUMBERS)}"
    asyncio.run(execute(embedded_postgres.dsn, f"CREATE DATABASE {name}"))
    yield urlunsplit(urlsplit(embedded_postgres.dsn)._replace(path=name))
    asyncio.run(execute(embedded_postgres.dsn, f"DROP DATABASE {name} WITH (FORCE)"))


async def execute(dsn: str, statement: str) -> None:
    con = await asyncpg.connect(dsn)
    await con.execute(statement)
    await con.close()


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an index with the wheel."""
    with there_or_skip("index", local_index(tmp_path_factory.mktemp("build"))) as address:
        yield address
