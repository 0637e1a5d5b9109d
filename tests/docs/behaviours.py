"""Generates the page of behaviours: each id of a promise, and the test that is most about it.

1. A test cites the ids of the promises that it proves in its docstring, or in that of its class or
   module.
2. The page names the test with the fewest ids: it is about this promise more than about others.

`python -m tests.docs.behaviours` writes the page.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.docs.pages import DOCS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = DOCS / "explanation" / "behaviours.md"
CITED = re.compile(
    r"""(?<![\w/.-])(?:
    (?:(?:batcher|consumer|spark)/)?[BGOPQS]-T\d+
    | (?:batcher|consumer)/(?:[A-Z]:)?[A-Z][a-z]?\d+
    | (?:batcher|consumer)/\d+[a-c]?(?:\.\d+)?(?:-\d+)?
    | (?:batcher|consumer)/[A-Z]:\d\.\d
    | (?:[BCFGINOPQRS]|Ba)\d+ (?=[,:.]|\ to\ )
    | (?:design|decisions)\ \d(?:\.\d)?
    )(?![\w/])""",
    re.VERBOSE,
)
PARTS = {
    "Batching, retries and sinks": r"B-T|batcher/",
    "Consumers": r"O-T|consumer/",
    "Events that are completed later": r"G-T",
    "Spark": r"P-T",
    "Streams and subscriptions": r"S-T|S\d|P\d",
    "Queues": r"Q-T|Q\d|R\d",
    "Invariants and shared rules": r"",
}
"""The parts of the page, and how the ids in each begin; the first part that fits has an id."""
TOP = """\
---
description: "Each promise of Sluicegate by its id, with the test that proves it."
---
# Behaviours

A test that proves a promise cites its id, such as `B-T5`, and its name says what is promised. For
each of the {count} ids this page has the test that is most about it; `grep -rw B-T5 tests` finds all.
A prefix may precede an id that is unique without it: `batcher/B-T13` is `B-T13`. [How it is
tested](how-it-is-tested.md) describes the tests.
"""


def normal(cited: str) -> str:
    """The form of an id on the page."""
    part, _, rest = cited.rpartition("/")
    if part and re.match(r"[BGOPQS]-T|I\d", rest):
        return rest
    return f"batcher/{cited}" if re.fullmatch(r"B\d+", cited) else cited


def cited_in(text: str) -> set[str]:
    """The ids in a docstring."""
    return {normal(cited) for cited in CITED.findall(text)}


def page() -> str:
    """The whole page."""
    proofs = _proofs()
    left = sorted(proofs, key=_order)
    text = TOP.format(count=len(left))
    for title, beginning in PARTS.items():
        part = [cited for cited in left if re.match(beginning, cited)]
        left = [cited for cited in left if cited not in part]
        rows = "\n".join(f"- {cited}: `{proofs[cited]}`" for cited in part)
        text += (
            f"\n## {title}\n\n"
            f'<details markdown="1"><summary>{len(part)} ids</summary>\n\n{rows}\n\n</details>\n'
        )
    return text


def _proofs() -> dict[str, str]:
    best: dict[str, tuple[int, str]] = {}
    for path in sorted(Path(ROOT, "tests").rglob("*.py")):
        if path.parent != Path(__file__).parent:
            for name, ids in _citing(ast.parse(path.read_text(encoding="utf-8"))):
                place = path.relative_to(ROOT).as_posix() + name
                rank = len(ids) if name else 1_000  # a module only if no test in any cites the id
                for cited in ids:
                    best[cited] = min(best.get(cited, (rank, place)), (rank, place))
    return {cited: place for cited, (_, place) in best.items()}


def _citing(module: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """The docstrings, those of modules, helpers and constants without a name."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("test_"):
                yield f"::{node.name}", cited_in(ast.get_docstring(node) or "")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield "", cited_in(str(node.value.value))


def _order(cited: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", cited)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
