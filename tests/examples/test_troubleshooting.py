"""The page on troubleshooting: its program prints the output shown, and its messages are those of
the library.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.examples.example import DOCS, load, printed_on

import sluicegate
from sluicegate.testing import FakeClock

PAGE = "how-to/troubleshooting.md"


def test_what_a_batcher_says_of_itself(
    fake_clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_clock.run(load("what_is_wrong").main())
    assert capsys.readouterr().out == printed_on(PAGE)[0]


def test_each_message_is_in_the_source() -> None:
    """Each part of a message between two values occurs in a text of the library."""
    told = (DOCS / PAGE).read_text().partition("## Messages")[2]
    messages = re.findall(r"^\| `(.+?)` \|", told, re.MULTILINE)
    assert len(messages) > 10
    texts: list[str] = []
    for path in Path(sluicegate.__file__).parent.rglob("*.py"):
        docstrings: set[int] = set()
        for node in ast.walk(ast.parse(path.read_text())):  # parents first
            if isinstance(node, ast.Expr):
                docstrings.add(id(node.value))
            elif isinstance(node, ast.Constant) and id(node) not in docstrings:
                texts.append(str(node.value))
    every = re.sub(r"%[.\d]*[a-z]", "...", "\n".join(texts))
    parts = [(message, part) for message in messages for part in message.split("...")]
    assert [each for each in parts if each[1].strip() not in every] == []
