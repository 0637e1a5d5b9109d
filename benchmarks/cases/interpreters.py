"""The ways of adding items under every installed Python, with a process for each turn."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..harness import NS_PER_ITEM, Case, CaseUnavailableError, placed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..harness import Contender, Turn

VERSIONS: tuple[str, ...] = ("3.11", "3.12", "3.13", "3.14")
WAYS = {
    "add": "add",
    "try_add": "try_add",
    "add_many": "add_many, lists of 500",
    "submit": "submit, then gather",
    "eager": "asyncio.Queue, get_nowait first",
    "recipe": "asyncio.Queue + wait_for",
}
SLOW = {"recipe": 5}
"""Divisor of the number of items."""
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0


def interpreters() -> dict[str, str]:
    """Find the Pythons: this one, those on the path and those of pyenv; by version, such as
    `3.12.1`.
    """
    here = ".".join(map(str, sys.version_info[:3]))
    found = {here: sys.executable}
    for version in VERSIONS:
        if here.startswith(f"{version}."):
            continue
        pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        on_path = shutil.which(f"python{version}")
        for candidate in (*map(str, pyenv), *([on_path] if on_path else [])):
            full = _version(candidate)
            if full.startswith(f"{version}."):
                found[full] = candidate
                break
    return dict(sorted(found.items()))


def _version(executable: str) -> str:
    ask = "import sys; print('.'.join(map(str, sys.version_info[:3])))"
    try:
        return subprocess.run(
            [executable, "-c", ask], check=True, capture_output=True, text=True, timeout=PATIENCE
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):  # a shim without its version
        return ""


def _turn(executable: str, way: str, items: int, packages: str) -> Turn:
    command = [executable, "-m", "benchmarks.programs.feed", way, str(items)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT), packages)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def turn() -> float:
        done = subprocess.run(
            command,
            env=environment,
            cwd=packages,
            check=True,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        return float(done.stdout)

    return turn


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    tenacity = importlib.util.find_spec("tenacity")
    if tenacity is None or tenacity.origin is None:
        raise CaseUnavailableError("tenacity is not installed")
    with (
        tempfile.TemporaryDirectory() as packages
    ):  # pure Python, so that one copy serves every version
        Path(packages, "tenacity").symlink_to(Path(tenacity.origin).parent)
        contenders: list[Contender] = []
        for way, title in WAYS.items():
            items = max(1, count // SLOW.get(way, 1))
            for version, executable in interpreters().items():
                turn = _turn(executable, way, items, packages)
                contenders.append(placed(f"Python {version}", title, turn, ours=True, items=items))
        yield contenders


CASE = Case(
    name="interpreters",
    title="Accept items and drain them in batches of 500, by Python",
    prepare=prepare,
    items=200_000,
    quick_items=1_000,
    unit=NS_PER_ITEM,
    peers=(f"Python {'.'.join(map(str, sys.version_info[:3]))}",),
    along="",
)
