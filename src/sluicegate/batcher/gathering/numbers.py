"""Batch numbers, shared by all tenants."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


class Numbers:
    """Ascending batch numbers across all tenants: a fence applies to all of them."""

    __slots__ = ("_is_shared", "last")

    def __init__(self) -> None:
        self.last = 0
        """The last assigned number. Items accepted now get a later one."""
        self._is_shared = False

    def next(self) -> int:
        """Return the number of the next batch."""
        if self._is_shared:
            return self.last + 1
        self.last += 1
        return self.last

    @contextmanager
    def shared(self) -> Generator[None]:
        """Assign one number to all batches sealed inside the context."""
        self._is_shared = True
        try:
            yield
        finally:
            self._is_shared = False
            self.last += 1
