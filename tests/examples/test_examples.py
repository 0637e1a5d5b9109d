"""The examples run and print the output in the docs."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.examples.example import EXAMPLES, load, printed_on
from tests.http.http_help import Reply, Request, serving

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedKafka, EmbeddedOpenSearch, EmbeddedPostgres, FakeClock

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "first-steps.md"


async def test_the_first_batcher(fake_clock: FakeClock, capsys: pytest.CaptureFixture[str]) -> None:
    """The tutorial's first program."""
    await load("first_batcher").main()
    first, second, report = capsys.readouterr().out.splitlines()
    assert first == "3 items, because of size: ['ann', 'bob', 'cid']"
    assert second == "1 items, because of shutdown: ['dot']"
    assert report.endswith("4 accepted: 4 delivered")


async def test_the_full_stack(fake_clock: FakeClock, capsys: pytest.CaptureFixture[str]) -> None:
    """The tutorial's five stacks, line by line as on the page."""
    await load("full_stack").main()
    assert capsys.readouterr().out.strip() in PAGE.read_text()


async def test_readings_are_sent_after_a_restart(
    fake_clock: FakeClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the spool of an earlier process, in order."""
    await load("spooled").main(str(tmp_path))
    assert [capsys.readouterr().out] == printed_on("how-to/spool.md")


def test_audit_events_reach_postgres(
    embedded_postgres: EmbeddedPostgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row that the table refuses fails alone."""
    report = asyncio.run(load("audit_to_postgres").main(embedded_postgres.dsn, 1_000))
    assert (report.tally.delivered, report.tally.rejected) == (1_001, 1)
    out = capsys.readouterr().out
    assert "the last one: delivered" in out
    assert "refused alone: rejected" in out


async def test_the_users_own_test(fake_clock: FakeClock) -> None:
    """The test on the how-to page."""
    await load("test_my_code").test_an_event_survives_a_hiccup(fake_clock)


@pytest.mark.parametrize(
    "name", ["test_orders_are_booked_in_order", "test_a_locked_ledger_is_tried_again"]
)
async def test_the_users_own_test_of_a_handler(fake_clock: FakeClock, name: str) -> None:
    """The test on the how-to page."""
    await getattr(load("test_my_handler"), name)(fake_clock)


@pytest.mark.parametrize("name", ["test_a_payment_is_booked", "test_a_transfer_is_booked"])
async def test_the_users_own_test_of_events(fake_clock: FakeClock, name: str) -> None:
    """The test on the how-to page."""
    await getattr(load("test_my_events"), name)(fake_clock)


@pytest.mark.long
def test_a_postgres_to_try_the_examples_on(embedded_postgres: EmbeddedPostgres) -> None:
    """It prints its address, has the tables, crashes and restarts, and ends in order. The fixture
    skips if the server's package is missing.
    """
    command = [
        sys.executable,
        str(EXAMPLES / "a_postgres.py"),
        str(EXAMPLES / "migration" / "tables.sql"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        dsn = process.stdout.readline().removeprefix("export DSN=").strip()
        try:
            module = load("migration/step_07_write_at_once")
            process.send_signal(signal.SIGHUP)
            assert [process.stdout.readline() for _ in range(3)][1:] == [
                "# killed with SIGKILL\n",
                "# up again\n",
            ]
            module.main(dsn, module.thousand_requests())
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


async def test_events_reach_an_http_endpoint(
    real_clock: LoopClock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refuses one event; the others are delivered, and every request has the token and
    its own key.
    """
    monkeypatch.setenv("TOKEN", "abc")

    async def answer(request: Request) -> Reply:
        items = [{"ok": item["id"] != 7, "why": "unlucky"} for item in request.items]
        return Reply(body=json.dumps({"items": items}).encode())

    async with serving() as server:
        server.default = answer
        report = await load("events_to_http").main(f"{server.url}/v1/events", 1_000)
    assert (report.tally.delivered, report.tally.rejected) == (999, 1)
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer abc"}
    assert len({request.headers["idempotency-key"] for request in server.requests}) == len(
        server.requests
    )


@pytest.mark.long
async def test_an_order_outlives_its_broker(
    embedded_kafka: EmbeddedKafka, real_clock: LoopClock
) -> None:
    """The fixture gives the reason if Kafka is missing."""
    if not embedded_kafka.is_ours:
        pytest.skip("a broker that is not ours is not killed")
    await load("test_with_kafka").test_an_order_outlives_the_broker(real_clock)


async def test_documents_reach_a_search_server(
    embedded_opensearch: EmbeddedOpenSearch,
    real_clock: LoopClock,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = await load("documents_to_search").main(embedded_opensearch.url, 1_000)
    assert report.tally.delivered == 1_001
    assert "'_id': '1000'" in capsys.readouterr().out
