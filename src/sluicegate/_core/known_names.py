"""Names of our arguments in other libraries, for the error about an unknown name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_ELSEWHERE = {
    "max_items": "max_size maxsize size batch_size batchsize max_batch_size max_batch bulk_size max_records "
    "max_count max_length max_rows chunk_size bulk_actions limit n items_per_batch",
    "max_bytes": "batch_bytes max_batch_bytes max_chunk_bytes bulk_bytes buffer_bytes max_body max_request_size",
    "max_delay": "linger linger_ms linger_seconds interval flush_interval flush_every max_wait max_wait_time "
    "max_wait_ms max_latency batch_timeout delay period max_age batch_interval every",
    "max_pending_items": "queue_size max_queue_size queue_depth maxqueue buffer_size buffer capacity max_pending "
    "max_queue high_water_mark",
    "max_pending_bytes": "buffer_memory queue_bytes max_buffer_bytes",
    "workers": "concurrency max_workers max_concurrency num_workers n_workers parallelism parallel thread_count "
    "threads max_in_flight inflight",
    "flush_timeout": "write_timeout batch_write_timeout",
    "shutdown_deadline": "shutdown_timeout close_timeout drain_timeout grace_period stop_timeout",
    "on_failure": "on_error error_callback on_exception error_handler",
    "overflow": "on_full when_full backpressure overflow_policy",
    "key": "key_fn key_func keyfunc partition_key ordering_key group_by",
    "size_of": "sizer size_fn get_size",
    "name": "label id",
    "attempts": "max_attempts max_retries retries max_tries tries retry_count total num_retries",
    "max_seconds": "max_time max_elapsed max_elapsed_time timeout deadline stop_after_delay",
    "backoff": "wait delay retry_delay backoff_factor sleep",
    "classify": "retry_on retry_if on exceptions retryable expected_exception",
    "base": "initial initial_interval initial_delay min min_delay multiplier start",
    "longest": "max max_delay max_interval cap max_wait max_backoff",
    "factor": "exp_base exponent",
    "seconds": "timeout limit duration delay",
    "items_per_second": "rate per_second rps max_rate qps limit requests_per_second",
    "burst": "capacity bucket_size max_burst",
    "failure_rate": "failure_rate_threshold error_rate threshold error_threshold",
    "consecutive": "failure_threshold fail_max max_failures",
    "open_for": "recovery_timeout reset_timeout cooldown open_timeout sleep_window",
    "probes": "half_open_max_calls success_threshold",
    "target": "sink dlq queue",
    "dsn": "url uri connection conn conninfo host database connection_string",
    "table": "table_name relation tablename",
    "columns": "fields cols column_names",
    "schema": "schema_name",
    "conflict_columns": "unique_columns conflict_target index_elements primary_key keys unique_key",
    "pool_size": "max_size max_connections connections maxsize",
    "row": "encode serializer transform to_row mapper",
    "encode": "serializer encoder serialize value_serializer dumps default",
    "path": "file filename file_name file_path",
    "rotate_bytes": "max_file_size rotate_size rotation max_bytes maxBytes",
    "rotate_every": "rotate when rotate_interval",
    "client": "session http_client",
    "client_options": "verify proxy proxies cert http2 ssl trust_env",
    "url": "hosts host base_url endpoint uri nodes",
    "operation": "op_type action op",
    "document": "source doc body",
    "timeout": "request_timeout read_timeout connect_timeout",
    "choose": "route selector",
    "weights": "weight",
    "concurrency": "workers max_workers max_concurrency num_workers n_workers parallelism threads",
    "max_in_flight": "prefetch prefetch_count max_ack_pending max_pending queue_size buffer_size",
    "fetch_max": "max_poll_records max_records fetch_size",
    "commit_every": "commit_interval auto_commit_interval auto_commit_interval_ms commit_seconds",
    "drain": "shutdown_timeout drain_timeout grace_period stop_timeout shutdown_deadline",
    "retry": "retries max_retries max_attempts attempts retry_policy",
    "dead_letters": "dlq dead_letter dead_letter_queue dead_letter_topic dlq_topic",
    "bootstrap": "bootstrap_servers brokers broker_list broker servers hosts host url",
    "group": "group_id consumer_group group_name",
    "servers": "url uri urls hosts host server",
    "durable": "durable_name consumer consumer_name",
    "queue": "queue_name",
    "subscription": "subscription_name subscription_id",
    "size": "batch_size batchsize max_batch_size max_items max_records",
    "steps": "middleware middlewares interceptors decode decoder deserializer value_deserializer",
}
"""Our names, each with the names that other libraries use. The first of ours that is known is used.
"""

_INSTEAD = {
    "dsn=PostgresAccess(dsn, connect_options={...})": "connect_options ssl min_size command_timeout "
    "server_settings user password port",
    'body="json"': "json",
    'on_conflict="update"': "upsert replace overwrite",
    'auth="Bearer ..."': "token bearer bearer_token",
    "auth=": "api_key apikey basic_auth http_auth authorization username",
    'fsync="always"': "sync flush",
}
"""Arguments with a value, each with the names that other libraries use for it."""

_DECORATORS = {
    "Retry(attempts=...)": "attempts max_attempts max_retries retries max_tries retry",
    "Timeout(seconds)": "timeout write_timeout request_timeout",
    "RateLimit(items_per_second)": "rate_limit rate per_second rps max_rate",
    "DeadLetter(target)": "dead_letter dead_letters dlq dead_letter_queue",
    "CircuitBreaker()": "circuit_breaker breaker",
}
"""Sink decorators, each with the names of equivalent arguments in other libraries."""


def right_name(name: str, known: Collection[str]) -> str | None:
    """Return the replacement for the argument `name` among the `known` ones; `None` if unknown."""
    for written, names in _INSTEAD.items():
        if name.lower() in names.split() and written.partition("=")[0] in known:
            return written
    for ours, names in _ELSEWHERE.items():
        if ours in known and name.lower() in names.lower().split():
            return f"{ours}="
    close = difflib.get_close_matches(name, known, n=1)
    return f"{close[0]}=" if close else None


def decorator_for(name: str) -> str | None:
    """Return the decorator that corresponds to the argument `name` of other libraries."""
    found = (each for each, names in _DECORATORS.items() if name.lower() in names.split())
    return next(found, None)
