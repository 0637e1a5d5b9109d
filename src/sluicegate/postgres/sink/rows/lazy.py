"""Rows that become tuples only when necessary."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...._core.errors import PermanentError
    from ..plan.table import TableColumn

Row = Sequence[Any]


class LazyRows(Sequence[Row], ABC):
    """Rows in a more efficient form than tuples, until a row is read."""

    @abstractmethod
    def kept(self, places: Sequence[int]) -> LazyRows:
        """Keep only the rows at these places."""

    @abstractmethod
    def by(self, columns: Sequence[TableColumn]) -> LazyRows:
        """Fit the same rows to columns of other types."""

    @abstractmethod
    def refused(self) -> dict[int, PermanentError]:
        """The rows that the server would refuse, as far as that is visible in their values and
        types.
        """

    @abstractmethod
    def unreadable(self) -> dict[int, PermanentError]:
        """The rows that cannot become tuples."""

    @abstractmethod
    def nulls(self, name: str) -> Sequence[int]:
        """The places of the rows with NULL in this column."""

    @abstractmethod
    def latest(self, key: Sequence[str], version: str | None) -> LazyRows:
        """Drop rows that a later row with the same key, or one with a higher version, replaces.

        The others keep their places.
        """

    @abstractmethod
    def tells_apart(self, key: Sequence[str], version: str | None) -> bool:
        """Whether `latest` also leaves one row per key from the server's view."""

    @abstractmethod
    def place(self, line: int) -> int:
        """The place in the write of the row sent as number `line`."""

    @abstractmethod
    def encoded(self, *, places: bool) -> Iterator[memoryview] | None:
        """All rows as pieces of binary COPY, optionally with their places in front.

        `None` if impossible.
        """
