"""The page on state shows the output of its program."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    import pytest

    from sluicegate.testing import EmbeddedPostgres


def test_totals_are_kept(
    embedded_postgres: EmbeddedPostgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """consumer/G28: a second run continues with the totals of the first one."""

    async def run() -> None:
        con = await asyncpg.connect(embedded_postgres.dsn)
        await con.execute("CREATE DATABASE totals")
        try:
            await load("keep_state").main(embedded_postgres.dsn.rpartition("/")[0] + "/totals")
        finally:
            await con.execute("DROP DATABASE totals WITH (FORCE)")
            await con.close()

    asyncio.run(run())
    assert capsys.readouterr().out == printed_on("how-to/keep-state.md")[0]
