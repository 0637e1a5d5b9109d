"""The compared consumers, and how each is started.

A peer has its own environment under `PEERS` (default `/tmp/peers`), see README.md. A missing one is
skipped.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
PEERS = Path(os.environ.get("PEERS", "/tmp/peers"))  # a folder of the user


@dataclass(frozen=True)
class Peer:
    """A consumer, and how to start it."""

    name: str
    command: tuple[str, ...]
    needs: Path
    env: Mapping[str, str] = field(default_factory=dict)


def _python(name: str, venv: str, *arguments: str, **env: str) -> Peer:
    python = Path(sys.executable) if venv == "sluicegate" else PEERS / venv / "bin" / "python"
    command = (str(python), "-m", f"benchmarks.compared.with_{venv}", *arguments)
    path = f"{ROOT}:{ROOT / 'src'}" if venv == "sluicegate" else str(ROOT)
    return Peer(name, command, python, {"PYTHONPATH": path, **env})


_FAUST = ("worker", "-l", "warn", "--without-web")
_JAVA = PEERS / "java"
ALL = (
    _python("Sluicegate", "sluicegate"),
    _python("Sluicegate skip", "sluicegate", POISON="skip"),
    _python("aiokafka", "aiokafka", CONCURRENCY="1"),
    _python("FastStream", "faststream"),
    _python("FastStream NACK", "faststream", POLICY="NACK_ON_ERROR"),
    _python("Faust", "faust", *_FAUST),
    _python("Faust strict", "faust", *_FAUST, CONCURRENCY="1", ACK_EXCEPTIONS="0"),
    Peer(
        "parallel-consumer",
        ("java", "-Xmx256m", "-cp", f"{_JAVA}/lib/*:{_JAVA}/classes", "WithParallelConsumer"),
        _JAVA / "classes",
    ),
)
