"""The Flask sample under gunicorn: worker processes that are forked, and threads that share a
batcher.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import TYPE_CHECKING

import httpx
import pytest
from tests.examples.apps.service import (
    PLAIN,
    TABLE,
    Crowd,
    Service,
    assert_nothing_is_lost,
    crowd_of,
    query,
    service,
)

if TYPE_CHECKING:
    from penstock.testing import EmbeddedPostgres

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


async def stopped_under_load(dsn: str, *options: str) -> tuple[Crowd, Service, int]:
    await query(dsn, "DROP TABLE IF EXISTS events", TABLE)
    command = (*GUNICORN, *options, *OPTIONS)
    async with service(*command, env={"DATABASE_URL": dsn}) as running:
        url = await running.url()
        for _ in range(2):
            await running.line("batcher open in worker")
        async with httpx.AsyncClient(base_url=url, timeout=20.0, verify=PLAIN) as client:
            for body, status in BODIES.items():
                headers = {"Content-Type": "application/json"}
                answer = await client.post("/events/stored", content=body, headers=headers)
                assert (body, answer.status_code) == (body, status)
            assert (await client.get("/ready")).text == "open\n"
        async with crowd_of(16, url, first=1000) as crowd:
            await crowd.more(202, 400)
            code = await running.terminate()
    return crowd, running, code


@pytest.mark.parametrize(
    "options", [("--preload",), pytest.param((), marks=pytest.mark.soak)], ids=["preload", "plain"]
)
def test_sigterm_in_the_middle_loses_nothing(
    embedded_postgres: EmbeddedPostgres, options: tuple[str, ...]
) -> None:
    """Two worker processes with four threads each: every event of a 202 is in the table."""
    dsn = embedded_postgres.dsn
    crowd, running, code = asyncio.run(stopped_under_load(dsn, *options))
    stored = asyncio.run(query(dsn, "SELECT id FROM events WHERE id >= 1000"))
    assert_nothing_is_lost(crowd, stored)
    reports = running.reports()
    assert len(reports) == 2, running.lines
    assert all(report["accepted"] for report in reports)
    total = sum(reports, Counter[str]())
    assert total["delivered"] == len(stored) + 1
    assert total["rejected"] == 1
    assert code == 0
