"""The parked items of a spool as dead letters: to list and to show. Blocks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ...letters.items import MARKED, PLAIN
from ...letters.letter import Letter
from ...letters.store import NotedStore, StoreError
from ..console import UseError
from .view import check_folder, viewed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from ...letters.letter import Selection

_REFUSED = "the items of a spool are sent by the spool itself: `sluicegate spool replay {}` moves its parked items there"  # fmt: skip


def is_spool(path: Path) -> bool:
    """Return whether it is the folder of a spool."""
    try:
        check_folder(path)
    except UseError:
        return False
    return path.is_dir()


class SpoolStore(NotedStore):
    """The parked items of a spool, open or closed. Each has its offset as its letter's key."""

    _unit = "item"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    async def letters(self, selection: Selection) -> AsyncGenerator[Letter]:
        """See `Store`."""
        self.unreadable.clear()
        with viewed(self._path) as view:
            for item in view.items(parked=True, show="all"):
                letter = self._letter(item)
                if selection.has(letter):
                    yield letter
            for name, why in view.unreadable.items():
                self.unreadable.add(name, why)

    def _letter(self, item: dict[str, Any]) -> Letter:
        at = datetime.fromtimestamp(item["at"] / 1000, UTC)
        is_json = "value" in item
        return Letter(
            key=str(item["offset"]),
            item=item["value"] if is_json else {"$base64": item["base64"]},
            first_at=at,
            last_at=at,
            error_type=item.get("error_type", ""),
            message=item.get("message", ""),
            attempts=item.get("attempts", 0),
            item_form=PLAIN if is_json and "marked" not in item else MARKED,
        )

    async def hold(self) -> None:
        """Refuse: see `sluicegate spool replay`."""
        raise StoreError(_REFUSED.format(self._path))

    async def purge(self, selection: Selection) -> int:
        """Refuse: see `sluicegate spool replay`."""
        raise StoreError(_REFUSED.format(self._path))

    async def _store_note(self, content: bytes) -> None:
        raise StoreError(_REFUSED.format(self._path))
