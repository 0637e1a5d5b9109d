"""Events to a file, with aiohttp: EVENTS=events.jsonl python aiohttp_app.py"""

import os
from collections.abc import AsyncIterator

from aiohttp import web

import sluicegate
from sluicegate.files import FileSink

Event = dict[str, object]
BATCHER = web.AppKey("batcher", sluicegate.Batcher)


async def with_batcher(app: web.Application) -> AsyncIterator[None]:
    sink = FileSink(os.environ["EVENTS"])
    async with sluicegate.Batcher[Event](sink, name="events", shutdown_deadline=15) as batcher:
        app[BATCHER] = batcher
        yield


async def take(request: web.Request) -> web.Response:
    try:
        await request.app[BATCHER].add(await request.json(), timeout=0.1)
    except sluicegate.AddTimeout as error:
        raise web.HTTPServiceUnavailable(
            headers={"Retry-After": f"{error.retry_after:.0f}"}
        ) from None
    return web.Response(status=202)


def make_app() -> web.Application:
    app = web.Application()
    app.cleanup_ctx.append(with_batcher)
    app.router.add_post("/events", take)
    return app


if __name__ == "__main__":
    web.run_app(make_app())
