"""The public class of the console."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .._core import checks
from .._core.checks import bad
from .._core.extras import need
from ..postgres.schema.opened import DEFAULT_SCHEMA
from .contents import Contents, Database
from .stores import stores_by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from types import TracebackType
    from typing import Self

    from ..consumer.operating.probes import Receive, Scope, Send
    from ..postgres.client.access import PostgresAccess
    from .contents import Part
    from .door import Authorize
    from .site import Site
    from .stores import LetterStore

SHORTEST_TOKEN = 16


class Console:
    """A web console for operators, as an ASGI application.

    It shows the consumers, pipes and batchers of this process, and queues in PostgreSQL, and
    operates them: each action first shows the number of affected things, and asks for confirmation.

    Args:
        parts: open consumers, pipes and batchers, or a function that returns them.
        postgres: the DSN or `PostgresAccess` of the database with the queues and streams; default:
            none are shown. Connections are made at the first request that needs one, at most two
            for each kind of object. Without a `statement_timeout`, reading statements have 5 s.
        schema: the schema of queues and streams; default `"sluicegate"`.
        letters: the stores of dead letters to show: `LetterStore`s, or what one takes first.
        spools: the folders of spools to show.
        token: admits browsers that log in with it, at least 16 visible ASCII characters. Without
            it, and without `authorize`, only loopback is answered.
        authorize: for a console that is mounted in another application: a function, async or not,
            of Starlette's `Request`, that returns whether the request is admitted, or the user's
            name for the log. It replaces `token` and the check of hosts.
        hosts: names of hosts that the console answers for, besides `localhost`, `127.0.0.1` and
            `[::1]`.
        read_only: refuse all actions.

    Serve it in one process, on the event loop of its parts. Payloads are shown only on request. A
    reverse proxy must set the mount path (`root_path`) and the scheme. Leaving `async with`,
    `aclose()` or the end of the server's lifespan closes the connections; without any of them they
    end with the process.

    Raises `ConfigError` for a bad argument, and `MissingExtra` without the extra `console`.
    """

    def __init__(
        self,
        *parts: Part | Callable[[], Iterable[object]],
        postgres: str | PostgresAccess | None = None,
        schema: str = DEFAULT_SCHEMA,
        letters: Collection[LetterStore | str | Path] = (),
        spools: Collection[str | Path] = (),
        token: str | None = None,
        authorize: Authorize | None = None,
        hosts: Collection[str] = (),
        read_only: bool = False,
    ) -> None:
        if token is not None and authorize is not None:
            raise bad("token", "...", "must not be given with authorize, which replaces it")
        if isinstance(token, str) and len(token) < SHORTEST_TOKEN:
            raise bad("token", "...", f"must have at least {SHORTEST_TOKEN} characters")
        if authorize is not None and not checks.accepts(authorize, 1):
            raise bad("authorize", authorize, "must be a function of a request, async or not")
        if isinstance(hosts, str):
            raise bad("hosts", hosts, "must be a collection of names")
        if isinstance(spools, (str, Path)):
            raise bad("spools", str(spools), "must be a collection of folders")
        for module in ("starlette", "jinja2"):
            need(module, "console", "Console")
        self._contents = Contents(
            given=parts,
            database=None if postgres is None else Database(postgres, schema),
            letters=stores_by_name(letters),
            spools={str(each): Path(each) for each in spools},
            read_only=checks.flag("read_only", read_only),
        )
        names = [checks.text("hosts", each) for each in hosts]
        self._site = _site(self._contents, token, authorize, names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or an event of the server's lifespan."""
        if scope["type"] == "http":
            await self._site(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        elif scope["type"] == "lifespan":
            while (event := (await receive())["type"]) != "lifespan.shutdown":
                await send({"type": f"{event}.complete"})
            await self.aclose()
            await send({"type": "lifespan.shutdown.complete"})

    async def aclose(self) -> None:
        """Close the connections. A later request opens them again."""
        if self._contents.database is not None:
            await self._contents.database.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"Console({', '.join(self._contents.parts)})"


def _site(
    contents: Contents, token: str | None, authorize: Authorize | None, hosts: list[str]
) -> Site:
    from .door import Door
    from .sections import SECTIONS
    from .site import Site

    return Site(contents, Door(token=token, authorize=authorize, hosts=hosts), SECTIONS)
