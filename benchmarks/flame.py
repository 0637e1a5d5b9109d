"""The hot path under py-spy, as a flame graph."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from .harness import CaseUnavailableError
from .pages import ROOT, place_of
from .programs import hot_path

NAME = "flame"
QUICK_ITEMS = hot_path.ROUND
ITEMS = 100 * QUICK_ITEMS
TARGET = ROOT / place_of(NAME)
RATE = 250
"""Samples per second. More samples would slow down the profiled program."""
PATIENCE = 300.0


def draw(target: Path, items: int = ITEMS) -> str:
    """Profile the hot path, write the graph, and return the number of samples. Raises
    `CaseUnavailableError` if that is not possible.
    """
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if spy is None:
        raise CaseUnavailableError("py-spy is not installed")
    program = [sys.executable, "-m", "benchmarks.programs.hot_path", str(items)]
    options = ["--rate", str(RATE), "--function", "--format", "flamegraph", "--output", str(target)]
    done = subprocess.run(
        [spy, "record", *options, "--", *program],
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    samples = re.search(r"Samples: (\d+)", done.stdout + done.stderr)
    if (
        done.returncode or samples is None or not target.exists()
    ):  # it lacks the permission to read another process
        raise CaseUnavailableError(f"py-spy: {(done.stderr or done.stdout).strip()}")
    picture = re.sub(
        r'(id="title"[^>]*>)[^<]*',
        r"\1Accepting items and draining them",
        target.read_text(encoding="utf-8"),
    )
    target.write_text(
        picture, encoding="utf-8"
    )  # py-spy adds its command line, with the paths of this machine
    return f"{int(samples[1]):,} samples, {RATE} a second"
