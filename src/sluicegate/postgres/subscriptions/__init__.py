"""The data that consumers store in PostgreSQL besides their messages.

`subscriptions` has the positions and the locks of subscriptions, `advisory` locks without a table,
`parked` parked records and `park_admin` their lists, in the schema of streams and queues.
"""

from ..._core.public import publish_all
from .advisory import PostgresAdvisoryLocks
from .park_admin import ParkAdmin
from .parked import PostgresParkStore
from .subscriptions import PostgresSubscriptions

__all__ = ["ParkAdmin", "PostgresAdvisoryLocks", "PostgresParkStore", "PostgresSubscriptions"]

publish_all(__name__, "sluicegate.postgres")
