"""A connection that a handler may use while it runs, inside the flow's transaction."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from ..._core.errors import ClosedError
from ..._core.positions import not_its_to_end

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

_WITH_TEXT = frozenset(
    {"cursor", "execute", "executemany", "fetch", "fetchrow", "fetchval", "prepare"}
)
_ENDS_IT = frozenset({"close", "reset", "terminate"})
_CONTROL = re.compile(
    r"\s*(commit|end|rollback|abort|begin|start\s+transaction|prepare\s+transaction)\b"
    r"(?!\s+((work|transaction)\s+)?to\b)",
    re.IGNORECASE,
)
"""Statements that begin or end a transaction; a rollback to a savepoint is excluded."""


class LentConnection:
    """An asyncpg connection, valid until `end`. Looks like a pool's, even to `isinstance`."""

    def __init__(self, con: PoolConnectionProxy[Any]) -> None:
        self._con = con
        self._is_over = False

    def end(self) -> None:
        """Refuse further use."""
        self._is_over = True

    @property  # type: ignore[misc]  # looks like a connection of the pool
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride,reportIncompatibleMethodOverride]
        return type(self._con)

    def __getattr__(self, name: str) -> Any:
        if self._is_over:
            raise ClosedError(
                f"message.connection.{name}: the handler has ended, and its connection is used for "
                "other messages; use your own connection"
            )
        if name in _ENDS_IT:
            raise not_its_to_end(f"{name}()")
        attribute = getattr(self._con, name)
        return partial(_checked, attribute) if name in _WITH_TEXT else attribute

    def __repr__(self) -> str:
        return f"<{'ended ' if self._is_over else ''}message.connection {self._con!r}>"


def _checked(method: Any, query: Any, *args: Any, **options: Any) -> Any:
    if isinstance(query, str) and (found := _CONTROL.match(query)) is not None:
        raise not_its_to_end(found[1].upper())
    return method(query, *args, **options)
