"""The second program of the guide to sources prints the output that the page shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    from tests.redis_server import RedisServer

pytestmark = pytest.mark.usefixtures("real_clock")


async def test_the_page_shows_what_its_program_prints(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REDIS_URL", own_server.url)
    await load("redis_streams_source").main()
    assert capsys.readouterr().out == printed_on("how-to/write-your-own-source.md")[1]
