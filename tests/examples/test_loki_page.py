"""The page on Loki: its program sends the lines and prints the output on the page."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("httpx")

from tests.examples.example import DOCS, load, printed_on
from tests.http.http_help import Reply, Request, Step, reply, serving

from sluicegate import ErrorClass, PermanentError, TransientError
from sluicegate.batcher import LoopClock

PAGE = "how-to/write-to-http.md"


async def test_lines_are_pushed_in_streams(
    real_clock: LoopClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving() as server:
        server.default = reply(204)
        await load("logs_to_loki").main(server.url)
    assert capsys.readouterr().out in printed_on(PAGE)
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


async def test_lines_wait_for_the_ingesters_and_bad_ones_fail_alone(
    real_clock: LoopClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """A 500 is an outage, which uses up no attempt; a 400 is the fault of one line."""
    example = load("logs_to_loki")
    async with serving() as server:
        server.default = refusing(b"1767225600000000002")
        server.steps.append(reply(500, b"at least 1 live replicas required"))
        await example.main(server.url)
    assert example.class_of(TransientError("500")) is ErrorClass.UNAVAILABLE
    assert example.class_of(PermanentError("400")) is None
    assert capsys.readouterr().out == "3 accepted: 2 delivered, 1 rejected\n"


def refusing(text: bytes) -> Step:
    """400 for a request that contains a text."""

    async def step(request: Request) -> Reply:
        return Reply(400 if text in request.body else 204)

    return step
