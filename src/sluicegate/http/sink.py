"""Items to an HTTP endpoint, many per request."""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal

from .._core import checks
from .._core.batch import RowBatch
from .._core.checks import bad, choice
from .._core.keywords import known_arguments
from .._core.sink import Capabilities
from .._core.values.encoding import encoded_items, ndjson
from .client import HttpBase
from .config import MAX_BYTES, HttpAccess, access_of, endpoint
from .write import RequestFormat, json_array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .._core.batch import Batch
    from .._core.sink import WriteResult
    from .._core.values.encoding import Encode
    from .write import JoinBodies, ParseResponse


_BODIES: Mapping[str, tuple[JoinBodies, str]] = {
    "ndjson": (ndjson, "application/x-ndjson"),
    "json": (json_array, "application/json"),
}


@known_arguments(access=HttpAccess)
class HttpSink(HttpBase):
    """Sends items to one URL, many per request, with httpx or a client of the same interface.

    A body has at most `max_bytes` before compression: a larger batch is sent as several requests,
    one after the other, and so is one that the server answers with 413. An item that cannot be
    encoded, or is too large by itself, fails alone with `PermanentError`. The items of a successful
    request are delivered, regardless of the next one.

    Args:
        url: the destination, `http://` or `https://`, or an `HttpAccess`. A user and password in it
            become basic authentication. Shown without these and its query.
        body: the form of a body: `"ndjson"` (default; one line per record), `"json"` (one array),
            or a function from a list of records, as bytes, to the body.
        encode: a function from an item to its record, bytes or text; default: JSON, with dates in
            ISO form, UUIDs and decimals as text, mappings, dataclasses, pydantic models, attrs
            classes and msgspec structs as objects, and named tuples as lists.
        method: `"POST"` (default), `"PUT"` or `"PATCH"`.
        idempotency_header: the header for an idempotency key, by which the server recognizes a
            request: equal if and only if the same part of a batch is sent again. Default: none is
            sent.
        idempotent: whether a repeated item has no further effect on the server; only reported, by
            `capabilities`.
        compression: `"gzip"` or `"zstd"`; default: none. Bodies from 64 KiB on are compressed in a
            thread.
        max_bytes: limit of a body, uncompressed; default 5,000,000. `None`: no limit.
        parse: for servers that respond per item: a function from the `HttpResponse` of a success
            and the batch of the request's items to the result of a sink's `write`
            (`WriteResult.from_outcomes` checks the number of outcomes). Any exception but a
            `SinkError`, and a result that does not fit the batch, leaves the items unknown.
            Default: a success means that every item was delivered, and the response is neither
            decompressed nor kept. The items of a response of more than 64 MiB are unknown.
        pool_size: number of connections, and therefore of concurrent writes; default 10, no limit
            with a client of the access.

    Raises `ConfigError` for a bad argument and `MissingExtra` without httpx (or zstandard).
    Constructing does not suspend. Opening creates the client and connects to nothing, so a wrong
    host or certificate shows at the first write, as `UnavailableError`.
    """

    def __init__(
        self,
        url: str | HttpAccess,
        *,
        body: Literal["ndjson", "json"] | JoinBodies = "ndjson",
        encode: Encode | None = None,
        method: Literal["POST", "PUT", "PATCH"] = "POST",
        idempotency_header: str | None = None,
        idempotent: bool = False,
        compression: Literal["gzip", "zstd"] | None = None,
        max_bytes: int | None = MAX_BYTES,
        parse: ParseResponse | None = None,
        pool_size: int | None = None,
    ) -> None:
        access = access_of(url)
        rule = "must be a function from an item to bytes or text"
        encode = checks.optional_function("encode", encode, rule)
        if parse is not None and not callable(parse):
            raise bad(
                "parse",
                parse,
                "must be a function from a response and a batch to a WriteResult or None",
            )
        if iscoroutinefunction(parse):
            raise bad("parse", parse, "must not be async: the response is already in memory")
        join, content_type = (
            (body, "application/octet-stream")
            if callable(body)
            else _BODIES[choice("body", body, _BODIES)]
        )
        super().__init__(
            endpoint(
                access,
                access.url,
                method=method,
                own_headers={"content-type": content_type},
                idempotency_header=idempotency_header,
                compression=compression,
                max_bytes=max_bytes,
                pool_size=pool_size,
            ),
            reads_answers=parse is not None,
        )
        self._encode = encode
        self._idempotent = checks.flag("idempotent", idempotent)
        self._format = RequestFormat(join, self._endpoint.max_bytes, parse)

    @property
    def capabilities(self) -> Capabilities:
        """One concurrent write per connection; idempotent if declared so. With
        `idempotency_header` the same request is repeatable, but an item in another batch has
        another key.

        Not `key_prefix_safe`: a refused item does not stop a later item of its key.
        """
        return Capabilities(
            idempotent=self._idempotent,
            repeatable=None if self._endpoint.idempotency_header is None else "write",
            max_concurrency=self._endpoint.pool_size,
        )

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Send every item of `batch`, in order; suspends for one request, or for several beyond
        `max_bytes` and after a 413.

        Returns an error for each failed item: `PermanentError` (rejected, or cannot be encoded),
        `TransientError`, `UnknownOutcomeError` (no response after it may have been sent),
        `ResultMismatch` (an unreadable response), `ThrottledError`, `UnavailableError`, and
        `RefusedError`, one for all items of its request (401, 403, 404, 405, 407, 410 and
        redirects). A throttle and an outage end the write and apply to the unsent items too; other
        errors do not stop the next request. Raises `ClosedError` while the sink is not open.
        Cancellation drops the connection; the server may have applied the sent items.
        """
        items: Sequence[Any] = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        return await self._send(
            batch,
            encoded_items(self._encode, items, lines=self._format.join is ndjson),
            self._format,
        )

    def __repr__(self) -> str:
        return f"HttpSink({self._endpoint.place})"
