"""`sluicegate pg`: a log is installed, upgraded and checked from the command line."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import pytest
from tests.children import child
from tests.postgres.sink.postgres_help import proxied
from tests.postgres.streams.log_help import Log, fresh_name, installed

from sluicegate.cli import main
from sluicegate.postgres import check_streams

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

SECRET = "hush-hush"


@pytest.fixture
def log(embedded_postgres: EmbeddedPostgres) -> Log:
    """A log that is not installed."""
    return Log(embedded_postgres.dsn, fresh_name())


class Pg:
    """The command, run in this process, and its output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> None:
        found = main(["pg", *arguments])
        self.out, self.err = self._capsys.readouterr()
        assert found == code, self.err


@pytest.fixture
def pg(capsys: pytest.CaptureFixture[str]) -> Pg:
    return Pg(capsys)


def execute(log: Log, sql: str) -> None:
    async def run() -> None:
        async with log.connected() as con:
            await con.execute(sql)

    asyncio.run(run())


def test_a_log_is_installed_upgraded_and_checked(log: Log, pg: Pg) -> None:
    at = ("--schema", log.schema)
    pg("check", log.dsn, *at, code=1)
    assert "problem schema-missing" in pg.out
    pg("install", log.dsn, *at)
    assert pg.err == f"{log.schema} is installed\n"
    for command in ("install", "upgrade"):
        pg(command, log.dsn, *at)
        assert pg.err == f"{log.schema} is up to date already\n"
    pg("install", log.dsn, *at, "--append", "postgres")
    assert pg.err == f"{log.schema} exists already; the roles have their rights\n"
    pg("check", log.dsn, *at)
    assert (pg.out, pg.err) == ("", f"{log.schema}: no problems\n")


def test_a_dry_run_prints_sql_that_installs_and_changes_nothing(log: Log, pg: Pg) -> None:
    pg("install", log.dsn, "--schema", log.schema, "--append", "postgres", "--dry-run")
    assert "GRANT INSERT" in pg.out
    script = pg.out
    pg("check", log.dsn, "--schema", log.schema, code=1)
    execute(log, script)
    pg("check", log.dsn, "--schema", log.schema)


def test_a_check_prints_sql_that_repairs(log: Log, pg: Pg) -> None:
    installed(log.dsn, log.schema)
    execute(log, f"DROP VIEW {log.sql}.appender; DROP INDEX {log.sql}.message_slot")
    pg("check", log.dsn, "--schema", log.schema, code=1)
    assert pg.err == f"{log.schema}: 2 problems\n"
    execute(log, pg.out)
    pg("check", log.dsn, "--schema", log.schema)


def test_what_is_only_noted_is_a_comment_and_no_failure(log: Log, pg: Pg) -> None:
    installed(log.dsn, log.schema)
    name = f"{log.schema}_n"
    execute(log, f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    pg("install", log.dsn, "--schema", log.schema, "--append", name)
    netloc = f"{name}:secret@{urlsplit(log.dsn).netloc.rpartition('@')[2]}"
    pg("check", _with(log.dsn, netloc=netloc), "--schema", log.schema)
    assert "-- note not-readable" in pg.out
    assert all(line.startswith("--") for line in pg.out.splitlines())


def test_roles_are_named_by_options(log: Log, pg: Pg) -> None:
    at = ("--schema", log.schema)
    pg("install", log.dsn, *at, "--append", "nobody_here", code=2)
    assert "append='nobody_here'" in pg.err
    pg("check", log.dsn, *at, code=1)
    execute(log, f"CREATE ROLE {log.schema}_a; CREATE ROLE {log.schema}_b")
    roles = ("--append", f"{log.schema}_a", "--append", f"{log.schema}_b")
    pg("install", log.dsn, *at, *roles, "--read", f"{log.schema}_a")
    queues = ("--enqueue", f"{log.schema}_a", "--work", f"{log.schema}_b")
    pg("install", log.dsn, *at, *queues, "--operate", f"{log.schema}_b")
    execute(log, f"SET ROLE {log.schema}_a; SELECT FROM {log.sql}.message; RESET ROLE")
    execute(log, f"SET ROLE {log.schema}_b; SELECT FROM {log.sql}.job; RESET ROLE")


def _with(dsn: str, *, password: str | None = None, **parts: str) -> str:
    split = urlsplit(dsn)._replace(**parts)
    if password is not None:
        split = split._replace(netloc=f"postgres:{password}@{split.hostname}:{split.port}")
    return urlunsplit(split)


@pytest.mark.parametrize("command", ["install", "upgrade", "check"])
def test_a_wrong_database_role_or_server_is_told_without_secrets(
    log: Log, pg: Pg, command: str
) -> None:
    dsn = _with(log.dsn, password=SECRET)
    wrong = {
        _with(log.dsn, path="/nowhere"): "create the database",
        dsn: "let the role log in",
        f"postgresql://u:{SECRET}@127.0.0.1:1/x": "no connection to",
        f"postgresql://u:{SECRET}@host:x:y/x": "a port is a number",
        f"mysql://u:{SECRET}@host/x": 'must be "postgresql://',
    }
    for given, told in wrong.items():
        pg(command, given, code=2)
        assert told in pg.err
        assert SECRET not in pg.err
        assert (urlsplit(log.dsn).password or "?") not in pg.err


def test_a_bad_name_is_told(log: Log, pg: Pg) -> None:
    pg("install", log.dsn, "--schema", "pg_mine", code=2)
    assert "schema='pg_mine'" in pg.err
    pg("upgrade", log.dsn, "--schema", log.schema, code=2)
    assert "run `sluicegate pg install`" in pg.err


async def test_an_interrupted_installation_leaves_nothing(log: Log, real_clock: LoopClock) -> None:
    """It waits for another installation, and gets Ctrl-C meanwhile."""
    waits = asyncio.Event()

    def seen(kind: bytes, body: bytes) -> bool:
        if b"pg_advisory_xact_lock" in body:
            waits.set()
        return False

    async with proxied(log.dsn) as (proxy, through), log.connected() as con, con.transaction():
        proxy.cut_request = seen
        await con.execute("SELECT pg_advisory_xact_lock(hashtext('sluicegate pg install'))")
        command = (sys.executable, "-m", "sluicegate.cli", "pg", "install", through)
        pipe = asyncio.subprocess.PIPE
        async with child(*command, "--schema", log.schema, stderr=pipe) as process:
            await waits.wait()
            process.send_signal(signal.SIGINT)
            _, err = await process.communicate()
        assert process.returncode == 130, err
        assert b"Traceback" not in err
    (problem,) = await check_streams(log.dsn, schema=log.schema)
    assert problem.name == "schema-missing"
