"""The page on Redis: its program runs on a server and prints the output on the page."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("redis")

from tests.examples.example import load, printed_on
from tests.redis_server import redis_server

from sluicegate.testing.servers.require import there_or_skip


def test_readings_reach_a_stream(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with there_or_skip("redis", redis_server()) as server:
        monkeypatch.setenv("REDIS_URL", server.url)
        asyncio.run(load("readings_to_redis").main())
    assert capsys.readouterr().out == printed_on("how-to/write-to-redis.md")[0]
