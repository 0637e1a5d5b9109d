"""An HTTP endpoint that is opened and closed; what `HttpSink` and the sinks on it have in common.

The limit on connections is kept here and not by the client's pool: a request that is cancelled in the turn after its connection came about
leaves httpcore's pool a connection that it neither uses again nor closes. Under a limit of the pool's own, a few of those would be the end
of all writing.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .._core.checks import bad
from .._core.clock import LOOP_CLOCK
from .._core.errors import ClosedError, ConfigError, ErrorClass
from .._core.opening import Openable
from ._http_body import compressed
from ._http_config import header_value, without_secrets
from ._http_errors import classify_http, for_status, for_transport, seconds_of
from ._http_write import HttpResponse, Write

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from contextlib import AbstractAsyncContextManager, AsyncExitStack

    from .._core.batch import Batch
    from .._core.result import WriteResult
    from ._http_body import Records
    from ._http_config import Endpoint, HttpClient
    from ._http_write import Rules

_BESIDE = 64 * 1024
"""From how many bytes on a body is compressed in a thread: below, handing it over takes longer than compressing it."""


class HttpBase(Openable):
    """A sink that posts bodies to one endpoint."""

    _run_time = ("_client", "_room")

    def __init__(self, endpoint: Endpoint) -> None:
        self._client_options = endpoint.options  # by this name, and first, for the error that it cannot be pickled
        self._endpoint = endpoint
        self._client: HttpClient | None = None
        self._room: AbstractAsyncContextManager[None] | None = None

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class of an error, as `classify_http` tells it."""
        return classify_http(error)

    async def _send(self, batch: Batch[Any], records: Records, rules: Rules) -> WriteResult | None:
        client, room = self._client, self._room
        if client is None or room is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        return await Write(batch, records, rules, partial(self._post, client, room)).run()

    async def _post(self, client: HttpClient, room: AbstractAsyncContextManager[None], content: bytes, part: Batch[Any]) -> HttpResponse:
        """Send one body; return the answer of a success. Raises what the status or the client's error means."""
        endpoint = self._endpoint
        headers = await self._headers(part)
        if endpoint.compression is not None:
            if len(content) < _BESIDE:
                content = compressed(content, endpoint.compression)
            else:
                content = await asyncio.to_thread(compressed, content, endpoint.compression)
        try:
            async with room:
                answer = await client.request(endpoint.method, endpoint.url, content=content, headers=headers, follow_redirects=False)
        except Exception as error:
            raise for_transport(error, endpoint.place)  # noqa: B904  # it has its cause
        status, answered = answer.status_code, answer.headers
        retry_after = seconds_of(answered, part.delivery.clock.wall_time())
        if not 200 <= status < 300:
            told = without_secrets(answer.content.decode(errors="replace").strip(), headers)
            raise for_status(status, endpoint.place, told, retry_after)
        return HttpResponse(status, {name.lower(): value for name, value in answered.items()}, answer.content, retry_after)

    async def _headers(self, part: Batch[Any]) -> dict[str, str]:
        endpoint = self._endpoint
        headers = dict(endpoint.headers)
        auth = endpoint.auth
        if callable(auth):
            given = auth()
            headers["authorization"] = header_value("auth()", await given if inspect.isawaitable(given) else given)
        elif auth is not None:
            headers["authorization"] = auth
        if endpoint.idempotency_header is not None:
            headers[endpoint.idempotency_header.lower()] = quote(part.write_key, safe="/")
        return headers

    # -- opening and closing ------------------------------------------------------------------------------------------

    async def _open(self, stack: AsyncExitStack) -> None:
        client = await self._make_client()
        stack.push_async_callback(self._close, client)
        most = self._endpoint.pool_size
        self._client, self._room = client, nullcontext() if most is None else asyncio.Semaphore(most)

    async def _make_client(self) -> HttpClient:
        if self._endpoint.client is None:
            return self._own_client()
        made: HttpClient | Awaitable[HttpClient] = self._endpoint.client()
        if inspect.isawaitable(made):
            made = await made
        if not callable(getattr(made, "request", None)) or not callable(getattr(made, "aclose", None)):
            raise bad("client", type(made).__name__, "the function must return a client of the shape of httpx.AsyncClient")
        return made

    def _own_client(self) -> HttpClient:
        import httpx  # an optional dependency

        try:
            return httpx.AsyncClient(**self._endpoint.client_options())
        except (TypeError, ValueError) as error:
            names = ", ".join(self._endpoint.options)
            raise ConfigError(f"client_options with {names}: {type(error).__name__}: {error}") from error

    async def _close(self, client: HttpClient) -> None:
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + self._endpoint.close_timeout):
                await client.aclose()
        except TimeoutError:
            pass  # whatever is still open ends with the process
