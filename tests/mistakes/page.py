"""Generates the page of mistakes and the file of their messages from `cases`.

`python -m tests.mistakes.page` writes both, with `PYTHONPATH=src`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import asyncpg
from tests.mistakes.cases import TOPICS
from tests.mistakes.mistake import told_by

from sluicegate.testing import embedded_postgres

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.mistakes.mistake import Mistake, Told

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "mistakes.md"
MESSAGES = Path(__file__).with_name("messages.txt")
PHASES = ("At construction", "As a warning", "At opening", "At run time", "In the log")
SHOWN = (
    "Limits: `max_size`",
    "Milliseconds for a delay",
    "A table that is not there",
    "One item instead of several",
)
TOP = """\
---
description: "Mistakes that are easy to make, and their messages, by topic."
---
# Mistakes and their messages

{count} mistakes that are easy to make; each has a message that says what to write instead. A bad argument raises `ConfigError` when the object is constructed, before anything
starts: the message names the argument, its value and the rule. What only the server knows is an
error at opening. A likely mistake that may be intended is a `SluicegateWarning` at your line; make it
an error with `warnings.simplefilter("error", sluicegate.errors.SluicegateWarning)`. No message shows a
password.

A whole number of seconds looks like milliseconds from 100 for a delay, from 1,000 for a timeout, a
deadline or a lease, and from 10,000 for a period that may last hours, such as a retention. A float
(`1800.0`), a `timedelta` or whole hours (`7200`) cause no warning.

{shown}
"""


class OnPostgres:
    """Runs mistakes that need a server, in an empty database of it."""

    def __init__(self, dsn: str) -> None:
        self._server = dsn
        parts = urlsplit(dsn)
        self._dsn = urlunsplit(parts._replace(path="/mistakes"))
        self._address = f"{parts.hostname}:{parts.port}"

    def told(self, mistake: Mistake) -> Told:
        """Run a mistake in an empty schema; the messages do not depend on the server's port."""
        asyncio.run(self._prepare(mistake.tables))
        return told_by(mistake, self._dsn).without(self._address, "db.example.com")

    async def _prepare(self, tables: str) -> None:
        con = await asyncpg.connect(self._server)
        await con.execute("DROP DATABASE IF EXISTS mistakes WITH (FORCE)")
        await con.execute("CREATE DATABASE mistakes")
        await con.close()
        con = await asyncpg.connect(self._dsn)
        await con.execute(tables)
        await con.close()


def told_by_all(dsn: str) -> dict[str, Told]:
    """The messages of each mistake by its title; `dsn` is a server's."""
    server = OnPostgres(dsn)
    return {
        each.title: server.told(each) if each.tables else told_by(each)
        for mistakes in TOPICS.values()
        for each in mistakes
    }


def messages(answers: dict[str, Told]) -> str:
    """The file of all messages."""
    return "\n".join(
        f"{each.title}: {_phase(each, answers).lower()}\n  {answers[each.title].of(each.kind)[0]}\n"
        for mistakes in TOPICS.values()
        for each in mistakes
    )


def page(answers: dict[str, Told]) -> str:
    """The whole page."""
    every = {each.title: each for mistakes in TOPICS.values() for each in mistakes}
    shown = "\n\n".join(_example(every[title], answers) for title in SHOWN)
    parts = [TOP.format(count=len(every), shown=shown)]
    for topic, mistakes in TOPICS.items():
        parts.append(f"## {topic}\n\n{_grouped(mistakes, answers)}\n")
    return "\n".join(parts)


def _example(mistake: Mistake, answers: dict[str, Told]) -> str:
    (told,) = answers[mistake.title].of(mistake.kind)
    return f"```python\n{mistake.code}\n```\n\n```text\n{told}\n```"


def _grouped(mistakes: Iterable[Mistake], answers: dict[str, Told]) -> str:
    titles: defaultdict[str, list[str]] = defaultdict(list)
    for each in mistakes:
        titles[_phase(each, answers)].append(each.title)
    shown = "\n\n".join(
        f"*{phase}*\n: {'; '.join(titles[phase])}." for phase in PHASES if titles[phase]
    )
    count = sum(map(len, titles.values()))
    return f'<details markdown="1"><summary>{count} mistakes</summary>\n\n{shown}\n\n</details>'


def _phase(mistake: Mistake, answers: dict[str, Told]) -> str:
    named = {"warning": "As a warning", "log": "In the log"}
    return named.get(mistake.kind, answers[mistake.title].phase)


if __name__ == "__main__":
    with embedded_postgres() as server:
        told = told_by_all(server.dsn)
    PAGE.write_text(page(told), encoding="utf-8")
    MESSAGES.write_text(messages(told), encoding="utf-8")
