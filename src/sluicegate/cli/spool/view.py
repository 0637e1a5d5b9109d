"""A view of a spool: the responses of its owners, and the files of the roles that no
process has.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ..._core.logs import for_log
from ...flow.spooling.looks import ROLES, DeadStore, answer
from ...flow.spooling.owner import owner_of
from ...flow.spooling.parked import NAME
from ...flow.spooling.segment import DAMAGED
from ...flow.spooling.serving import NO_SOCKET, ask
from ..console import UseError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from pathlib import Path

_MOST = 1000


def check_folder(folder: Path) -> None:
    """Raise `UseError` if the folder is not that of a spool."""
    names = (f"{'[0-9]' * 20}*.db", NAME, *(f"{role}.lock" for role in ROLES))
    if not any(any(folder.glob(name)) for name in names):
        raise UseError(f"{folder}: there is no spool in this folder")


@contextmanager
def viewed(folder: Path) -> Generator[View]:
    """View a spool. Raises `UseError` if an owner does not answer, or appears meanwhile."""
    check_folder(folder)
    owners = {role: owner_of(folder, role) for role in ROLES}
    sockets = {_socket(folder, role, owner): None for role, owner in owners.items() if owner}
    parts = [partial(_answer, path) for path in sockets]
    dead = [role for role, owner in owners.items() if owner is None]
    if not dead:
        yield View(folder, owners, parts)
        return
    store = DeadStore(folder, dead)
    try:
        store.open()
        yield View(folder, owners, [*parts, partial(answer, store, dead)])
    finally:
        store.close()
        if any(owner_of(folder, role) is not None for role in dead):
            raise UseError(f"{folder}: a process has opened the spool meanwhile; run this again")


def _socket(folder: Path, role: str, owner: int) -> Path:
    for name in (role, "owner"):
        path = folder / f"{name}.sock"
        try:
            if role in ask(path, {}).get("roles", ()):
                return path
        except OSError:
            pass  # there is none, or it is left over
    raise UseError(
        f"{folder} is open in process {owner}, which does not answer: it is starting, stopping or "
        f"stopped, belongs to another user, or has no socket ({NO_SOCKET})"
    )


def _answer(path: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = ask(path, request)
    except OSError as error:
        found = {"error": for_log(error)}
    if "error" in found:
        raise UseError(f"{path}: the owner of the spool cannot answer: {found['error']}")
    return found


class View:
    """What is known of an open or a closed spool."""

    def __init__(
        self,
        folder: Path,
        owners: Mapping[str, int | None],
        parts: Sequence[Callable[[Mapping[str, Any]], dict[str, Any]]],
    ) -> None:
        self._folder = folder
        self._owners = owners
        self._parts = parts
        """The writer first: a file that it seals meanwhile is then with the sender."""
        self.unreadable: dict[str, str] = {}
        """The names of the files that could not be read, and why."""

    def _ask(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        found = [part(request) for part in self._parts]
        for part in found:
            self.unreadable.update(part["unreadable"])
        return found

    def numbers(self) -> dict[str, Any]:
        """Return the numbers of the spool."""
        found = self._ask({"numbers": True})
        by_first = {file["first"]: file for part in found for file in part["files"]}
        files = [by_first[first] for first in sorted(by_first)]
        return {
            "items": sum(file["unsettled"] for file in files),
            "bytes": sum(file["bytes"] for file in files),
            "oldest_at": min((part["oldest_at"] or math.inf for part in found), default=math.inf),
            "parked": sum(part["parked"] for part in found),
            "interrupted_batches": sum(file["interrupted_batches"] for file in files),
            "owner": self._owners,
            "files": files,
            "damaged": sorted(path.name for path in self._folder.glob(f"*{DAMAGED}")),
            "unreadable": self.unreadable,
        }

    def items(self, *, parked: bool, first: int = 0, show: str = "none") -> Iterator[Any]:
        """Yield unsettled or parked items, from an offset on."""
        at: float = first
        while at < math.inf:
            page = {"first": at, "most": _MOST, "parked": parked, "show": show}
            found = self._ask({"page": page})
            at = min((part["next"] for part in found if part["next"] is not None), default=math.inf)
            items = {item["offset"]: item for part in found for item in part["items"]}
            yield from (items[offset] for offset in sorted(items) if offset < at)
