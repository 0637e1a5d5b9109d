"""The gRPC service and its client, in a process of their own: gRPC has one poller for all event loops
of a process, which may stop after other tests.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc_tools")
pytest.importorskip("grpc_status")

CASES = Path(__file__).with_name("grpc_ingest_cases.py")


@pytest.mark.timeout(600)
def test_the_service_and_its_client() -> None:
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        str(CASES),
    )
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stdout
