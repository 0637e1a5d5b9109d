"""Fixtures for the tests of telemetry."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.postgres.streams.log_pool import log

from sluicegate.testing.servers.require import skip_or_fail

__all__ = ["log", "promtool"]


@pytest.fixture(scope="session")
def promtool() -> str:
    """Prometheus's own checker: from the path, or unpacked from Debian's package."""
    found = shutil.which("promtool")
    if found is not None:
        return found
    folder = (
        Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sluicegate" / "prometheus"
    )
    tool = folder / "usr" / "bin" / "promtool"
    if not tool.exists():
        if shutil.which("apt-get") is None:
            skip_or_fail(
                "promtool",
                "promtool is not on the path, and there is no apt-get to get Debian's package with",
            )
        folder.mkdir(parents=True, exist_ok=True)
        for command in (
            ["apt-get", "download", "prometheus"],
            ["apt-get", "update"],
            ["apt-get", "download", "prometheus"],
        ):
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, check=False, timeout=120
            )
            packages = [*folder.glob("prometheus_*.deb")]
            if packages:
                break
        else:
            skip_or_fail(
                "promtool",
                f"Debian's package prometheus cannot be had: {done.stderr.strip()[-200:]}",
            )
        subprocess.run(["dpkg-deb", "-x", str(packages[0]), str(folder)], check=True, timeout=120)
    return str(tool)
