"""Events over HTTP into PostgreSQL, with threads. Start it with

DATABASE_URL=postgresql://... gunicorn --config gunicorn_conf.py flask_app:app
"""

import logging
import math
import os
import re

import flask
from werkzeug.exceptions import UnprocessableEntity

import sluicegate
from sluicegate.postgres import PostgresSink

MAX_DELAY = float(os.environ.get("MAX_DELAY", "0.05"))
ROOM_WITHIN = 0.1  # seconds that a request may wait for room in the ledger
STORED_WITHIN = 2.0  # seconds that a request may wait for the write
SHUTDOWN_DEADLINE = 15.0
NOT_TEXT = re.compile("[\0\ud800-\udfff]")  # characters that PostgreSQL's text cannot store

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")

Event = tuple[int, str]

# A description: no thread and no connection yet, so gunicorn may fork. Each worker process starts
# its own, in gunicorn_conf.py; all threads of the process share it.
batcher: sluicegate.BlockingBatcher[Event] = sluicegate.BlockingBatcher(
    sluicegate.stack(
        PostgresSink(
            os.environ["DATABASE_URL"],
            table="events",
            columns=("id", "action"),
            on_conflict="ignore",
        ),
        sluicegate.Timeout(5.0),
        sluicegate.Retry(attempts=5),
    ),
    name="events",
    open="lazy",  # waits for a database that is down
    limits=sluicegate.Limits(max_items=500, max_delay=MAX_DELAY, max_pending_items=10_000),
    shutdown_deadline=SHUTDOWN_DEADLINE,
)
app = flask.Flask(__name__)


@app.errorhandler(sluicegate.AddTimeout)
def no_room(error: sluicegate.AddTimeout) -> flask.Response:
    return refused("no room", error.retry_after)


@app.errorhandler(sluicegate.ClosedError)
def closed(_error: sluicegate.ClosedError) -> flask.Response:
    return refused("closed", 1.0)


def refused(why: str, pause: float) -> flask.Response:
    return flask.Response(f"{why}\n", 503, {"Retry-After": str(math.ceil(pause))})


@app.post("/events")
def accept() -> flask.Response:
    """Return 202: accepted in memory, and written soon."""
    batcher.add(event_of(flask.request), timeout=ROOM_WITHIN)
    return flask.Response(status=202)


@app.post("/events/stored")
def store() -> flask.Response:
    """Return 201 only if the event is in the table. The thread is occupied until then."""
    event = event_of(flask.request)
    try:
        outcome = batcher.deliver(event, timeout=STORED_WITHIN)
    except sluicegate.errors.DeliverTimeout:  # accepted, and written once the database is back
        return flask.Response("pending\n", 202)
    except sluicegate.ItemFailed as failed:
        return flask.Response(f"{failed.outcome.value}\n", 502)
    return flask.Response(f"{outcome.value}\n", 201)


def event_of(request: flask.Request) -> Event:
    """Accept only valid rows: after a 202, a refused row can no longer be reported."""
    match request.get_json():
        case {"id": int(number), "action": str(action)}:
            if abs(number) < 2**63 and not NOT_TEXT.search(action):
                return number, action
    raise UnprocessableEntity


@app.get("/ready")
def ready() -> flask.Response:
    state = batcher.stats().state
    return flask.Response(f"{state}\n", 200 if state == "open" else 503)
