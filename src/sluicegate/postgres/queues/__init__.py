"""Queues in PostgreSQL: creation, operation of keys, jobs and routing, and monitoring.

The SQL functions are in `schema/migrations/0002_queues.sql`: they lease, settle and end the lanes of
keys. `sink` and `enqueue` insert jobs; `source` fetches them: `leasing` and `leases` claim lanes,
`serving` is the open source, `routing` and `ring` give ranges of keys to processes. `firing` enqueues
the jobs of schedules, at their `ticks`, by the functions of `0003_schedules.sql`. `admin`, `contents`,
`schedules`, `settings`, `queries`, `report`, `stats` and `monitor` are for operators.
"""

from ..._core.public import publish_all
from ..records.monitor import QueueObserver
from .admin import QueueAdmin
from .monitor import QueueMonitor
from .sink import PostgresQueueSink
from .source import PostgresQueueSource

__all__ = [
    "PostgresQueueSink",
    "PostgresQueueSource",
    "QueueAdmin",
    "QueueMonitor",
    "QueueObserver",
]

publish_all(__name__, "sluicegate.postgres")
