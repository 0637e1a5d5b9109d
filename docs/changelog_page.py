"""Fill the changelog's page: the fragments of `changelog.d`, then the releases of `CHANGELOG.md`."""  # noqa: INP001  # a hook of MkDocs, loaded by its path

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
RELEASES = "<!-- towncrier release notes start -->"
DRAFT = ("build", "--draft", "--version", "Unreleased", "--date", "")


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Called by MkDocs with the text of each page."""
    if page.file.src_uri != "changelog.md":
        return markdown
    return f"{markdown.rstrip()}\n\n{unreleased(ROOT)}\n\n{_released()}"


def unreleased(root: Path) -> str:
    """The fragments of a project, put together by towncrier."""
    # towncrier writes its progress to stderr, and the draft alone to stdout
    ran = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "towncrier", *DRAFT, "--dir", str(root)],
        check=True,
        capture_output=True,
        text=True,
    )
    _, _, changes = ran.stdout.partition("\n### ")
    return f"## Not yet released\n\n### {changes}" if changes else ""


def _released() -> str:
    """The part of the file below towncrier's mark."""
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition(RELEASES)[2].strip()
