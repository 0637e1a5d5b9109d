"""The page on Loki: its program sends the lines and prints the output on the page."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("httpx")

from tests.examples.example import DOCS, load, printed_on
from tests.sinks.http_help import reply, serving

from penstock import LoopClock

PAGE = "how-to/send-logs-to-loki.md"


async def test_lines_are_pushed_in_streams(
    real_clock: LoopClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving() as server:
        server.default = reply(204)
        await load("logs_to_loki").main(server.url)
    assert capsys.readouterr().out == printed_on(PAGE)[0]
    (request,) = server.requests
    (shown,) = re.findall(r"```json\n(.*?)```", (DOCS / PAGE).read_text(), re.DOTALL)
    assert request.path == "/loki/api/v1/push"
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.body) == json.loads(shown)


async def test_throttled_lines_are_pushed_again(real_clock: LoopClock) -> None:
    async with serving() as server:
        server.steps.extend([reply(429, Retry_After="0"), reply(204)])
        await load("logs_to_loki").main(server.url)
    assert len(server.requests) == 2
    assert server.requests[0].body == server.requests[1].body
