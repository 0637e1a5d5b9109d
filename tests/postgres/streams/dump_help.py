"""Dumps of a schema, restored into other databases."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from tests.postgres.streams.log_help import Log

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import EmbeddedPostgres


class Dumps:
    """Dumps of one log, restored into new databases."""

    def __init__(self, server: EmbeddedPostgres, log: Log, folder: Path) -> None:
        self._server = server
        self._log = log
        self._file = folder / "dump"

    async def dump(self, *options: str) -> None:
        dump = ("-Fc", "-n", self._log.schema, "-f", str(self._file), *options)
        await asyncio.to_thread(self._run, "pg_dump", *dump, self._log.dsn)

    async def database(self, name: str) -> Log:
        async with self._log.connected() as con:
            await con.execute(f"CREATE DATABASE {self._log.schema}_{name}")
        path = f"{self._log.schema}_{name}"
        return Log(urlunsplit(urlsplit(self._log.dsn)._replace(path=path)), self._log.schema)

    async def restore(self, target: Log, *options: str) -> None:
        given = ("-d", target.dsn, "--exit-on-error", *options)
        await asyncio.to_thread(self._run, "pg_restore", *given, str(self._file))

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._server._binaries / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
