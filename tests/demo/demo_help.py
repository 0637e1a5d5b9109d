"""Runs of the demo as child processes, and the processes and files they leave behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.examples.example import ROOT

if TYPE_CHECKING:
    from pathlib import Path

ENDED_WITHIN = 300
"""Seconds after which a demo hangs."""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a demo that ends by SIGHUP, even if the tests run under `nohup`."""
    command = [sys.executable, "-m", "examples.demo", *arguments]
    environment = {**os.environ, "TMPDIR": str(folder)}
    before = signal.signal(signal.SIGHUP, lambda *_: None)  # a child inherits no handlers
    try:
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGHUP, before)


def signalled(child: subprocess.Popen[str], *signals: signal.Signals, after: str) -> str:
    """Send `signals`, one line of output apart, once `after` matched, to the whole group as a
    terminal does; return the output from then on.
    """
    assert child.stdout is not None
    for line in child.stdout:
        if re.search(after, line):
            break
    for number, sign in enumerate(signals):
        if number:
            next(line for line in child.stdout if "interrupt again to end it now" in line)
        os.killpg(child.pid, sign)
    return child.communicate(timeout=ENDED_WITHIN)[0]


def assert_nothing_is_left(folder: Path) -> None:
    psutil = pytest.importorskip("psutil")
    assert list(folder.glob("sluicegate-*")) == []
    processes = psutil.process_iter(["cmdline"])
    assert not [
        each
        for each in processes
        if any(str(folder) in part for part in each.info["cmdline"] or ())
    ]
