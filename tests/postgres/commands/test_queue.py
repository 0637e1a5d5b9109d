"""`sluicegate queue`: queues are created, viewed and operated, and claims follow the changes.

White box: the intervals of the output, and an interruption in its middle.
"""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.queues.jobs_help import claim, handled, insert
from tests.postgres.queues.operated_help import fail
from tests.postgres.streams.log_pool import lent

from sluicegate.cli import main
from sluicegate.postgres.commands import output

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from tests.postgres.streams.log_help import Log

    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")
SECRET = "hush-hush"


class Queue:
    """The command on a schema, run in this process, and its output."""

    def __init__(self, log: Log, capsys: pytest.CaptureFixture[str]) -> None:
        self.log = log
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, command: str, *arguments: str, code: int = 0) -> None:
        found = main(["queue", command, self.log.dsn, *arguments, "--schema", self.log.schema])
        self.out, self.err = self._capsys.readouterr()
        assert found == code, self.err

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    def run(self, use: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        async def run() -> Any:
            async with self.log.connected() as con:
                return await use(con)

        return asyncio.run(run())

    def insert(self, *jobs: tuple[str | None, Any]) -> None:
        self.run(lambda con: insert(con, self.log, "mails", *jobs))

    def claim(self) -> list[Any]:
        return list(self.run(lambda con: claim(con, self.log, "mails")))

    def handled(self) -> list[Any]:
        return list(self.run(lambda con: handled(con, self.log, "mails")))

    def fail(self, times: int = 1) -> str:
        return str(self.run(lambda con: fail(con, self.log, "mails", times)))

    def execute(self, sql: str) -> None:
        self.run(lambda con: con.execute(sql.replace("{schema}", self.log.sql)))


@pytest.fixture
def queue(
    embedded_postgres: EmbeddedPostgres, capsys: pytest.CaptureFixture[str]
) -> Iterator[Queue]:
    with lent(embedded_postgres.dsn) as log:
        yield Queue(log, capsys)


def test_queues_are_made_changed_and_listed(queue: Queue) -> None:
    """Again with equal settings; different ones are an error."""
    queue("list")
    assert "has no queue; `sluicegate queue create` makes one" in queue.err
    arguments = ("mails", "--sticky", "--max-depth", "100", "--keep-done", "12h")
    queue("create", *arguments)
    assert queue.err == "created the queue mails\n"
    queue("create", *arguments)
    assert queue.err == "the queue mails exists already, with these settings\n"
    queue("create", "mails", code=2)
    assert "sticky=False: the queue mails exists with sticky=True" in queue.err
    queue("alter", "mails", "--max-depth", "none", "--key-rate", "0.5", "--no-sticky")
    queue("alter", "mails", "--keep-dead", "90s")
    queue("list")
    told = queue.lines[1].split(maxsplit=1)
    assert told == ["mails", "poison=park_key, key_rate=0.5, keep_done=12h, keep_dead=90s"]
    queue("list", "--json")
    settings = json.loads(queue.out)["mails"]["settings"]
    assert (settings["keep_done"], settings["max_depth"]) == (43200, None)


def test_a_contradiction_is_refused(queue: Queue) -> None:
    """Q-T9."""
    queue("create", "line", "--ordering-required", "--poison", "skip", code=2)
    assert "later jobs would pass a job that cannot be handled" in queue.err
    queue("list", "--json")
    assert json.loads(queue.out) == {}


def test_lag(queue: Queue) -> None:
    queue("create", "mails", "--max-attempts", "1", "--poison", "block")
    queue.insert(("a", 1), ("a", 2), ("b", 3), (None, 4))
    queue("lag")
    head, row = queue.lines
    assert head.split()[:5] == ["queue", "jobs", "ready", "new", "delayed"]
    assert row.split()[:5] == ["mails", "4", "1", "2", "0"]
    assert queue.fail() == "blocked"
    queue("lag", "mails", "--json", "--count-to", "2")
    assert json.loads(queue.out)["mails"]["jobs"] == 2


def test_explain(queue: Queue) -> None:
    """Notes about the queue, its ranges, and a reason for each key."""
    queue("create", "mails", "--sticky")
    for slots in ("0-99", "100-32767"):
        queue("move", "mails", "workers", slots, "A")
    queue("move", "mails", "workers", "32768-65535", "B")
    queue.insert(("a", 1))
    queue.claim()
    queue("explain", "mails")
    assert "- no consumer is registered: none was started, or all have left" in queue.lines
    assert "workers  0-32767      A         not seen" in queue.lines, queue.out
    assert any(line.startswith("a    ") and "was never seen" in line for line in queue.lines)
    queue("explain", "mails", "--key", "a", "--json")
    (lane,) = json.loads(queue.out)["lanes"]
    assert "was never seen" in lane["why"]
    queue("explain", "mails", "--key", "b", "--json")
    found = json.loads(queue.out)
    assert found["lanes"] == []
    assert found["why_key_has_no_lane"].startswith("it has no job")
    assert len(found["ranges"]) == 3


def test_keys_are_blocked_parked_and_continued(queue: Queue) -> None:
    """A skip asks for confirmation, because the job leaves its place permanently."""
    queue("create", "mails", "--max-attempts", "1", "--poison", "block")
    queue.insert(("a", 1), ("a", 2))
    assert queue.fail() == "blocked"
    queue("unblock", "mails", "a", "--skip", code=2)
    assert "move the first job of the key a to the dead letters? There is no terminal" in queue.err
    queue("unblock", "mails", "a", "--skip", "--yes")
    queue("park", "mails", "a", "--reason", "by hand")
    assert queue.err == "the key a is parked; `sluicegate queue unpark` continues it\n"
    assert queue.handled() == []
    queue("unpark", "mails", "a")
    assert queue.handled() == [2]
    queue("unblock", "mails", "a", code=2)
    assert "is neither blocked nor parked" in queue.err


def test_jobs_are_redriven_purged_and_forgotten(queue: Queue) -> None:
    queue("create", "mails", "--max-attempts", "1", "--poison", "skip")
    queue.insert(("a", 1))
    assert queue.fail() == "dead"
    queue("redrive", "mails", "--key", "a", "--limit", "5")
    assert queue.err == "1 jobs were enqueued again\n"
    queue("purge", "mails", "waiting", code=2)
    assert "delete the waiting jobs of the queue mails for good?" in queue.err
    queue("purge", "mails", "waiting", "--yes", "--older-than", "1h")
    assert queue.err == "0 jobs were deleted\n"
    queue("purge", "mails", "waiting", "--yes")
    assert queue.err == "1 jobs were deleted\n"
    queue("retain", "--keep-ids", "1d")
    assert queue.err == (
        "mails: 0 handled jobs, 0 dead letters, 0 cancelled jobs, 0 ids and 0 clients were deleted\n"
    )


def test_jobs_are_listed_shown_cancelled_and_tried_again(queue: Queue) -> None:
    """Payloads, headers and secrets are hidden, and control characters escaped."""
    queue("create", "mails", "--max-attempts", "3", "--poison", "skip")
    queue.insert(("a\x1b[31m", {"card": 4111}), ("b", 2), ("b", 3), (None, 4))
    assert queue.fail() == "dead"
    queue.execute("UPDATE {schema}.lane SET lease = NULL, lease_until = NULL")
    queue.execute('UPDATE {schema}.job SET lease = NULL, headers = \'{"h": "s3"}\'')
    queue.execute(f"UPDATE {{schema}}.finished_job SET reason = 'postgresql://me:{SECRET}@host/x'")
    queue("jobs", "mails", "--limit", "2")
    assert [line.split()[:3] for line in queue.lines[1:]] == [
        [place, "b", "waiting"] for place in ("2", "3")
    ]
    assert queue.err.startswith("there may be more: --after ")
    queue("jobs", "mails", "--json", "--after", queue.err.split()[-1])
    found = json.loads(queue.out)
    assert ([job["place"] for job in found["jobs"]], found["next"]) == ([4], None)
    assert not {"payload", "headers"} & found["jobs"][0].keys()
    queue("jobs", "mails", "--json", "--payload", "--state", "waiting", "--key", "b")
    found = json.loads(queue.out)["jobs"]
    assert [(job["payload"], job["headers"]) for job in found] == [
        (2, {"h": "s3"}),
        (3, {"h": "s3"}),
    ]
    queue("jobs", "mails", "--state", "dead")
    assert queue.lines[:2] == ["jobs  error", "   1  ValueError"]
    assert "a\\x1b[31m" in queue.lines[-1]
    assert "ValueError: postgresql://***" in queue.lines[-1]
    assert "4111" not in queue.out
    dead = ("--state", "dead", "--error", "ValueError")
    queue("jobs", "mails", *dead, "--payload", "--older-than", "0s")
    assert '{"card": 4111}' in queue.out
    queue("jobs", "mails", "--state", "dead", "--json")
    assert json.loads(queue.out)["errors"] == {"ValueError": 1}
    assert SECRET not in queue.out
    queue("show", "mails", "1")
    assert "reason:       postgresql://***" in queue.lines
    queue("show", "mails", "3", "--json", "--payload")
    found = json.loads(queue.out)
    assert (found["payload"], found["lane"]["jobs"]) == (3, 2)
    assert "behind the job at 2" in found["waits_for"]
    queue("show", "mails", "99", code=2)
    assert "neither has nor keeps a job at 99" in queue.err
    queue("cancel", "mails", "3", "4", "99", code=2)
    assert "cancel 2 jobs of the queue mails? There is no terminal" in queue.err
    queue.claim()
    queue("cancel", "mails", "3", "4", code=2)
    assert "cancel 2 jobs, 1 of them leased, of the queue mails?" in queue.err
    queue("cancel", "mails", "3", "4", "99", "--yes")
    assert [line.split() for line in queue.lines[1:]] == [
        ["3", "cancelling"],
        ["4", "cancelling"],
        ["99", "missing"],
    ]
    queue("retry", "mails", "1", "2", "--json")
    assert json.loads(queue.out) == {"1": "enqueued", "2": "leased"}
    queue("jobs", "mails", "--state", "parked", "--key", "b", code=2)
    assert "cannot be given for parked jobs" in queue.err


def test_a_pause_and_a_drop(queue: Queue) -> None:
    queue("create", "mails")
    queue.insert(("a", 1))
    queue("pause", "mails")
    assert queue.claim() == []
    queue("resume", "mails")
    queue("drop", "mails", "--yes", code=2)
    assert "the queue mails has jobs" in queue.err
    queue("drop", "mails", "--force", code=2)
    assert "drop the queue mails with 1 jobs and 0 dead letters for good?" in queue.err
    queue("drop", "mails", "--force", "--yes")
    queue("lag")
    assert "has no queue" in queue.err


def test_a_no_changes_nothing(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    queue("create", "mails")
    queue.insert(("a", 1))
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    queue("purge", "mails", "waiting", code=2)
    assert queue.err.endswith("[y/N] nothing was changed\n")
    assert queue.handled() == [1]


def test_slots_are_moved_and_given_back(queue: Queue) -> None:
    queue("create", "mails", "--sticky")
    for wrong in (("0-9",), ("0-9", "A", "--automatic")):
        queue("move", "mails", "g", *wrong, code=2)
    queue("move", "mails", "g", "7", "A")
    queue("move", "mails", "g", "--automatic")
    assert queue.err == "the ranges of the group g follow its live consumers\n"
    queue("create", "plain")
    queue("move", "plain", "g", "0-9", "A", code=2)
    assert "is not sticky" in queue.err


def test_a_long_change_says_how_far_it_is(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SAY_EVERY", 1000)
    queue("create", "mails")
    queue.insert(*((f"k{n}", n) for n in range(1001)))
    queue("purge", "mails", "waiting", "--yes")
    assert queue.err == "1000 jobs were deleted so far\n1001 jobs were deleted\n"


def test_an_interrupted_change_says_how_much_was_done(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(progress: output.Progress, count: int) -> None:
        progress.count = count
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(output.Progress, "note", interrupt)
    queue("create", "mails")
    queue.insert(*((f"k{n}", n) for n in range(2001)))
    queue("purge", "mails", "waiting", "--yes", code=130)
    assert queue.err == (
        "interrupted: at least 1000 jobs were deleted; run the same command again to continue\n"
    )


def test_a_wrong_queue_schema_or_server_is_told_without_secrets(
    queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (
        ("lag", "x"),
        ("explain", "x"),
        ("unblock", "x", "k"),
        ("park", "x", "k"),
        ("unpark", "x", "k"),
        ("move", "x", "g", "0-1", "A"),
        ("redrive", "x"),
        ("purge", "x", "dead", "--yes"),
        ("pause", "x"),
        ("resume", "x"),
        ("retain", "x"),
        ("jobs", "x"),
        ("show", "x", "1"),
        ("cancel", "x", "1", "--yes"),
        ("retry", "x", "1"),
        ("drop", "x", "--yes"),
        ("alter", "x"),
    ):
        queue(*command, code=2)
        assert "queue='x': is not in the schema" in queue.err
        name, *rest = command
        assert main(["queue", name, queue.log.dsn, *rest, "--schema", "nowhere"]) == 2
        assert "sluicegate pg install DSN --schema nowhere" in capsys.readouterr().err
        dsn = f"postgresql://postgres:{SECRET}@127.0.0.1:1/postgres"
        assert main(["queue", name, dsn, *rest]) == 2
        told = capsys.readouterr().err
        assert "127.0.0.1:1" in told
        assert SECRET not in told


def test_wrong_slots_and_spans_are_bad_use(queue: Queue) -> None:
    for wrong in (
        ("move", "x", "g", "65536", "A"),
        ("move", "x", "g", "a-b", "A"),
        ("create", "x", "--keep-done", "soon"),
        ("create", "x", "--max-depth", "0"),
        ("create", "x", "--poison", "drop"),
    ):
        with pytest.raises(SystemExit) as caught:
            queue(*wrong)
        assert caught.value.code == 2


def test_a_schedule_is_made_shown_paused_run_and_deleted(queue: Queue) -> None:
    queue("create", "mails")
    nightly = ("mails", "nightly", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin")
    contents = ("--payload", f'{{"token": "{SECRET}"}}', "--header", f"auth={SECRET}")
    queue("schedule", *nightly, *contents, "--key", "k", "--catch-up", "all", "--priority", "2")
    assert SECRET in queue.out
    queue("schedule", "mails", "often", "--every", "15m", "--json")
    assert len(json.loads(queue.out)["ticks"]) == 5
    queue("schedules", "mails")
    _, nightly_line, often_line = queue.lines
    assert nightly_line.startswith("nightly   30 2 * * * (Europe/Berlin)")
    assert "T02:30:00+0" in nightly_line
    assert often_line.startswith("often     every 15m")
    queue("schedules", "mails", "nightly")
    assert SECRET not in queue.out
    assert sum("T02:30:00+0" in line for line in queue.lines) == 1 + 5, "the next one, and five"
    queue("schedules", "mails", "--limit", "1", "--payload", "--json")
    page = json.loads(queue.out)
    assert (page["next"], page["schedules"][0]["payload"]) == ("nightly", {"token": SECRET})
    queue("schedules", "mails", "--limit", "1", "--after", "nightly")
    assert queue.lines[1].startswith("often")
    queue("pause", "mails", "--schedule", "nightly")
    queue("explain", "mails")
    assert "- paused schedules: nightly;" in queue.out
    assert "- the next tick of the schedule often is in " in queue.out
    queue("schedules", "mails")
    assert "paused" in queue.lines[1]
    queue("resume", "mails", "--schedule", "nightly")
    queue("run", "mails", "nightly")
    queue("run", "mails", "nightly", "--json")
    assert json.loads(queue.out) == {"place": 2}
    assert queue.handled() == [{"token": SECRET}] * 2
    queue("unschedule", "mails", "nightly", "--yes")
    queue("unschedule", "mails", "nightly", "--yes", code=2)
    queue("schedules", "mails", "nightly", code=2)
    assert "no schedule nightly" in queue.err


@pytest.mark.parametrize("option", [("--payload", "{"), ("--header", "a")])
def test_what_is_no_json_and_no_header_is_bad_use(queue: Queue, option: tuple[str, str]) -> None:
    with pytest.raises(SystemExit):
        queue("schedule", "mails", "often", "--every", "15m", *option)
