"""Starting points: limits for ten kinds of work. Copy the closest one, then measure.

They come from a design with queues; `max_pending_items` is its queue depth + batch size x (1 +
flush queue + workers), here without a flush queue and with the workers given in the limits.
"""

from sluicegate import Limits

# An INSERT of 500 rows has most of the gain, and is far below the parameter limit; an audit log is
# rarely read within a second. Retries must not write a row twice: on_conflict="ignore" on the
# event's id.
AUDIT_LOG = Limits(max_items=500, max_delay=1.0, max_pending_items=2_048 + 500 * 2)

# COPY costs little per row, so its knee is ten times as high.
AUDIT_LOG_BY_COPY = Limits(max_items=5_000, max_delay=1.0, max_pending_items=8_192 + 5_000 * 2)

# UdpSink packs records into datagrams that fit into the network's frame; 50 of them fill one. Old
# metrics are worth little, so the ledger is small; overflow="drop_oldest" fits.
METRICS_BY_UDP = Limits(max_items=50, max_delay=0.1, max_pending_items=256 + 50 * 2)

# A broker takes very large batches, and the traffic fills them: the delay only ends a lull.
CLICKSTREAM = Limits(max_items=10_000, max_delay=0.005, max_pending_items=32_768 + 10_000 * 2)

# Each receiver has its own rate limit: a Router by receiver in the stack, and a RateLimit in each of
# its routes. A batch has a convenient size for one receiver.
WEBHOOKS = Limits(max_items=100, max_delay=0.2, max_pending_items=1_024 + 100 * 2)

# A second lets several notices to one person become one: a Combine by recipient in the stack.
PUSH_NOTIFICATIONS = Limits(max_items=100, max_delay=1.0, max_pending_items=1_024 + 100 * 2)

# Bodies of at most 10 MB: the sink's own max_bytes is the ceiling. Documents become searchable only
# at the next refresh anyway.
SEARCH_INDEX = Limits(max_items=1_000, max_delay=5.0, max_pending_items=4_096 + 1_000 * 2)

# The defaults of tracing SDKs, for which collectors are made.
TRACE_SPANS = Limits(max_items=512, max_delay=5.0, max_pending_items=2_048 + 512 * 2)

# Large batches are the purpose: an hour of events becomes one mail for each reader, by a Combine.
# Items inside are lost with the process, so keep the shutdown's deadline, and add a last_resort.
EMAIL_DIGEST = Limits(max_items=1_000, max_delay=3_600.0, max_pending_items=65_536 + 1_000 * 2)

# Changes must arrive in order: one worker, and large batches instead of more of them.
DATABASE_CHANGES = Limits(
    max_items=5_000, max_delay=0.1, workers=1, max_pending_items=16_384 + 5_000 * 2
)
