"""Documents to Elasticsearch or OpenSearch, by their bulk endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack
from urllib.parse import urlencode, urlsplit

from ..._clients.encoding import encoded
from ..._core import checks
from ..._core.batch import RowBatch
from ..._core.checks import bad
from ..._core.keywords import takes
from ..._core.sink import Capabilities
from ..http.client import HttpBase
from ..http.config import HttpOptions, endpoint
from ..http.write import Rules
from .action import OPERATIONS, VERSION_TYPES, ActionMaker, check_needs, getter, join
from .answer import FILTER, AnswerReader
from .refusals import refusal_of_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..._core.batch import Batch
    from ..._core.result import WriteResult


Operation = Literal["index", "create", "update", "upsert", "delete"]


class ElasticsearchSink(HttpBase):
    """Writes items as documents by `_bulk`, to Elasticsearch or OpenSearch. Each item has an
    outcome of its own.

    Args:
        url: of the server; a path in it stays before `_bulk`. A user and password in it become
            basic authentication.
        index: the index's (or data stream's, or alias's) name, or a function of an item that gives
            it.
        operation: `"index"` replaces a document, `"create"` refuses if it is there, `"update"`
            changes fields of one that is there, `"upsert"` does either, `"delete"` removes it; or a
            function of an item that gives one of these.
        id: the field that holds a document's id, or a function of an item; it may give `None` for
            `"index"` and `"create"`, and then the server makes an id at every try. Default: an id
            made once per accepted item, so that sending it again never stores it twice.
        document: a function from an item to its document, a mapping (or dataclass, or JSON as bytes
            on one line). Default: the item.
        routing: the field that holds the routing value, or a function of an item.
        pipeline: an ingest pipeline's name, or a function of an item that gives it.
        version: the field that holds a version (a whole number), or a function of an item: an older
            version never replaces a newer one. For `"index"` and `"delete"`.
        version_type: `"external"` takes newer versions only, `"external_gte"` equal ones too.
        on_stale: what becomes of an item whose version is not new enough: `"error"` refuses it
            (`PermanentError`); `"ignore"` counts it as delivered, since what is there is newer.
        retry_on_conflict: how often the server itself tries an update again that met another
            change; default 3.
        params: further parameters of the request, such as `{"refresh": "wait_for"}`.
        compression: `"gzip"` (default) or `None`. headers, auth, max_bytes, max_answer_bytes,
        client, client_options, pool_size, timeout, close_timeout: as for `HttpSink`; an API
            key is `auth="ApiKey ..."`.

    Raises `ConfigError` for a bad argument and `MissingExtra` without httpx. Constructing does not
    suspend. Opening connects to nothing.
    """

    @takes(HttpOptions, endpoint)
    def __init__(
        self,
        url: str,
        *,
        index: str | Callable[[Any], str],
        operation: Operation | Callable[[Any], Operation] = "index",
        id: str | Callable[[Any], str | int | None] | None = None,  # noqa: A002  # its name in every bulk interface
        document: Callable[[Any], object] | None = None,
        routing: str | Callable[[Any], str | None] | None = None,
        pipeline: str | Callable[[Any], str | None] | None = None,
        version: str | Callable[[Any], int | None] | None = None,
        version_type: Literal["external", "external_gte"] = "external",
        on_stale: Literal["error", "ignore"] = "error",
        retry_on_conflict: int = 3,
        params: Mapping[str, str] | None = None,
        compression: Literal["gzip"] | None = "gzip",
        **options: Unpack[HttpOptions],
    ) -> None:
        self._operation = (
            operation if callable(operation) else checks.choice("operation", operation, OPERATIONS)
        )
        check_needs(operation, has_id=id is not None, has_version=version is not None)
        if document is not None and not callable(document):
            raise bad("document", document, "must be a function from an item to its document")
        self._index = _name_or_function("index", index)
        if compression is not None:
            checks.choice("compression", compression, ("gzip",))
        super().__init__(
            endpoint(
                _bulk_url(url, params),
                own_headers={"content-type": "application/x-ndjson", "accept": "application/json"},
                compression=compression,
                **options,
            ),
            reads_answers=True,
        )
        self._actions = ActionMaker(
            index=self._index,
            operation=self._operation,
            id_of=getter("id", id),
            document=document,
            routing=getter("routing", routing),
            pipeline=None if pipeline is None else _name_or_function("pipeline", pipeline),
            version=getter("version", version),
            version_type=checks.choice("version_type", version_type, VERSION_TYPES),
            retry_on_conflict=checks.count("retry_on_conflict", retry_on_conflict, least=0),
        )
        stale_is_fine = checks.choice("on_stale", on_stale, ("error", "ignore")) == "ignore"
        static = self._index if isinstance(self._index, str) else None
        reader = AnswerReader(own_ids=id is None, stale_is_fine=stale_is_fine, index=static)
        self._rules = Rules(join, self._endpoint.max_bytes, reader)

    @property
    def capabilities(self) -> Capabilities:
        """As many writes at once as connections; idempotent where `id` is given, for every
        operation but `"create"` and a function.

        Not `key_prefix_safe`: a document that is refused does not keep a later one of its key from
        being written.
        """
        certain = (
            isinstance(self._operation, str)
            and self._operation != "create"
            and not self._actions.wants_keys
        )
        return Capabilities(idempotent=certain, max_concurrency=self._endpoint.pool_size)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Send every item of `batch`, in order; suspends for one request or, beyond `max_bytes` and
        after a 413, for several.

        The details of an item are the server's answer about it: `_id`, `_version`, `result`,
        `status`, and `error` where it has one. An item fails with `ThrottledError` (429),
        `TransientError` (5xx, or an update that met another change), `RefusedError` (its index is
        missing, closed, blocked or not granted), `ResultMismatch` (an answer that cannot be
        understood) or `PermanentError` (other 4xx, or not to be encoded). It is a `duplicate` where
        an earlier try had written it: a `create` or an external version that conflicts, or a
        `delete` that finds nothing, after a try that may have been applied. Raises, and
        cancellation leaves behind, as for `HttpSink`.
        """
        items: Sequence[Any] = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        keys = batch.item_keys() if self._actions.wants_keys else [None] * len(items)
        return await self._send(
            batch, encoded(self._actions.records, self._actions.record, items, keys), self._rules
        )

    def _refusal(self, status: int, text: str) -> tuple[str, str | None]:
        return refusal_of_request(status, text)

    def __repr__(self) -> str:
        operation = self._operation if isinstance(self._operation, str) else "..."
        return (
            f"ElasticsearchSink({self._endpoint.place}, index={self._index!r}, "
            f"operation={operation!r})"
        )


def _bulk_url(url: object, params: Mapping[str, str] | None) -> str:
    if not isinstance(url, str):
        raise bad(
            "url",
            type(url).__name__,
            "must be an absolute URL that begins with http:// or https://",
        )
    given = dict(params or {})
    if "filter_path" in given:
        raise bad("params", "filter_path", "is the sink's, which must see every item's status")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise bad("url", "...", "its host or port cannot be read") from None
    if parts.query:
        raise bad("url", "...", "must have no query; see params=")
    return parts._replace(
        path=f"{parts.path.rstrip('/')}/_bulk",
        query=urlencode({**given, "filter_path": FILTER}, safe=",*"),
    ).geturl()


def _name_or_function(name: str, value: object) -> Any:
    if callable(value) or (isinstance(value, str) and value):
        return value
    raise bad(name, value, "must be a name, or a function of an item that gives one")
