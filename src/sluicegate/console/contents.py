"""What a console shows: the parts of this process, a database, stores and spools."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, TypeVar, cast

from .._core.checks import bad
from ..batcher.batcher import Batcher
from ..batcher.blocking import BlockingBatcher
from ..consumer.operated import Operated
from ..postgres.client.access import PostgresAccess, need_asyncpg
from ..postgres.schema.opened import check_schema_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from .stores import LetterStore

Part: TypeAlias = "Operated | Batcher[Any] | BlockingBatcher[Any]"
AdminT = TypeVar("AdminT", bound=AbstractAsyncContextManager[Any])

READS_WITHIN, CHANGES_WITHIN = 5.0, 60.0
"""Default statement timeouts in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a console shows, and whether it may change it."""

    given: Sequence[object]
    """Parts, and functions that return parts. Raises `ConfigError` for anything else."""
    database: Database | None
    letters: Mapping[str, LetterStore]
    spools: Mapping[str, Path]
    read_only: bool

    def __post_init__(self) -> None:
        for each in self.given:
            if not (_is_part(each) or callable(each)):
                rule = "must be consumers, pipes and batchers, or a function of none"
                raise bad("parts", each, rule)

    @property
    def parts(self) -> dict[str, Part]:
        """The parts by name; a name that is taken gets a number."""
        found: dict[str, Part] = {}
        for given in self.given:
            parts = [given] if _is_part(given) else cast("Callable[[], Any]", given)()
            for each in filter(_is_part, parts):
                name, number = each.name, 1
                while name in found:
                    name, number = f"{each.name} ({number + 1})", number + 1
                found[name] = each
        return found


def _is_part(part: object) -> TypeGuard[Part]:
    return isinstance(part, (Operated, Batcher, BlockingBatcher))


class Database:
    """The objects that read and change a schema, opened when they are first needed."""

    def __init__(self, access: str | PostgresAccess, schema: str) -> None:
        need_asyncpg()
        self._access = access if isinstance(access, PostgresAccess) else PostgresAccess(access)
        self.schema = check_schema_name(schema)
        self._opened: dict[tuple[object, bool], Any] = {}
        self._stack = AsyncExitStack()
        self._lock = asyncio.Lock()

    @property
    def place(self) -> str:
        """Host and database."""
        return self._access.place

    async def admin(self, kind: Callable[..., AdminT], *, changes: bool = False) -> AdminT:
        """Return an open object of a class such as `QueueAdmin`: one for reading, and one for
        changes, whose statements may take longer. Raises the errors of opening it.
        """
        async with self._lock:
            if (kind, changes) not in self._opened:
                within = CHANGES_WITHIN if changes else READS_WITHIN
                made = kind(self._with_timeout(within), schema=self.schema)
                self._opened[kind, changes] = await self._stack.enter_async_context(made)
            found: AdminT = self._opened[kind, changes]
            return found

    def _with_timeout(self, seconds: float) -> PostgresAccess:
        if self._access.pool is not None or self._access.statement_timeout is not None:
            return self._access
        return replace(self._access, statement_timeout=seconds)

    async def close(self) -> None:
        """Close them."""
        async with self._lock:
            self._opened.clear()
            stack, self._stack = self._stack, AsyncExitStack()
            await stack.aclose()
