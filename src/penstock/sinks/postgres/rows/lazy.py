"""Rows that become tuples only when they must."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...._core.errors import PermanentError
    from ..plan.table import TableColumn

Row = Sequence[Any]


class LazyRows(Sequence[Row], ABC):
    """Rows in a form better than tuples, as long as no row is read."""

    @abstractmethod
    def kept(self, places: Sequence[int]) -> LazyRows:
        """Keep only the rows at these places."""

    @abstractmethod
    def by(self, columns: Sequence[TableColumn]) -> LazyRows:
        """Fit the same rows to columns of other types."""

    @abstractmethod
    def refused(self) -> dict[int, PermanentError]:
        """The rows that the server would refuse, as far as their values and the types show it."""

    @abstractmethod
    def unreadable(self) -> dict[int, PermanentError]:
        """The rows that cannot become tuples."""

    @abstractmethod
    def latest(self, key: Sequence[str], version: str | None) -> LazyRows:
        """Leave out rows that a later one of their key, or one of a higher version, replaces.

        The others keep their places.
        """

    @abstractmethod
    def tells_apart(self, key: Sequence[str]) -> bool:
        """Whether `latest` leaves one row per key for the server, too."""

    @abstractmethod
    def place(self, line: int) -> int:
        """The place in the write of the row sent as number `line`."""

    @abstractmethod
    def encoded(self, *, places: bool) -> Iterator[memoryview] | None:
        """All rows as pieces of binary COPY, optionally with their places in front.

        `None` if impossible.
        """
