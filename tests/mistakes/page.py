"""Generates the page of mistakes from `cases`: the programs and their messages.

`python -m tests.mistakes.page` writes it, with `PYTHONPATH=src`.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from tests.mistakes.cases import TOPICS
from tests.mistakes.mistake import BEFORE, Mistake, told_by

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "mistakes.md"
WIDTH = 96
TOP = f"""\
# Mistakes and their messages

{sum(map(len, TOPICS.values()))} mistakes that are easy to make, each with its message. A bad
argument raises `ConfigError` when the object is constructed, before anything starts: the message
names the argument, its value and the rule. A likely mistake that may be intended is a
`PenstockWarning` at your line. Make it an error with
`warnings.simplefilter("error", penstock.PenstockWarning)`, or ignore it in the same way. A message
never shows a password.

A whole number of seconds looks like milliseconds from 100 for a delay, from 1,000 for a timeout, a
deadline or a lease, and from 10,000 for a period that may last hours, such as a retention. A float
(`1800.0`), a `timedelta` or whole hours (`7200`) cause no warning.

A test runs every program below and compares its message. Each is preceded by:

```python
{BEFORE}```
"""


def page() -> str:
    """The whole page."""
    parts = [TOP]
    for topic, mistakes in TOPICS.items():
        parts += [f"## {topic}\n", *map(_entry, mistakes)]
    return "\n".join(parts)


def _entry(mistake: Mistake) -> str:
    told = "\n".join(map(_wrapped, told_by(mistake).of(mistake.kind)))
    return f"**{mistake.title}**\n\n```python\n{mistake.code}\n```\n\n```text\n{told}\n```\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
