"""The page on metrics and traces shows the output of their programs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.examples.example import EXAMPLES, printed_on

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("prometheus_client")


@pytest.mark.parametrize("program", ["watched_by_prometheus", "watched_by_opentelemetry", "traced"])
def test_a_program(program: str) -> None:
    """In a separate process, because registries and providers are global."""
    command = [sys.executable, str(EXAMPLES / f"{program}.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout in printed_on("how-to/watch-with-prometheus.md")
