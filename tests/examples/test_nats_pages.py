"""The pages on NATS: their programs run on a server and print the output on the pages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.examples.example import load, printed_on

from sluicegate.testing import embedded_nats as start_nats
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    import pytest


def test_orders_reach_a_stream(capsys: pytest.CaptureFixture[str]) -> None:
    with there_or_skip("nats", start_nats()) as server:
        asyncio.run(load("orders_to_nats").main(server.url))
    assert capsys.readouterr().out == printed_on("how-to/write-to-nats.md")[0]
