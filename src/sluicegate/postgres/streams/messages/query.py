"""A statement for every driver.

1. Placeholders differ by driver, so a statement is created from a template for each: `$1`
   (asyncpg), `%s` (psycopg) and `:p1` (SQLAlchemy, with any driver).
2. Parameters and results have types that all drivers and codecs convert in the same way: text,
   whole numbers and booleans. Times are microseconds since the epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...client.names import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable



class Query(NamedTuple):
    """A statement about the log in a schema.

    In the template, `{schema}` is the schema, and `{0}` and so on are the values, each once and in
    order.
    """

    schema: str
    template: str
    values: tuple[Value, ...] = ()

    @property
    def numbered(self) -> str:
        """The statement with `$1`."""
        return self._with((f"${number}" for number in range(1, len(self.values) + 1)), self._name)

    @property
    def formatted(self) -> str:
        """The statement with `%s`."""
        return self._with(("%s" for _ in self.values), self._name.replace("%", "%%"))

    @property
    def named(self) -> str:
        """The statement with `:p1`."""
        return self._with(
            (f":{name}" for name in self.named_values), self._name.replace(":", "\\:")
        )

    @property
    def named_values(self) -> dict[str, Value]:
        """The parameters of `named`."""
        return {f"p{number}": value for number, value in enumerate(self.values, 1)}

    @property
    def _name(self) -> str:
        return quoted(self.schema)

    def _with(self, places: Iterable[str], schema: str) -> str:
        return self.template.format(*places, schema=schema)
