"""The changes of each migration step, as the page shows them. Run as a module, it writes them."""

from __future__ import annotations

import difflib
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
STEPS = ROOT / "examples" / "migration"
DIFFS = ROOT / "docs" / "assets" / "migration"


def diffs() -> dict[str, str]:
    """The text of each file, by name."""
    return {
        f"{new.stem[:7]}.diff": _diff(old.read_text(), new.read_text())
        for old, new in pairwise(sorted(STEPS.glob("step_*.py")))
    }


def _diff(old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=1, lineterm="")
    return "\n".join(line for line in list(lines)[2:]) + "\n"


def main() -> None:
    DIFFS.mkdir(parents=True, exist_ok=True)
    for name, text in diffs().items():
        (DIFFS / name).write_text(text)


if __name__ == "__main__":
    main()
