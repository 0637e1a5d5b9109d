"""Events to a file, with Litestar: EVENTS=events.jsonl uvicorn litestar_app:app"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from litestar import Litestar, Request, Response, post

import sluicegate
from sluicegate.files import FileSink

Event = dict[str, object]


@asynccontextmanager
async def with_batcher(app: Litestar) -> AsyncIterator[None]:
    sink = FileSink(os.environ["EVENTS"])
    async with sluicegate.Batcher[Event](sink, name="events", shutdown_deadline=15) as batcher:
        app.state.batcher = batcher
        yield


@post("/events", status_code=202)
async def take(request: Request[Any, Any, Any]) -> Response[None]:
    try:
        await request.app.state.batcher.add(await request.json(), timeout=0.1)
    except sluicegate.AddTimeout as error:
        pause = {"Retry-After": f"{error.retry_after:.0f}"}
        return Response(None, status_code=503, headers=pause)
    return Response(None, status_code=202)


app = Litestar([take], lifespan=[with_batcher])
