"""A PostgreSQL server whose wall clock the test moves, by libfaketime from Debian's package."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.debian_packages import unpacked

from sluicegate.testing import embedded_postgres
from sluicegate.testing.servers.program import GuardedFolder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sluicegate.testing import EmbeddedPostgres


class MovedClock:
    """The offset of a wall clock; the monotonic clock stays."""

    def __init__(self) -> None:
        packages = unpacked("faketime", ["libfaketime", "faketime"], [], "usr/bin/faketime")
        self.folder = GuardedFolder("sluicegate-clock-")
        self.folder.path.chmod(0o755)  # the server's user may be another one
        (library,) = packages.glob("usr/lib/*/faketime/libfaketime.so.1")
        self._library = str(shutil.copy(library, self.folder.path))
        self._file = self.folder.path / "offset"
        self.move(0)

    def move(self, hours: float) -> None:
        """Set the clock to so many hours ahead of the true time."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{hours * 3600:+.0f}\n")
        new.chmod(0o644)
        new.replace(self._file)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a program with this clock."""
        return {
            "LD_PRELOAD": self._library,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",  # every call reads the file
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


@contextmanager
def server_with_clock(
    settings: Mapping[str, str],
) -> Iterator[tuple[EmbeddedPostgres, MovedClock]]:
    """A server with such a clock."""
    clock = MovedClock()
    try:
        os.environ.update(clock.environment)  # of the programs that are started from here on
        try:
            with embedded_postgres(settings) as server:
                for name in clock.environment:
                    del os.environ[name]
                yield server, clock
        finally:
            for name in clock.environment:
                os.environ.pop(name, None)
    finally:
        clock.folder.remove()
