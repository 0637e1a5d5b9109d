"""The page on metrics by UDP: its program prints the output on the page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    import pytest


def test_metrics_reach_a_socket(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(load("metrics_by_udp").main())
    assert capsys.readouterr().out in printed_on("how-to/write-to-http.md")
