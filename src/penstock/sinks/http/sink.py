"""Records to an HTTP endpoint that takes many per request."""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal, Unpack

from ..._clients.encoding import encoded_items, ndjson
from ..._core.batch import RowBatch
from ..._core.checks import bad, choice
from ..._core.keywords import takes
from ..._core.sink import Capabilities
from .body import json_array
from .client import HttpBase
from .config import HttpOptions, endpoint
from .write import Rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..._clients.encoding import Encode
    from ..._core.batch import Batch
    from ..._core.result import WriteResult
    from .body import Join
    from .write import Parse


_BODIES: Mapping[str, tuple[Join, str]] = {
    "ndjson": (ndjson, "application/x-ndjson"),
    "json": (json_array, "application/json"),
}


class HttpSink(HttpBase):
    """Posts items to one URL, many per request; on httpx, or any client of its shape.

    A body is never longer than `max_bytes` before compression: a batch that is goes as several
    requests, one after the other, as it does when the server answers 413. An item that cannot be
    encoded, or is too large by itself, fails alone with `PermanentError`. The items of a request
    that succeeded are delivered, whatever becomes of the next one.

    Args:
        url: where to; `http://` or `https://`. A user and password in it become basic
            authentication. Shown without these and its query.
        body: how records make a body: `"ndjson"` (a line each), `"json"` (one array), or a function
            from a list of records, as bytes, to the body.
        encode: a function from an item to its record, bytes or text; default: JSON, with dates in
            ISO form, UUIDs and decimals as text and dataclasses as objects.
        method: `"POST"`, `"PUT"` or `"PATCH"`.
        headers: for every request; they replace the sink's own, such as `Content-Type`. Values are
            never shown.
        auth: `(user, password)`, the value of the `Authorization` header, or a function, async or
            not, that returns that value for each request. Never shown.
        idempotency_header: the header that carries a key by which the server recognises a request
            that it has seen: equal whenever the same part of a batch is sent again, and only then.
            Default: none is sent.
        idempotent: whether the server takes an item twice without effect; only told to others, by
            `capabilities`.
        compression: `"gzip"` or `"zstd"`; default: none. Bodies from 64 KiB on are compressed in a
            thread.
        max_bytes: the ceiling of a body, uncompressed; default 5,000,000. `None`: no ceiling.
        max_answer_bytes: the longest answer of a success that is read, in bytes after
            decompression; default 64 MiB. A longer one leaves the items of its request unknown.
            Without `parse` the answer is neither decompressed nor kept.
        parse: for servers that answer per item: a function from the `HttpResponse` of a success and
            the batch of the items that the request carried, to what a sink's `write` returns
            (`WriteResult.from_outcomes` checks the number of answers). Any exception but a
            `SinkError`, and a result that does not fit the batch, leaves the items unknown.
            Default: a success means that every item was delivered.
        client: a function, async or not, that makes the client: an `httpx.AsyncClient` or one with
            its `stream` and `aclose`. The sink closes it.
        client_options: any option of `httpx.AsyncClient`: `proxy`, `verify`, `cert`, `http2` and so
            on; `verify` may be a function that makes the `SSLContext`. Never shown.
        pool_size: how many connections, and so how many writes at once; default 10, with `client=`
            no limit.
        timeout: seconds that the network may be silent; default 30, of which at most 5 for
            connecting. Bound a whole try with `Timeout`.
        close_timeout: seconds for closing; default 5.

    Raises `ConfigError` for a bad argument and `MissingExtra` without httpx (or zstandard).
    Constructing does not suspend. Opening makes the client and connects to nothing, so a wrong host
    or certificate shows at the first write, as `UnavailableError`.
    """

    @takes(
        HttpOptions,
        endpoint,
        before={
            "idempotency_header": ("headers", "auth"),
            "parse": ("max_bytes", "max_answer_bytes"),
        },
    )
    def __init__(
        self,
        url: str,
        *,
        body: Literal["ndjson", "json"] | Join = "ndjson",
        encode: Encode | None = None,
        method: Literal["POST", "PUT", "PATCH"] = "POST",
        idempotency_header: str | None = None,
        idempotent: bool = False,
        compression: Literal["gzip", "zstd"] | None = None,
        parse: Parse | None = None,
        **options: Unpack[HttpOptions],
    ) -> None:
        if encode is not None and not callable(encode):
            raise bad("encode", encode, "must be a function from an item to bytes or text")
        if parse is not None and not callable(parse):
            raise bad(
                "parse",
                parse,
                "must be a function from a response and a batch to a WriteResult or None",
            )
        if iscoroutinefunction(parse):
            raise bad("parse", parse, "must not be async: the answer is in memory already")
        join, content_type = (
            (body, "application/octet-stream")
            if callable(body)
            else _BODIES[choice("body", body, _BODIES)]
        )
        super().__init__(
            endpoint(
                url,
                method=method,
                own_headers={"content-type": content_type},
                idempotency_header=idempotency_header,
                compression=compression,
                **options,
            ),
            reads_answers=parse is not None,
        )
        self._encode = encode
        self._idempotent = idempotent
        self._rules = Rules(join, self._endpoint.max_bytes, parse)

    @property
    def capabilities(self) -> Capabilities:
        """As many writes at once as connections; idempotent if it was said to be.
        `idempotency_header` alone does not make it so, since an item that comes in another batch
        has another key.

        Not `key_prefix_safe`: an item that is refused does not keep a later item of its key from
        being written.
        """
        return Capabilities(idempotent=self._idempotent, max_concurrency=self._endpoint.pool_size)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Send every item of `batch`, in order; suspends for one request or, beyond `max_bytes` and
        after a 413, for several.

        Returns an error for each item that failed: `PermanentError` (rejected, or not to be
        encoded), `TransientError`, `UnknownOutcomeError` (no answer after it may have been sent),
        `ResultMismatch` (an answer that cannot be read), `ThrottledError`, `UnavailableError`, and
        `RefusedError`, one for all items of its request (401, 403, 404, 405, 407, 410 and
        redirects). A throttle and an outage end the write, and hold for the items that were not
        sent; other errors do not keep the next request from being sent. Raises `ClosedError` while
        the sink is not open. Cancellation drops the connection; the server may have applied what
        was sent.
        """
        items: Sequence[Any] = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        return await self._send(
            batch, encoded_items(self._encode, items, lines=self._rules.join is ndjson), self._rules
        )

    def __repr__(self) -> str:
        return f"HttpSink({self._endpoint.place})"
