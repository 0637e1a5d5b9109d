"""Connections to PostgreSQL.

`access` and `dsn` say where and how to connect, `connections` lends connections and `statements`
prepares them, `answers` limits the time for each response, `notifications` listens, `errors` and
`refusals` classify.
"""

from ..._core.public import publish_all
from .access import PostgresAccess

__all__ = ["PostgresAccess"]

publish_all(__name__, "sluicegate.postgres")
