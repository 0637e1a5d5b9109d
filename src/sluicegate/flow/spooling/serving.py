"""The socket of a spool's owner, which answers the command line: one request per connection.

1. A socket in the folder, for its user only: `owner.sock`, or that of the only role of the process.
   A lock on the role is held, so a socket of the same name is stale.
2. It is served by a thread, not by the loop: so a busy loop does not delay it, and virtual time
   does not wait for it. The request is answered in the thread of the files.
3. The request is a line of JSON, and the response is JSON up to the end.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Any

from ..._core.logs import for_log, log_safely
from .looks import answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from .running import RunningSpool

logger = logging.getLogger("sluicegate.spool")
NO_SOCKET = "a path of more than 107 bytes, or a file system without sockets"
_UNSERVED = (
    "%s: `sluicegate spool` cannot read it while it is open, since its socket cannot be created (%s; "
    f"usually {NO_SOCKET})"
)
_MOST_REQUEST = 1 << 16
_PATIENCE = 10.0
"""Seconds for one step of a connection."""


class OwnerSocket:
    """Answers requests about an open spool until it is closed."""

    def __init__(self, running: RunningSpool, roles: Sequence[str]) -> None:
        self._running = running
        self._roles = roles
        self.path = running.store.folder / f"{roles[0] if len(roles) == 1 else 'owner'}.sock"
        self._removed = self.path.absolute()  # the process may change its folder
        self._wake, self._woken = socket.socketpair()
        self._process = os.getpid()

    def open(self) -> None:
        """Begin to answer. Logs a WARNING if the socket cannot be created."""
        server = socket.socket(socket.AF_UNIX)
        try:
            self.path.unlink(missing_ok=True)
            server.bind(str(self.path))
            self.path.chmod(0o600)  # before anything can connect
            server.listen()
        except OSError as error:
            server.close()
            self._woken.close()
            folder = self._running.store.folder
            log_safely(logger, logging.WARNING, _UNSERVED, folder, for_log(error))
            return
        name = "sluicegate-spool-owner"
        threading.Thread(target=self._serve, args=(server,), name=name, daemon=True).start()

    def _serve(self, server: socket.socket) -> None:
        with server, self._woken, DefaultSelector() as selector:
            selector.register(server, EVENT_READ)
            selector.register(self._woken, EVENT_READ)
            while not any(key.fileobj is self._woken for key, _ in selector.select()):
                with suppress(OSError), server.accept()[0] as connection:
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(_PATIENCE)
        try:
            with connection.makefile("rb") as lines:
                request = json.loads(lines.readline(_MOST_REQUEST))
            told = self._running.in_thread(answer, self._running.store, self._roles, request)
        except Exception as error:
            told = {"error": for_log(error)}
        connection.sendall(json.dumps(told).encode())

    def close(self) -> None:
        """Stop answering, and remove the socket."""
        if self._process == os.getpid():
            with suppress(OSError):
                self._removed.unlink(missing_ok=True)
                self._wake.shutdown(socket.SHUT_RDWR)  # a forked child may have it open too
        self._wake.close()


def ask(path: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the owner of a spool. Raises `OSError` if no process answers at this path."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as told:
            try:
                found: dict[str, Any] = json.loads(told.read())
            except ValueError:
                return {"error": "it has just ended"}
    return found
