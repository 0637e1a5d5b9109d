"""Writes the programs into the pages that show them, so that the pages read without a build.

A comment above a fenced block names the shown file, or a section of it, or two files whose changes
are shown:

    <!-- program: examples/orders_to_kafka.py:sink -->
    <!-- changes: examples/migration/step_01.py examples/migration/step_02.py -->

A section lies between the lines `--8<-- [start:sink]` and `--8<-- [end:sink]`, which are not shown.
`python -m tests.docs.programs` writes the blocks.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"^<!-- (?P<shown>program|changes): (?P<files>.+) -->\n(?P<fence>```\w+\n)(?:.*\n)*?```$", re.M
)
_COMMENT = re.compile(r"^ *<!-- (?:program|changes):.*$|^ *--8<--.*$", re.M)
_MARK = re.compile(r".*--8<-- \[(?:start|end):.*\n")


def filled(page: str) -> str:
    """The text of a page with its programs. Raises `LookupError` for a missing section, and for a
    comment without a block.
    """
    if alone := _COMMENT.search(BLOCK.sub("", page)):
        raise LookupError(
            f"{alone[0].strip()} must be followed by a fenced block with its language"
        )
    return BLOCK.sub(_block, page)


def _block(found: re.Match[str]) -> str:
    shown, files = found["shown"], found["files"]
    text = _program(files) if shown == "program" else _changes(*files.split())
    if "```" in text:
        raise ValueError(f"{files} has ```, which would end its block")
    return f"<!-- {shown}: {files} -->\n{found['fence']}{text.rstrip()}\n```"


def _program(name: str) -> str:
    path, _, section = name.partition(":")
    text = (ROOT / path).read_text(encoding="utf-8")
    if section:
        start, end = (rf".*--8<-- \[{edge}:{section}\].*" for edge in ("start", "end"))
        sections = re.findall(rf"{start}\n((?:.*\n)*?){end}", text)
        if len(sections) != 1:
            raise LookupError(f"{path} must have one section {section!r}, not {len(sections)}")
        text = textwrap.dedent(sections[0])
    return _MARK.sub("", text)


def _changes(old: str, new: str) -> str:
    before, after = (_program(name).splitlines(keepends=True) for name in (old, new))
    return "".join([*difflib.unified_diff(before, after, n=1)][2:])


def main() -> None:
    for path in sorted(DOCS.rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        path.write_text(filled(page), encoding="utf-8")


if __name__ == "__main__":
    main()
