"""The numbers of batches."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


class Numbers:
    """Counts batches up, over all tenants: a fence stands for a moment, not for a tenant."""

    __slots__ = ("_is_shared", "last")

    def __init__(self) -> None:
        self.last = 0
        """The number that was given last. Items that come now get a later one."""
        self._is_shared = False

    def next(self) -> int:
        """The number of the next batch."""
        if self._is_shared:
            return self.last + 1
        self.last += 1
        return self.last

    @contextmanager
    def shared(self) -> Generator[None]:
        """Give one number to everything that is sealed meanwhile."""
        self._is_shared = True
        try:
            yield
        finally:
            self._is_shared = False
            self.last += 1
