"""Rows that become tuples only when they must."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...._core.errors import PermanentError
    from ..plan.table import TableColumn

Row = Sequence[Any]


class LazyRows(Sequence[Row], ABC):
    """Rows that are something better than tuples as long as nobody looks at them."""

    @abstractmethod
    def kept(self, places: Sequence[int]) -> LazyRows:
        """Only the rows at these places."""

    @abstractmethod
    def by(self, columns: Sequence[TableColumn]) -> LazyRows:
        """The same rows for columns of the table that have other types."""

    @abstractmethod
    def refused(self) -> dict[int, PermanentError]:
        """The rows that the server would refuse, as far as their values show it, by the types of
        the columns.
        """

    @abstractmethod
    def unreadable(self) -> dict[int, PermanentError]:
        """The rows that tuples cannot be made of."""

    @abstractmethod
    def latest(self, key: Sequence[str], version: str | None) -> LazyRows:
        """Without the rows that a later one of their key (or one of a higher version) replaces;
        they keep their places.
        """

    @abstractmethod
    def tells_apart(self, key: Sequence[str]) -> bool:
        """Whether `latest` leaves one row of a key, and not only one of those that look alike."""

    @abstractmethod
    def place(self, line: int) -> int:
        """The place in the write of the row that is sent as number `line`."""

    @abstractmethod
    def encoded(self, *, places: bool) -> memoryview | None:
        """All rows as binary COPY, with their places in front where asked for; `None` where that
        cannot be had.
        """
