"""PostgreSQL: tables, streams, queues, the state of partitions, and their operation.

`client` has the connections and their errors, `copying` the binary form of COPY, `schema` the
tables of streams and queues. `sink` writes to tables, `streams` and `queues` have a sink and a
source each, and `records` the parts that these two share. `state`, `subscriptions` and `letters`
store what consumers need, and `metrics` and `commands` show it.
"""

from typing import TYPE_CHECKING

from .._core.public import later

if TYPE_CHECKING:
    from .client import PostgresAccess
    from .metrics import (
        OpenTelemetryQueueObserver,
        OpenTelemetryStreamObserver,
        PrometheusQueueObserver,
        PrometheusStreamObserver,
    )
    from .queues import (
        PostgresQueueSink,
        PostgresQueueSource,
        QueueAdmin,
        QueueMonitor,
        QueueObserver,
    )
    from .sink import Changes, PostgresEffects, PostgresSink, postgres_columns
    from .state import PostgresState
    from .streams import (
        NO_STREAM,
        NewMessage,
        PostgresStreamSink,
        PostgresStreamSource,
        StreamLog,
        StreamMonitor,
        StreamNotifier,
        StreamObserver,
        StreamReader,
        StreamRetention,
        SubscriptionAdmin,
        SyncStreamReader,
        UndecodableMessage,
        check_streams,
        install_streams,
        upgrade_streams,
    )
    from .subscriptions import (
        ParkAdmin,
        PostgresAdvisoryLocks,
        PostgresParkStore,
        PostgresSubscriptions,
    )
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "client": ["PostgresAccess"],
            "metrics": [
                "OpenTelemetryQueueObserver",
                "OpenTelemetryStreamObserver",
                "PrometheusQueueObserver",
                "PrometheusStreamObserver",
            ],
            "queues": [
                "PostgresQueueSink",
                "PostgresQueueSource",
                "QueueAdmin",
                "QueueMonitor",
                "QueueObserver",
            ],
            "sink": [
                "Changes",
                "PostgresEffects",
                "PostgresSink",
                "postgres_columns",
            ],
            "state": ["PostgresState"],
            "streams": [
                "PostgresStreamSink",
                "PostgresStreamSource",
                "NO_STREAM",
                "NewMessage",
                "StreamLog",
                "StreamMonitor",
                "StreamNotifier",
                "StreamObserver",
                "StreamReader",
                "StreamRetention",
                "SubscriptionAdmin",
                "SyncStreamReader",
                "UndecodableMessage",
                "check_streams",
                "install_streams",
                "upgrade_streams",
            ],
            "subscriptions": [
                "ParkAdmin",
                "PostgresAdvisoryLocks",
                "PostgresParkStore",
                "PostgresSubscriptions",
            ],
        },
    )

__all__ = [
    "NO_STREAM",
    "Changes",
    "NewMessage",
    "OpenTelemetryQueueObserver",
    "OpenTelemetryStreamObserver",
    "ParkAdmin",
    "PostgresAccess",
    "PostgresAdvisoryLocks",
    "PostgresEffects",
    "PostgresParkStore",
    "PostgresQueueSink",
    "PostgresQueueSource",
    "PostgresSink",
    "PostgresState",
    "PostgresStreamSink",
    "PostgresStreamSource",
    "PostgresSubscriptions",
    "PrometheusQueueObserver",
    "PrometheusStreamObserver",
    "QueueAdmin",
    "QueueMonitor",
    "QueueObserver",
    "StreamLog",
    "StreamMonitor",
    "StreamNotifier",
    "StreamObserver",
    "StreamReader",
    "StreamRetention",
    "SubscriptionAdmin",
    "SyncStreamReader",
    "UndecodableMessage",
    "check_streams",
    "install_streams",
    "postgres_columns",
    "upgrade_streams",
]
