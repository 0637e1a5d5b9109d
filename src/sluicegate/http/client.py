"""The lifecycle and the requests of an HTTP endpoint; the common base of the sinks over HTTP.

The connection limit is enforced here and not by the client's pool. A request cancelled in the event
loop turn after its connection was established leaves httpcore's pool a connection that it neither
reuses nor closes. With a pool limit, a few of those would block every write.

Response bodies, read as streams up to a limit.

1. The limit applies to bytes after decompression, and to bytes as received. Decompression is
   incremental: a compressed body of a few kilobytes that expands to gigabytes costs at most the
   limit and one piece.
2. A successful response is needed in full. If it is too long or cannot be decompressed, every item
   is unknown: `ResultMismatch`.
3. A successful response whose text is not needed is read to its end, so that the connection can be
   reused, but neither decompressed nor kept.
4. Any other response is classified by its status. Only its beginning is read, for the message, and
   an error while reading it has no effect.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import zlib
from contextlib import aclosing, nullcontext
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from .._core.checks import bad
from .._core.classify import caused
from .._core.clock import LOOP_CLOCK
from .._core.errors import (
    ClosedError,
    ConfigError,
    ErrorClass,
    RefusedError,
    ResultMismatch,
    SinkError,
    UnknownOutcomeError,
)
from .._core.opening import Openable
from .._core.runtime.threads import close_within
from .._core.trace_context import request_trace, unless_given
from .._core.values.encoding import compressed
from .config import header_value
from .errors import (
    REFUSALS,
    classify_http,
    for_broken_answer,
    for_status,
    for_transport,
    repair_of,
    seconds_of,
    target_of,
)
from .secrets import Secrets
from .write import HttpResponse, RequestSeries

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager, AsyncExitStack

    from .._core.batch import Batch
    from .._core.sink import WriteResult
    from .._core.values.encoding import Records
    from .config import ClientResponse, Endpoint, HttpClient
    from .write import RequestFormat


_THREAD_MIN_BYTES = 64 * 1024
"""Smallest body compressed in a thread; below it, the handover takes longer than the compression.
"""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Room for an error of 500 bytes for each of the 125,000 smallest actions in a bulk body of 5 MB."""
BEGINNING = 8 * 1024
"""Bytes read of an unsuccessful response."""
_PIECE = 64 * 1024
"""Bytes decompressed by one call."""
_READ = frozenset({"", "identity"})
_INFLATED = frozenset({"gzip", "x-gzip", "deflate"})
_ANY_HEADER = zlib.MAX_WBITS | 32
"""Lets zlib detect gzip and zlib headers."""


class HttpBase(Openable):
    """A sink that posts bodies to one endpoint."""

    _run_time: ClassVar[tuple[str, ...]] = ("_client", "_room")

    def __init__(self, endpoint: Endpoint, *, reads_answers: bool) -> None:
        self._endpoint = endpoint
        self._reads_answers = reads_answers
        self._client: HttpClient | None = None
        self._room: AbstractAsyncContextManager[None] | None = None

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class of an error, by `classify_http`."""
        return classify_http(error)

    async def _send(
        self, batch: Batch[Any], records: Records, request_format: RequestFormat
    ) -> WriteResult | None:
        client, room = self._client, self._room
        if client is None or room is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        post = partial(self._post, client, room, request_format.url_of)
        return await RequestSeries(batch, records, request_format, post).run()

    async def _post(
        self,
        client: HttpClient,
        room: AbstractAsyncContextManager[None],
        url_of: Callable[[Batch[Any]], str] | None,
        content: bytes,
        part: Batch[Any],
        *,
        content_type: str | None = None,
    ) -> HttpResponse:
        """Send one body and return the response to a success. Raises the `SinkError` for the status
        or for the client's error.
        """
        endpoint = self._endpoint
        url = endpoint.url if url_of is None else url_of(part)
        headers = await self._headers(part)
        if content_type is not None:
            headers["content-type"] = content_type
        secrets = Secrets(headers, url, endpoint.access.client_options)
        if endpoint.compression is not None:
            if len(content) < _THREAD_MIN_BYTES:
                content = compressed(content, endpoint.compression)
            else:
                content = await asyncio.to_thread(compressed, content, endpoint.compression)
        nothing = UnknownOutcomeError(
            f"no answer from {endpoint.place}; the request may have been applied"
        )
        answered: HttpResponse | SinkError = nothing
        try:
            request = client.stream(
                endpoint.method,
                url,
                content=content,
                headers=headers,
                follow_redirects=False,
            )
            async with room, request as answer:
                answered = await self._read_answer(answer, secrets, part)
        except Exception as error:
            if answered is nothing:
                raise for_transport(error, endpoint.place, secrets.redact)  # noqa: B904  # the cause is set
            # otherwise only closing failed, after a complete response
        if isinstance(answered, SinkError):
            raise answered
        return answered

    async def _read_answer(
        self, answer: ClientResponse, secrets: Secrets, part: Batch[Any]
    ) -> HttpResponse | SinkError:
        """The response to a success, or the error that a response represents. Raises only
        cancellation.

        After the headers of a success, no exception may look like that of a request that was not
        applied.
        """
        try:
            status = answer.status_code
            if not 200 <= status < 300:
                return await self._failure(answer, secrets, part)
            if not self._reads_answers:
                await drain(answer)
                return (
                    _unread()
                    if status == HTTPStatus.MULTI_STATUS
                    else HttpResponse(status, {}, b"")
                )
            body = await whole_body(answer, MAX_ANSWER_BYTES)
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return HttpResponse(
                status,
                headers,
                body,
                seconds_of(headers, part.delivery.clock.wall_time()),
                secrets.redact,
            )
        except Exception as error:
            return for_broken_answer(error, self._endpoint.place, secrets.redact)

    async def _failure(
        self, answer: ClientResponse, secrets: Secrets, part: Batch[Any]
    ) -> SinkError:
        """The error for an unsuccessful response, by its status and the beginning of its body."""
        body, is_cut, broken = await beginning(answer)
        text = (secrets.redact_beginning if is_cut else secrets.redact)(
            body.decode(errors="replace")
        ).strip()
        endpoint, status = self._endpoint, answer.status_code
        retry_after = seconds_of(answer.headers, part.delivery.clock.wall_time())
        known = self._known_failure(status, answer.headers, text, retry_after)
        if known is not None:
            return known
        reason, repair = self._refusal(status, text)
        if repair is None and status in REFUSALS:
            location = target_of(answer.headers.get("location"))
            repair = repair_of(
                status,
                endpoint.place,
                method=endpoint.method,
                has_credentials=endpoint.auth is not None,
                location=None if location is None else secrets.redact(location),
            )
        error = for_status(status, endpoint.place, text, retry_after, reason=reason, repair=repair)
        if broken is not None and error.__cause__ is not None:
            caused(error.__cause__, broken)
        return error

    def _known_failure(
        self, status: int, headers: Mapping[str, str], text: str, retry_after: float | None
    ) -> SinkError | None:
        """The error for an unsuccessful response that is more specific than its status; `None` if
        there is none.
        """
        return None

    def _refusal(self, status: int, text: str) -> tuple[str, str | None]:
        """The error's name in the response text, for logs, and the repair if the text implies one."""
        return "", None

    async def _headers(self, part: Batch[Any]) -> dict[str, str]:
        endpoint = self._endpoint
        headers = dict(endpoint.headers)
        if endpoint.auth is not None:
            headers["authorization"] = (
                endpoint.auth
                if isinstance(endpoint.auth, str)
                else await self._authorization(endpoint.auth)
            )
        if endpoint.idempotency_header is not None:
            headers[endpoint.idempotency_header.lower()] = quote(part.write_key, safe="/")
        headers |= unless_given(request_trace(), headers)
        return headers

    async def _authorization(self, auth: Callable[[], str | Awaitable[str]]) -> str:
        """The `Authorization` value for one request. A failure of `auth` is not caused by an item,
        and nothing is sent.
        """
        try:
            given = auth()
            return header_value("auth()", await given if inspect.isawaitable(given) else given)
        except SinkError:
            raise
        except Exception as error:
            repair = "repair the function given as auth=, or the service that it calls"
            message = (
                f"no credentials for {self._endpoint.place}: auth() failed with "
                f"{type(error).__name__}; nothing was sent"
            )
            raise RefusedError(message, repair=repair) from error

    # -- opening and closing -----------------------------------------------------------------------

    async def _open(self, stack: AsyncExitStack) -> None:
        client = await self._make_client()
        stack.push_async_callback(self._close, client)
        most = self._endpoint.pool_size
        self._client = client
        self._room = nullcontext() if most is None else asyncio.Semaphore(most)

    async def _make_client(self) -> HttpClient:
        factory = self._endpoint.access.client
        if factory is None:
            return self._own_client()
        made: HttpClient | Awaitable[HttpClient] = factory()
        if inspect.isawaitable(made):
            made = await made
        if not callable(getattr(made, "stream", None)) or not callable(
            getattr(made, "aclose", None)
        ):
            raise bad(
                "client",
                type(made).__name__,
                "the function must return a client with the interface of httpx.AsyncClient",
            )
        return made

    def _own_client(self) -> HttpClient:
        import httpx  # an optional dependency

        try:
            return httpx.AsyncClient(**self._endpoint.client_options())
        except (TypeError, ValueError) as error:
            names = ", ".join(self._endpoint.access.client_options)
            raise ConfigError(
                f"client_options with {names}: {type(error).__name__}: {error}"
            ) from error

    async def _close(self, client: HttpClient) -> None:
        within = close_within(self._endpoint.close_timeout)
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + within):
                await client.aclose()
        except TimeoutError:
            pass  # open connections end with the process


def _unread() -> ResultMismatch:
    """The error for a response with outcomes of items, without a function that reads them."""
    return ResultMismatch(
        "HTTP 207 Multi-Status: the response has an outcome for each item, which only parse= could "
        "read; the outcome of every item is unknown"
    )


# -- response bodies -------------------------------------------------------------------------------


class Inflater:
    """Incremental decompressor of gzip and zlib data, including several members in sequence."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_ANY_HEADER)
        self._began = False

    def pieces(self, raw: bytes) -> Iterator[bytes]:
        """The content of `raw`, at most 64 KiB at a time. Raises `zlib.error`."""
        for start in range(0, len(raw), _PIECE):
            yield from self._inflate(raw[start : start + _PIECE])

    def _inflate(self, raw: bytes) -> Iterator[bytes]:
        self._began = True
        piece = b""
        while raw or len(piece) == _PIECE:
            if self._stream.eof:
                if not raw:
                    return
                self._stream = zlib.decompressobj(_ANY_HEADER)
            piece = self._stream.decompress(raw, _PIECE)
            yield piece
            raw = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail

    def check_end(self) -> None:
        """Raise `zlib.error` if the data is incomplete."""
        if self._began and not self._stream.eof:
            raise zlib.error("the compressed data is incomplete")


async def whole_body(answer: ClientResponse, most: int) -> bytes:
    """The decompressed body of a successful response.

    Raises `ResultMismatch` for more than `most` bytes, for an encoding other than gzip or deflate,
    and for broken compressed data; the client's own error if the connection breaks.
    """
    body = io.BytesIO()
    try:
        async with aclosing(_pieces(answer, most)) as pieces:
            async for piece in pieces:
                body.write(piece)
                if body.tell() > most:
                    raise _too_long(most)
    except zlib.error as error:
        message = (
            f"the answer to a successful request cannot be decompressed ({error}); the "
            "outcome of every item is unknown"
        )
        raise caused(ResultMismatch(message), error)  # noqa: B904  # the cause is set
    return body.getvalue()


async def drain(answer: ClientResponse) -> None:
    """Read a successful response to its end and discard it, without decompression. Raises as
    `whole_body` does.
    """
    if answer.is_stream_consumed:
        return
    read = 0
    async for raw in answer.aiter_raw():
        read += len(raw)
        if read > MAX_ANSWER_BYTES:
            raise _too_long(MAX_ANSWER_BYTES)


async def beginning(answer: ClientResponse) -> tuple[bytes, bool, Exception | None]:
    """The first bytes of a body, whether it is longer, and the error that interrupted reading."""
    body = b""
    try:
        async with aclosing(_pieces(answer, _PIECE)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > BEGINNING:
                    return body[:BEGINNING], True, None
    except Exception as error:
        return body, True, error
    return body, False, None


async def _pieces(answer: ClientResponse, most: int) -> AsyncGenerator[bytes]:
    if answer.is_stream_consumed:  # already read by a response hook of the client
        yield answer.content
        return
    inflater = _inflater(answer)
    read = 0
    async for raw in answer.aiter_raw():
        read += len(raw)
        if read > most:
            raise _too_long(most)
        if inflater is None:
            yield raw
            continue
        for piece in inflater.pieces(raw):
            yield piece
    if inflater is not None:
        inflater.check_end()


def _inflater(answer: ClientResponse) -> Inflater | None:
    encoding = str(answer.headers.get("content-encoding") or "").strip().lower()
    if encoding in _READ:
        return None
    if encoding not in _INFLATED:
        raise ResultMismatch(
            f"the answer is encoded as {encoding[:40]!r}, which was not requested; the outcome of "
            "every item is unknown"
        )
    return Inflater()


def _too_long(most: int) -> ResultMismatch:
    return ResultMismatch(
        f"the answer is longer than {most} bytes; the outcome of every item is unknown"
    )
