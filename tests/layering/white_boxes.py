"""A test of private code says so.

A test, or a helper of tests, that imports a private module of the package has the words "White box"
in its docstring, with what it looks at. All others speak to the public face alone, so that the
inside may change without them. `sluicegate.cli` is the command that users run. Embedded servers and other tools of `sluicegate.testing` are for
tests, so their modules are not looked at.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.layering.sources import PACKAGE, Case, Sources, imports, sources, tree
from tests.surface import PUBLIC

TESTS = Path(__file__).parents[1]
TOOLS = f"{PACKAGE}.testing"
SAYS = re.compile(r"white\s+box", re.IGNORECASE)

_sources = cache(sources)


def sources_of_tests() -> dict[str, str]:
    """Every module of the tests, by its dotted name, and its text."""
    return {
        ".".join(path.relative_to(TESTS.parent).with_suffix("").parts): path.read_text(
            encoding="utf-8"
        )
        for path in sorted(TESTS.rglob("*.py"))
    }


def white_boxes_say_so(tests: Sources) -> list[str]:
    """Modules of the tests that import a private module and do not say it."""
    return [
        f"{module}: imports {', '.join(private)}, and its docstring does not say 'White box'"
        for module, text in tests.items()
        if not _says_so(text) and (private := _private(module, tests))
    ]


def _says_so(text: str) -> bool:
    """Whether the docstring has the words; only a text that has them anywhere is parsed for it."""
    return bool(SAYS.search(text) and SAYS.search(ast.get_docstring(tree(text)) or ""))


def _private(module: str, tests: Sources) -> list[str]:
    """The private modules of the package that a module of the tests imports."""
    if PACKAGE not in tests[module]:
        return []
    targets = {found.target(_sources()) for found in imports(module, tests)}
    return sorted(
        target
        for target in targets
        if target.split(".")[0] == PACKAGE
        and target not in {*PUBLIC, f"{PACKAGE}.cli"}
        and not target.startswith(f"{TOOLS}.")
    )


PLANTED: list[Case] = [
    (white_boxes_say_so, {"tests.new": text})
    for text in (
        "from sluicegate._core.clock import Signal",
        '"""The clock."""\nfrom sluicegate._core.clock import Signal',
        '"""The clock."""\nimport sluicegate._core.clock',
        '"""The clock."""\ndef test():\n from sluicegate._core import clock',
        '"""The clock."""\nif TYPE_CHECKING:\n from sluicegate._core.clock import Signal',
        '"""A source."""\nfrom sluicegate.batcher import ledger',
        '"""A source."""\n# White box: a comment.\nfrom sluicegate.batcher.ledger import Ledger',
    )
]
HARMLESS: list[Case] = [
    (white_boxes_say_so, {"tests.new": text})
    for text in (
        '"""The clock. White\nbox: its signal."""\nfrom sluicegate._core.clock import Signal',
        "from sluicegate import Batcher\nfrom sluicegate.batcher import LoopClock",
        "from sluicegate import batcher\nimport sluicegate.consumer.jobs",
        "from sluicegate.testing.sinks import FakeSink",
        "from tests.seeds import run_by",
    )
]
