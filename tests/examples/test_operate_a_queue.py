"""The page on operating a queue: its session shows the command's output.

White box: the command runs in this process.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest
from tests.examples.example import DOCS
from tests.postgres.queues.jobs_help import insert
from tests.postgres.streams.log_help import Log, installed

from sluicegate.cli import main

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")
CLAIM = "SELECT * FROM {s}.claim_jobs('mails', 'mailers', 'mailer-1', 1, 1, 0, 30)"
SETTLE = (
    "SELECT * FROM {s}.settle_jobs('mails', $1, $2, $3, $4, '{{0}}', '{{3}}', '{{no address}}', "
    "'{{ValueError}}', '{{}}', '{{}}')"
)


def session() -> list[tuple[str, str]]:
    """The commands of the page's first session, and their output."""
    page = (DOCS / "how-to/operate-a-queue.md").read_text()
    _, _, behind = page.partition("```console\n$ ")
    text, _, _ = behind.partition("\n```")
    return [
        (command, output)
        for command, _, output in (each.partition("\n") for each in text.split("\n$ "))
    ]


def shown(text: str) -> str:
    """The output without parts that depend on the time, and with single spaces."""
    text = re.sub(r"\d+\.\d\b", "0.0", text)
    text = re.sub(r"\b\d+ s\b", "0 s", text)
    return re.sub(r"[ \t]+", " ", text).strip()


async def _work(log: Log) -> None:
    """A job of `ann` fails three times, one of `bob` is being handled, one of `eve` is ready."""
    async with log.connected() as con:
        claim, settle = CLAIM.format(s=log.sql), SETTLE.format(s=log.sql)
        await con.fetch(f"SELECT {log.sql}.seen_consumer('mails', 'mailers', 'mailer-1', 60)")
        await insert(con, log, "mails", ("ann", 1), ("ann", 2))
        (row,) = await con.fetch(claim)
        values: Any = ([row["r_lease"]], [row["r_lane"]], ["fail"], [row["r_place"]])
        await con.fetch(settle, *values)
        await insert(con, log, "mails", ("bob", 3))
        await con.fetch(claim)
        await insert(con, log, "mails", ("eve", 4))
        await con.fetch(f"SELECT {log.sql}.merge_bells('mails', 10, now())")


def test_the_session_is_what_the_command_prints(
    embedded_postgres: EmbeddedPostgres, capsys: pytest.CaptureFixture[str]
) -> None:
    log = installed(embedded_postgres.dsn)
    for command, output in session():
        _, *arguments = shlex.split(command.replace("$DSN", log.dsn))
        assert main([*arguments, "--schema", log.schema]) == 0
        assert shown("".join(capsys.readouterr())) == shown(output)
        if arguments[1] == "create":
            asyncio.run(_work(log))
