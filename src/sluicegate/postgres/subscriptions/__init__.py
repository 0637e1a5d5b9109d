"""What consumers store in PostgreSQL beside their messages.

`subscriptions` has the positions and the locks of subscriptions, `advisory` locks without a table,
`parked` parked records, in the schema of streams and queues.
"""

from ..._core.public import publish_all
from .advisory import PostgresAdvisoryLocks
from .parked import PostgresParkStore
from .subscriptions import PostgresSubscriptions

__all__ = ["PostgresAdvisoryLocks", "PostgresParkStore", "PostgresSubscriptions"]

publish_all(__name__, "sluicegate.postgres")
