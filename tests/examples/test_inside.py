"""The page about the internals names files, classes and functions that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING

from tests.examples.example import DOCS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = DOCS / "explanation" / "inside.md"
PACKAGE = ROOT / "src" / "sluicegate"
NAME = re.compile(r"`([A-Za-z_][\w.]*)(?:\(\))?`")


@cache
def names(path: Path) -> frozenset[str]:
    """The qualified names that a file defines."""

    def walk(node: ast.AST, prefix: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{prefix}{child.name}"
                yield from walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.Assign | ast.AnnAssign):
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                for target in targets:
                    yield from (
                        f"{prefix}{each.id}"
                        for each in ast.walk(target)
                        if isinstance(each, ast.Name)
                    )

    return frozenset(walk(ast.parse(path.read_text()), ""))


def rows() -> list[list[str]]:
    """The rows of the page's tables whose first cell is a file."""
    found = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text().splitlines()
        if re.match(r"\| `[\w/]+\.py`", line)
    ]
    assert len(found) > 15, "the tables were not found"
    return found


def test_every_file_and_folder_exists() -> None:
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", PAGE.read_text()))
    missing = [name for name in named if not ((PACKAGE / name).exists() or (ROOT / name).exists())]
    assert missing == []


def test_every_function_of_the_walk_is_in_its_file() -> None:
    """In a table of three columns, the second one names functions of the file in the first."""
    missing = [
        f"{file}: {name}"
        for first, second, *rest in rows()
        if rest
        for file in re.findall(r"`([\w/]+\.py)`", first)
        for name in NAME.findall(second)
        if name not in names(PACKAGE / file)
    ]
    assert missing == []


def test_every_name_with_its_file_in_prose_is_in_that_file() -> None:
    named = re.findall(r"`([A-Za-z_][\w.]*)`\s\(`([\w/]+\.py)`", PAGE.read_text())
    assert len(named) > 8, "the prose was not found"
    assert [each for each in named if each[0] not in names(PACKAGE / each[1])] == []
