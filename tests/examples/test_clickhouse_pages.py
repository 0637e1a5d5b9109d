"""The page on ClickHouse: its program prints the output on the page."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("pyarrow")

from tests.clickhouse.servers import EngineServer, running
from tests.examples.example import load, printed_on

from sluicegate.testing.servers.require import there_or_skip


def test_rows_reach_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    with there_or_skip("clickhouse", running(EngineServer)) as server:
        asyncio.run(load("rows_to_clickhouse").main(server.url))
    assert (
        capsys.readouterr().out.rstrip() == printed_on("how-to/write-to-clickhouse.md")[0].rstrip()
    )
