from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from sluicegate import Batcher
from sluicegate.console import Console, LetterStore
from sluicegate.sinks import MemorySink

sink: MemorySink[str] = MemorySink()
audit = Batcher(sink, name="audit")
ADMINS = {"ann": "Ann Archer"}


async def is_admin(request: Request) -> bool | str:
    """Return the user's name for the log; whatever your application knows of the request."""
    return ADMINS.get(request.headers.get("x-user", ""), False)


async def record(request: Request) -> Response:
    await audit.add((await request.body()).decode())
    return Response(status_code=202)


letters = LetterStore("dead-letters.jsonl", sink=sink)
console = Console(audit, letters=[letters], authorize=is_admin)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncGenerator[None]:
    async with audit, console:
        yield


app = Starlette(
    routes=[Route("/events", record, methods=["POST"]), Mount("/ops", console)],
    lifespan=lifespan,
)
