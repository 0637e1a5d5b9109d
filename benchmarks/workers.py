"""Processes that run workloads: one per version of the library and interpreter.

A process lives for all rounds, so that it measures a warm program, and takes a turn on request, so
that several processes can be interleaved.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .harness import CaseUnavailableError
from .stopwatch import Took

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"


class WorkloadRefusedError(Exception):
    """A workload cannot run with this version of the library."""


class Worker:
    """A process with the library in `sources`. Use it in a `with` block.

    `program` is the module of `benchmarks` with its workloads, called with `arguments` and these
    additional variables of the environment.
    """

    def __init__(
        self,
        sources: Path,
        *,
        executable: str = sys.executable,
        program: str = "programs.workload",
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._opened = contextlib.ExitStack()
        folder = Path(self._opened.enter_context(tempfile.TemporaryDirectory()))
        self._complaints = folder / "stderr"
        with self._complaints.open("w") as stderr:
            self._process = subprocess.Popen(
                [executable, "-m", f"benchmarks.{program}", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=folder,
                env=_environment(sources, folder) | dict(environment or {}),
                text=True,
            )
        self._opened.enter_context(self._process)
        try:
            library = Path(self._read()["library"])
            if not library.is_relative_to(sources.resolve()):
                raise CaseUnavailableError(f"measures {library}, which is not in {sources}")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._opened.close()

    def turn(self, name: str, share: float = 1.0) -> tuple[Took, int]:
        """Take a turn of the workload; return its times and number of items. Raises
        `WorkloadRefusedError` if the library cannot run it.
        """
        if self._process.stdin is None:
            raise AssertionError("the process was started with a pipe")
        with contextlib.suppress(BrokenPipeError):  # the next read gives the reason
            self._process.stdin.write(json.dumps({"name": name, "share": share}) + "\n")
            self._process.stdin.flush()
        answer = self._read()
        if "refused" in answer:
            raise WorkloadRefusedError(answer["refused"])
        return Took(answer["wall"], answer["processor"]), answer["items"]

    def _read(self) -> dict[str, Any]:
        line = "" if self._process.stdout is None else self._process.stdout.readline()
        if not line:
            said = self._complaints.read_text().strip()[-2000:]
            raise CaseUnavailableError(f"a worker ended: {said}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _environment(sources: Path, folder: Path) -> dict[str, str]:
    """Build the environment: the library, these workloads, and the pure Python packages that the
    library needs, so that one copy serves every interpreter.
    """
    tenacity = importlib.util.find_spec("tenacity")
    if tenacity is None or tenacity.origin is None:
        raise CaseUnavailableError("tenacity is not installed")
    packages = folder / "packages"
    packages.mkdir()
    (packages / "tenacity").symlink_to(Path(tenacity.origin).parent)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (sources.resolve(), ROOT, packages))),
        "PYTHONPYCACHEPREFIX": str(folder / "cache"),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONHASHSEED": "0",
    }
