"""The Flask sample under gunicorn: worker processes that are forked, and threads that share a
batcher.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from tests.examples.apps.service import (
    TABLE,
    UNHURRIED,
    Crowd,
    Service,
    assert_nothing_is_lost,
    crowd_of,
    query,
    service,
)
from tests.examples.example import load

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedPostgres

GUNICORN = (sys.executable, "-m", "gunicorn", "--config", "gunicorn_conf.py", "--no-control-socket")
OPTIONS = ("--bind", "127.0.0.1:0", "flask_app:app")
BODIES = {
    '{"id": 1, "action": "good"}': 201,
    '{"id": 2, "action": "bad"}': 502,
    '{"id": 3, "action": "\\u0000"}': 422,
    '{"id": 4, "action": "\\ud800"}': 422,
    '{"id": 9223372036854775808, "action": ""}': 422,
    '{"id": "5", "action": ""}': 422,
    "[]": 422,
    "{": 400,
}


def test_what_it_answers(
    embedded_postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """201 once it is stored; 422 if the table could not accept it; 503 once it is closed."""
    dsn = embedded_postgres.dsn
    asyncio.run(query(dsn, "DROP TABLE IF EXISTS events", TABLE))
    monkeypatch.setenv("DATABASE_URL", dsn)
    module = load("apps/flask_app")
    monkeypatch.setattr(module, "STORED_WITHIN", 60.0)
    client = module.app.test_client()
    with module.batcher:
        assert client.get("/ready").status_code in {200, 503}  # open, or still opening
        for body, status in BODIES.items():
            answer = client.post("/events/stored", data=body, content_type="application/json")
            assert (body, answer.status_code) == (body, status)
        assert client.get("/ready").text == "open\n"
    answer = client.post("/events", json={"id": 1, "action": "late"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert asyncio.run(query(dsn, "SELECT id FROM events")) == [1]


async def stopped_under_load(dsn: str, *options: str) -> tuple[Crowd, Service, int]:
    await query(dsn, "DROP TABLE IF EXISTS events", TABLE)
    command = (*GUNICORN, *options, *OPTIONS)
    async with service(*command, env={"DATABASE_URL": dsn, **UNHURRIED}) as running:
        url = await running.url()
        for _ in range(2):
            await running.line("batcher started in worker")
        async with crowd_of(16, url) as crowd:
            await crowd.more(202, 400)
            code = await running.terminate()
    return crowd, running, code


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [("--preload",), pytest.param((), marks=pytest.mark.soak)], ids=["preload", "plain"]
)
def test_sigterm_in_the_middle_loses_nothing(
    embedded_postgres: EmbeddedPostgres, options: tuple[str, ...]
) -> None:
    """Two worker processes with four threads each: every event answered with 202 is in the
    table.
    """
    dsn = embedded_postgres.dsn
    crowd, running, code = asyncio.run(stopped_under_load(dsn, *options))
    stored = asyncio.run(query(dsn, "SELECT id FROM events"))
    assert_nothing_is_lost(crowd, stored)
    reports = running.reports()
    assert len(reports) == 2, running.lines
    total = sum(reports, Counter[str]())
    assert total["delivered"] == len(stored)
    assert code == 0
