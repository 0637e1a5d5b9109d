"""Rows into PostgreSQL from Celery tasks; a task is acknowledged once its rows are stored. Start it
with

DATABASE_URL=postgresql://... BROKER_URL=redis://... celery -A celery_app worker --concurrency 2
"""

import os

from celery import Celery
from celery.signals import worker_process_init, worker_process_shutdown

import sluicegate
from sluicegate.postgres import PostgresSink

ROOM_WITHIN = 5.0  # seconds that a task may wait for capacity in the ledger
SAFE_WITHIN = 10.0  # seconds that it may wait for its outcomes; delays a warm shutdown

Event = tuple[int, str]

# No thread and no connection yet, so the worker may fork.
batcher: sluicegate.BlockingBatcher[Event] = sluicegate.BlockingBatcher(
    sluicegate.stack(
        PostgresSink(
            os.environ["DATABASE_URL"],
            table="events",
            columns=("id", "action"),
            on_conflict="ignore",  # a task may run twice
        ),
        sluicegate.Timeout(5.0),
        sluicegate.Retry(attempts=5),
    ),
    name="events",
    open="lazy",  # wait for a database that is down
    limits=sluicegate.Limits(max_items=500),
    shutdown_deadline=15.0,
)


@worker_process_init.connect
def open_batcher(**_: object) -> None:
    batcher.start()


@worker_process_shutdown.connect
def close_batcher(**_: object) -> None:
    batcher.shutdown()


# -- tasks -----------------------------------------------------------------------------------------


class Refused(Exception):
    """The table refuses a row; a retry would not help."""


app = Celery("celery_app", broker=os.environ.get("BROKER_URL"))
app.conf.update(
    task_acks_late=True,  # a task of a dead worker goes to another one...
    task_reject_on_worker_lost=True,  # ...and so does a task of a dead pool process
    worker_prefetch_multiplier=1,
)
again = {
    # not stored yet, no capacity, or no batcher; the id is a key, so a task may be repeated
    "autoretry_for": (sluicegate.ItemFailed, TimeoutError, sluicegate.ClosedError),
    "retry_backoff": True,
    "retry_backoff_max": 60,
    "max_retries": None,
}


@app.task(**again)
def store(number: int, action: str) -> None:
    """Store one row. A process runs one task at a time, so this is one write per task."""
    write([(number, action)])


@app.task(**again)
def store_many(events: list[Event]) -> None:
    """Store all rows of the message, in batches."""
    write([(number, action) for number, action in events])


def write(events: list[Event]) -> None:
    """Return when every row is in the table."""
    receipts = [batcher.submit(event, timeout=ROOM_WITHIN) for event in events]
    batcher.flush(SAFE_WITHIN)  # nothing else in this process fills the batch
    for event, receipt in zip(events, receipts, strict=True):
        try:
            receipt.result(0)
        except sluicegate.ItemFailed as failed:
            if isinstance(failed.__cause__, sluicegate.PermanentError):
                raise Refused(event) from failed
            raise
