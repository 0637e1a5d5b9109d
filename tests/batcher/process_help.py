"""Programs that tests run in a Python process of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def script(text: str) -> str:
    """Run a program and return its output. Any output on stderr fails the test."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
