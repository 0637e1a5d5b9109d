"""The validated arguments of a `PostgresSink`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..._core import checks
from ..._core.checks import bad
from ..._core.errors import ConfigError
from ..._core.sink import Capabilities

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._core.values.rows import RowFunction
    from ..client.access import Access
    from .plan.target import Target
    from .transactions.ledger import UnitLedger
    from .transactions.positions import PositionTable

InitT = TypeVar("InitT", bound="Callable[..., None]")


def names_its_table(init: InitT) -> InitT:
    """Raise `ConfigError`, instead of Python's `TypeError`, if the destination is not named."""

    @wraps(init)
    def checked(*args: Any, **options: Any) -> None:
        missing = [f"{name}=" for name in ("table", "columns") if name not in options]
        if missing:
            raise ConfigError(
                f"{' and '.join(missing)} must be given: a PostgresSink writes to one table, named "
                "by table=, and into the columns named by columns=, such as "
                'PostgresSink(dsn, table="orders", columns=("id", "amount"))'
            )
        init(*args, **options)

    return cast("InitT", checked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of an open sink. Raises `ConfigError`."""

    target: Target
    access: Access
    row: RowFunction | None
    close_timeout: float
    ledger: UnitLedger
    positions: PositionTable
    stages: str

    def __post_init__(self) -> None:
        if self.row is not None and not callable(self.row):
            rule = "must be a function of an item that returns a sequence of values"
            raise bad("row", self.row, rule)
        checks.choice("stages", self.stages, ("logged", "unlogged"))

    @property
    def capabilities(self) -> Capabilities:
        """As many concurrent writes as connections; idempotent unless a conflict is an error."""
        return Capabilities(
            key_prefix_safe=True,
            idempotent=self.target.mode != "error",
            transactional=True,
            columnar=True,
            max_concurrency=self.access.size,
        )

    def __repr__(self) -> str:
        return (
            f"PostgresSink({self.access.place}, table={self.target.shown!r}, "
            f"on_conflict={self.target.mode!r})"
        )
