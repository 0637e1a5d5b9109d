"""Events over HTTP into PostgreSQL. Start it with

DATABASE_URL=postgresql://... uvicorn fastapi_app:app --timeout-graceful-shutdown 5
"""

import contextlib
import logging
import math
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field

import sluicegate
from sluicegate import Outcome
from sluicegate.postgres import PostgresSink
from sluicegate.telemetry import PrometheusObserver

# the file of a secret that holds the URL, or the URL itself
URL_FILE = os.environ.get("DATABASE_URL_FILE")
DATABASE_URL = Path(URL_FILE).read_text().strip() if URL_FILE else os.environ["DATABASE_URL"]
MAX_DELAY = float(os.environ.get("MAX_DELAY", "0.05"))
MAX_PENDING_ITEMS = int(os.environ.get("MAX_PENDING_ITEMS", "10000"))
SHUTDOWN_DEADLINE = float(os.environ.get("SHUTDOWN_DEADLINE", "15"))
NOT_READY_AFTER = float(os.environ.get("NOT_READY_AFTER", "30"))  # seconds of an outage

ROOM_WITHIN = 0.1  # seconds that a request may wait for room in the ledger
STORED_WITHIN = 2.0  # seconds that a request may wait for the write; below the server's own grace
LONGEST_PAUSE = 30.0  # seconds, the largest Retry-After

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")


class Event(BaseModel):
    """Accepts only valid rows: after a 202, a refused row can no longer be reported."""

    id: int = Field(ge=-(2**63), lt=2**63)
    action: str = Field(max_length=1000, pattern=r"^[^\x00]*$")


# -- the batcher -----------------------------------------------------------------------------------


def make_batcher() -> sluicegate.Batcher[Event]:
    sink = sluicegate.stack(
        PostgresSink(DATABASE_URL, table="events", columns=("id", "action"), on_conflict="ignore"),
        sluicegate.Timeout(5.0),
        sluicegate.Retry(attempts=5),
    )
    return sluicegate.Batcher(
        sink,
        name="events",
        open="lazy",  # waits for a database that is down; /ready reports it
        limits=sluicegate.Limits(
            max_items=500, max_delay=MAX_DELAY, max_pending_items=MAX_PENDING_ITEMS
        ),
        shutdown_deadline=SHUTDOWN_DEADLINE,
        observers=[PrometheusObserver()],
    )


@contextlib.asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[dict[str, object]]:
    async with make_batcher() as batcher:
        yield {"batcher": batcher}  # the server runs here, and has stopped when this returns


async def batcher_of(request: Request) -> sluicegate.Batcher[Event]:
    batcher: sluicegate.Batcher[Event] = request.state.batcher
    return batcher


Events = Annotated[sluicegate.Batcher[Event], Depends(batcher_of)]
app = FastAPI(lifespan=lifespan)


# -- events ----------------------------------------------------------------------------------------


@app.exception_handler(sluicegate.AddTimeout)
async def no_room(request: Request, error: sluicegate.AddTimeout) -> Response:
    """Respond to a full ledger. An outage of a minute seldom ends within five seconds."""
    batcher = await batcher_of(request)
    pause = max(error.retry_after, batcher.stats().destination.seconds)
    return refused("no room", min(pause, LONGEST_PAUSE))


@app.exception_handler(sluicegate.ClosedError)
async def closed(_request: Request, _error: sluicegate.ClosedError) -> Response:
    """Respond while shutting down or broken: another replica takes the event."""
    return refused("closed", 1.0)


def refused(why: str, pause: float) -> Response:
    return PlainTextResponse(f"{why}\n", 503, headers={"Retry-After": str(math.ceil(pause))})


@app.post("/events", status_code=202)
async def accept(event: Event, batcher: Events) -> Response:
    """Return 202: accepted in memory, and written soon."""
    await batcher.add(event, timeout=ROOM_WITHIN)
    return Response(status_code=202)


@app.post("/events/stored")
async def store(event: Event, batcher: Events) -> Response:
    """Return 201 only if the event is in the table."""
    try:
        outcome = await batcher.deliver(event, timeout=STORED_WITHIN)
    except sluicegate.errors.DeliverTimeout:  # accepted, and written once the database is back
        return JSONResponse({"outcome": "pending"}, 202)
    except sluicegate.ItemFailed as failed:
        return JSONResponse({"outcome": failed.outcome.value}, status_of(failed))
    return JSONResponse({"outcome": outcome.value}, 201)


def status_of(failed: sluicegate.ItemFailed) -> int:
    if failed.outcome is Outcome.UNKNOWN:
        return 504  # may be stored; the id makes it safe to send it again
    if isinstance(failed.__cause__, sluicegate.PermanentError):
        return 422  # the table refuses it, and would refuse it again; also if dead-lettered
    return 503  # not stored: the attempts are used up, or the process ends


# -- probes ----------------------------------------------------------------------------------------


@app.get("/live")
async def live(batcher: Events) -> Response:
    """Fail for a broken batcher, which needs a new process; an outage needs no restart."""
    state = batcher.stats().state
    return PlainTextResponse(f"{state}\n", 503 if state == "broken" else 200)


@app.get("/ready")
async def ready(batcher: Events) -> Response:
    """Only items inside probe the database; with an empty ledger, the next event does."""
    stats = batcher.stats()
    destination = stats.destination
    if stats.state != "open":
        return PlainTextResponse(f"{stats.state}\n", 503)
    is_down = destination.state not in {"available", "throttled"} and stats.tally.inside > 0
    if is_down and destination.seconds >= NOT_READY_AFTER:
        return PlainTextResponse(f"{destination.state} for {destination.seconds:.0f} s\n", 503)
    return PlainTextResponse("ready\n")


@app.get("/metrics")
async def metrics() -> Response:
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
