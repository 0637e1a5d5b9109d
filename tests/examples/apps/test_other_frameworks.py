"""The page on aiohttp, Litestar and Django: each program writes the events it receives, including
those at its end.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("httpx")

import httpx
from tests.examples.example import load

from sluicegate.batcher import LoopClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EVENTS = [{"id": 1, "action": "login"}, {"id": 2, "action": "logout"}]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "events.jsonl"
    monkeypatch.setenv("EVENTS", str(file))
    return file


def written(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_aiohttp(real_clock: LoopClock, path: Path) -> None:
    test_utils: Any = pytest.importorskip("aiohttp.test_utils")
    app = load("apps/aiohttp_app").make_app()
    async with test_utils.TestClient(test_utils.TestServer(app)) as client:
        for event in EVENTS:
            assert (await client.post("/events", json=event)).status == 202
    assert written(path) == EVENTS


@pytest.fixture
def kept_logging() -> Iterator[None]:
    """Undo process-wide settings of an application after its test."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.mark.usefixtures("kept_logging")
async def test_litestar(real_clock: LoopClock, path: Path) -> None:
    pytest.importorskip("litestar")
    app = load("apps/litestar_app").app
    transport = httpx.ASGITransport(app)
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://app") as client,
    ):
        for event in EVENTS:
            assert (await client.post("/events", json=event)).status_code == 202
    assert written(path) == EVENTS


def test_django(path: Path) -> None:
    test: Any = pytest.importorskip("django.test")
    program = load("apps/django_app")
    with program.batcher:
        client = test.Client()
        for event in EVENTS:
            answer = client.post("/events", event, content_type="application/json")
            assert answer.status_code == 202
    assert written(path) == EVENTS
