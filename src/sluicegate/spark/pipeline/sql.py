"""The inputs and columns of a step's SQL, parsed without Spark by sqlglot if installed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True, slots=True)
class Reading:
    """The properties of one step's SELECT."""

    views: tuple[str, ...] = ()
    """The unqualified names of the views that it reads."""
    columns: tuple[str, ...] | None = None
    """The columns of the result; `None` if it has a star."""
    fault: str = ""
    """The reason why the SQL is not one SELECT."""


def can_read() -> bool:
    """Return whether sqlglot is installed."""
    return find_spec("sqlglot") is not None


def read_select(sql: str) -> Reading:
    """Read one SELECT; needs sqlglot."""
    from sqlglot import exp, parse
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.scope import traverse_scope

    try:
        statements = [
            statement for statement in parse(sql, dialect="spark") if statement is not None
        ]
        if len(statements) != 1 or not isinstance(statements[0], exp.Query):
            return Reading(
                fault="must be one SELECT, but is "
                f"{_called([type(each).__name__ for each in statements])}"
            )
        query = statements[0]
        tables = [
            table
            for scope in traverse_scope(query)
            for table in scope.sources.values()
            if isinstance(table, exp.Table)
        ]
    except SqlglotError as error:
        return Reading(
            fault=f"cannot be read as SQL: {str(error).splitlines()[0]} (if Spark accepts "
            "it anyway, set unchecked = true)"
        )
    names = dict.fromkeys(table.name for table in tables if table.name and not table.db)
    return Reading(tuple(names), None if query.is_star else tuple(query.named_selects))


def _called(kinds: list[str]) -> str:
    return {0: "empty", 1: f"another kind of statement ({''.join(kinds).upper()})"}.get(
        len(kinds), f"{len(kinds)} statements"
    )
