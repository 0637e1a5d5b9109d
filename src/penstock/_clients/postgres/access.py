"""How to connect to PostgreSQL, checked before anything is opened, and shown without secrets."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ..._core import checks
from ..._core.checks import bad
from ..._core.errors import MissingExtra
from ..._core.options import Options
from .dsn import check_dsn, place_of

if TYPE_CHECKING:
    from datetime import timedelta

PoolFactory = Callable[[], object]
POOL_SIZE = 10


def need_asyncpg() -> None:
    """Raise `MissingExtra` unless asyncpg is installed, without loading it."""
    if importlib.util.find_spec("asyncpg") is None:
        raise MissingExtra('pip install "penstock[postgres]"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How connections are made, and how many."""

    dsn: str | None
    pool: PoolFactory | None
    size: int
    options: Options
    statement_timeout: float | None

    @classmethod
    def of(
        cls,
        dsn: str | None,
        pool: PoolFactory | None,
        size: int | None,
        options: Mapping[str, Any] | None,
        timeout: float | timedelta | None,
    ) -> Access:
        """Check the arguments. Raises `ConfigError`, which never shows the DSN."""
        if pool is not None:
            _check_pool(pool, dsn, options, timeout)
        if dsn is not None:
            check_dsn(dsn)
        return cls(
            dsn=dsn,
            pool=pool,
            size=POOL_SIZE if size is None else checks.count("pool_size", size),
            options=_checked(options),
            statement_timeout=checks.optional_seconds(
                "statement_timeout", timeout, usual=checks.LONG_TIMEOUT
            ),
        )

    @property
    def place(self) -> str:
        """Host and database for messages."""
        return "a pool" if self.pool is not None else place_of(self.dsn, self.options)

    @property
    def keeps_codecs(self) -> bool:
        """Whether connections have asyncpg's own codecs: no hook of the user's can change them."""
        return self.pool is None and not {"init", "setup"} & set(self.options)

    def pool_options(self) -> dict[str, Any]:
        """The arguments of `asyncpg.create_pool` besides the DSN."""
        options: dict[str, Any] = {"min_size": 0, "max_size": self.size, **self.options}
        if callable(options.get("ssl")):
            options["ssl"] = options["ssl"]()
        if self.statement_timeout is not None:
            settings = dict(options.get("server_settings") or {})
            options["server_settings"] = {
                "statement_timeout": str(round(self.statement_timeout * 1000)),
                **settings,
            }
        return options

    def __repr__(self) -> str:
        return f"Access({self.place})"


def _check_pool(pool: object, dsn: str | None, options: object, timeout: object) -> None:
    if not callable(pool):
        rule = (
            "must be a function that makes a pool (async or not), since a live pool belongs "
            "to one event loop and cannot be pickled"
        )
        raise bad("pool", type(pool).__name__, rule)
    for name, value in (("dsn", dsn), ("connect_options", options), ("statement_timeout", timeout)):
        if value is not None:
            raise bad(
                name, "...", "must not be given beside pool=, whose function decides how to connect"
            )


def _checked(options: Mapping[str, Any] | None) -> Options:
    if options is not None and not isinstance(cast("object", options), Mapping):
        raise bad(
            "connect_options", type(options).__name__, "must be a mapping of asyncpg's options"
        )
    for name, instead in (("dsn", "dsn"), ("max_size", "pool_size"), ("loop", None)):
        if name in (options or {}):
            raise bad(
                "connect_options",
                name,
                f"is given by {instead}=" if instead else "is the loop that opens the sink",
            )
    return Options(options or {})
