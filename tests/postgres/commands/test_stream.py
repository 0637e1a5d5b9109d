"""`sluicegate stream`: subscriptions are viewed and changed, and consumers follow the changes.

White box: smaller pages and other intervals, and an interruption of the output.
"""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.streams.log_pool import lent
from tests.postgres.streams.served_help import consumed, served, stored_offsets

from sluicegate.cli import main
from sluicegate.postgres.commands import output
from sluicegate.postgres.streams import options
from sluicegate.testing.conformance.source.subject import RecordingHost

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from tests.postgres.streams.log_help import Log

    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")
SECRET = "hush-hush"


class Stream:
    """The command on a log, run in this process, and its output."""

    def __init__(self, log: Log, capsys: pytest.CaptureFixture[str]) -> None:
        self.log = log
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, command: str, *arguments: str, code: int = 0) -> None:
        found = main(["stream", command, self.log.dsn, *arguments, "--schema", self.log.schema])
        self.out, self.err = self._capsys.readouterr()
        assert found == code, self.err

    def append(self, stream: str, *numbers: int) -> None:
        self.run(lambda con: self.log.append(con, stream, *numbers))

    def run(self, use: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        async def run() -> Any:
            async with self.log.connected() as con:
                return await use(con)

        return asyncio.run(run())

    def consume(self, name: str = "s", **options: Any) -> list[int]:
        return asyncio.run(consumed(self.log, name, **options))

    def offsets(self) -> list[int]:
        return list(self.run(lambda con: stored_offsets(self.log, con)))

    def value(self, sql: str) -> Any:
        return self.run(lambda con: con.fetchval(sql.replace("{schema}", self.log.sql)))


@pytest.fixture
def stream(
    embedded_postgres: EmbeddedPostgres, capsys: pytest.CaptureFixture[str]
) -> Iterator[Stream]:
    with lent(embedded_postgres.dsn) as log:
        yield Stream(log, capsys)


def test_lag_by_subscription_and_by_slot(stream: Stream) -> None:
    stream("lag")
    assert "has no subscription" in stream.err
    stream.append("a-1", 0)
    assert stream.consume() == [1]
    assert stream.consume("other", category="b") == []
    stream.append("a-1", 1, 2)
    stream("lag")
    head, other, ours = stream.out.splitlines()
    assert head.split() == ["subscription", "messages", "seconds", "slots", "processes", "state"]
    assert (other.split()[:2], ours.split()[:2]) == (["other", "0"], ["s", "2"])
    stream("lag", "s", "--json", "--count-to", "1")
    found = json.loads(stream.out)
    assert found["s"]["backlog"]["messages"] == 1
    stream("explain", "s", "--json", "--count-to", "1")
    slots = json.loads(stream.out)["slots"]
    assert (len(slots), sum(slot["messages"] for slot in slots)) == (256, 1)


def test_explain_names_slots_and_the_transaction_that_holds_the_horizon(stream: Stream) -> None:
    stream.append("a-1", 0)
    stream.consume()
    stream.append("a-1", 1)

    async def explain(con: Any) -> None:
        await con.execute("BEGIN")
        await stream.log.append(con, "b-1", 0)
        await asyncio.to_thread(stream, "explain", "s")

    stream.run(explain)
    lines = stream.out.splitlines()
    assert "horizon:      2 of 3" in lines
    assert any(
        "an open transaction that appends holds the horizon at 2 of 3 (pid " in line
        for line in lines
    )
    slot = str(stream.value("SELECT {schema}.slot_of('a-1')"))
    (row,) = [line for line in lines if line.split()[:1] == [slot]]
    assert row.split()[:4] == [slot, "2", "1", "2"]
    assert row.endswith("no process serves the subscription")
    stream("explain", "s", "--all")
    assert len(stream.out.splitlines()) > 256
    stream("explain", "s", "--json")
    found = json.loads(stream.out)
    assert (found["why_horizon_stands"], found["appender"]) == (None, None)
    assert found["slots"][int(slot)]["reason"] == "no process serves the subscription"


def test_pause_and_resume(stream: Stream) -> None:
    stream.consume()
    stream("pause", "s", "--slots", "1,4-6")
    paused = "SELECT array_agg(slot ORDER BY slot) FROM {schema}.subscription_slot WHERE paused"
    assert stream.value(paused) == [1, 4, 5, 6]
    stream("pause", "s")
    assert stream.value("SELECT paused FROM {schema}.subscription")
    stream("resume", "s", "--slots", "4-6")
    assert "paused as a whole" in stream.err
    assert stream.value(paused) == [1]
    stream("resume", "s")
    assert stream.value(paused) is None
    assert not stream.value("SELECT paused FROM {schema}.subscription")
    stream.append("a-1", 0)
    assert stream.consume() == [1]


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ("next", [3]),
        ("7d", [1, 2, 3]),
    ],
)
def test_reset(stream: Stream, point: str, expected: list[int]) -> None:
    stream.append("a-1", 0, 1)
    stream.consume()
    stream("reset", "s", "--to", point, code=2)
    assert "There is no terminal for the confirmation: add --yes to continue" in stream.err
    before = stream.offsets()
    assert max(before) == 3
    stream("reset", "s", "--to", point, "--yes")
    assert "s is reset: it continues at position" in stream.err
    stream.append("a-1", 2)
    assert stream.consume() == expected


def test_a_live_subscription_is_changed_by_force_only(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "CHECK_EVERY", 0.05)

    async def served_meanwhile(con: Any) -> None:
        async with served(stream.log).open(host := RecordingHost()):
            claims = await host.wait_for_claims(256)
            for command in (("reset", "s", "--to", "next"), ("delete", "s")):
                await asyncio.to_thread(stream, *command, "--yes", code=2)
                assert "1 processes serve the subscription 's'; to repair: stop" in stream.err
            await stream.log.append(con, "a-1", 0)
            await asyncio.to_thread(stream, "reset", "s", "--to", "next", "--yes", "--force")
            await host.news.wait_for(lambda: all(each.is_closed for each in claims))
        await asyncio.to_thread(stream, "delete", "s", "--yes", "--force")

    stream.run(served_meanwhile)
    assert stream.value("SELECT count(*) FROM {schema}.subscription_slot") == 0
    assert stream.consume() == [1]


def test_skip(stream: Stream) -> None:
    stream.consume()
    stream.append("a-1", 0, 1, 2)
    stream("skip", "s", "2", code=2)
    assert "for good? There is no terminal" in stream.err
    stream("skip", "s", "2", "--reason", "broken", "--yes")
    assert stream.err == "s skips message 2: happened, version 1 of the stream a-1\n"
    assert stream.consume() == [1, 3]
    assert (
        stream.value("SELECT reason FROM {schema}.subscription_skip WHERE position = 2") == "broken"
    )
    stream("skip", "s", "2", "--yes", code=2)
    assert "the subscription has handled it" in stream.err


def test_a_long_deletion_says_how_far_it_is(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "SAY_EVERY", 1000)
    stream.append("a-1", *range(2001))
    for select in (("--before", "1001"), ("--stream", "a-1")):
        stream("delete", *select, "--yes")
        assert stream.err.startswith("1000 messages were deleted so far\n")


def test_an_interrupted_deletion_says_how_much_was_deleted(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(progress: output.Progress, count: int, _: int) -> None:
        progress.count = count
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(output.Progress, "note", interrupt)
    stream.append("a-1", *range(2001))
    stream("delete", "--stream", "a-1", "--yes", code=130)
    said = (
        "interrupted: at least 1000 messages were deleted; run the same command again to continue\n"
    )
    assert said in stream.err
    left = stream.value("SELECT count(*) FROM {schema}.message")
    assert left in {1, 1001}, "the cancelled batch is deleted or not"


def test_delete_messages(stream: Stream) -> None:
    count = "SELECT count(*) FROM {schema}.message"
    stream.append("a-1", 0, 1)
    stream.consume()
    stream.append("b-1", 0)
    stream("delete", "--older-than", "1h", "--yes")
    assert stream.err == "0 messages were deleted\n"
    stream("delete", "--before", "3", code=2)
    assert stream.value(count) == 3
    stream("delete", "--before", "9", "--yes", code=1)
    assert stream.err == (
        "2 messages were deleted\n1 were kept: a subscription has not handled them\n"
    )
    stream("delete", "--stream", "b-1", "--yes", code=1)
    assert stream.value(count) == 1
    stream("delete", "--stream", "b-1", "--yes", "--force")
    assert stream.value(count) == 0
    for wrong in ((), ("s", "--before", "1"), ("--stream", "a", "--before", "1")):
        stream("delete", *wrong, "--yes", code=2)


def test_a_wrong_subscription_schema_or_server_is_told_without_secrets(
    stream: Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (
        ("explain", "x"),
        ("lag", "x"),
        ("pause", "x"),
        ("resume", "x"),
        ("reset", "x", "--to", "next", "--yes"),
        ("skip", "x", "1", "--yes"),
        ("delete", "x", "--yes"),
        ("delete", "--before", "1", "--yes"),
    ):
        if "x" in command:
            stream(*command, code=2)
            assert "subscription='x'" in stream.err
            assert "it has none" in stream.err
        name, *rest = command
        assert main(["stream", name, stream.log.dsn, *rest, "--schema", "nowhere"]) == 2
        assert "sluicegate pg install DSN --schema nowhere" in capsys.readouterr().err
        dsn = f"postgresql://postgres:{SECRET}@127.0.0.1:1/postgres"
        assert main(["stream", name, dsn, *rest]) == 2
        told = capsys.readouterr().err
        assert "127.0.0.1:1" in told
        assert SECRET not in told


def test_wrong_slots_and_points_are_bad_use(stream: Stream) -> None:
    for wrong in (
        ("pause", "s", "--slots", "256"),
        ("pause", "s", "--slots", "5-1"),
        ("pause", "s", "--slots", "a"),
        ("reset", "s", "--to", "soon"),
        ("skip", "s", "0"),
    ):
        with pytest.raises(SystemExit) as caught:
            stream(*wrong)
        assert caught.value.code == 2


def test_a_message_is_shown_with_its_contents_on_request_and_skipped(stream: Stream) -> None:
    stream.append("a-1", 1, 2)
    stream("show", "2")
    assert json.loads(stream.out)["stream"] == "a-1"
    assert "data" not in json.loads(stream.out)
    stream("show", "2", "--payload")
    assert {"data", "metadata"} < json.loads(stream.out).keys()
    stream("show", "99", code=2)
    assert "no message at 99" in stream.err
