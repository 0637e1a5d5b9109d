"""Options of `format("sluicegate")`, and the sink that they describe.

What these options need of a technology, by name.
"""

from typing import TYPE_CHECKING

from ..._core.public import later

if TYPE_CHECKING:
    from ...postgres.client.access import PostgresAccess
    from ...postgres.client.dsn import dsn_of
    from ...postgres.client.names import table_name
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "..postgres.client.access": ["PostgresAccess"],
            "..postgres.client.dsn": ["dsn_of"],
            "..postgres.client.names": ["table_name"],
        },
    )

__all__ = ["PostgresAccess", "dsn_of", "table_name"]
