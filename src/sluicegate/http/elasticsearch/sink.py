"""Documents to Elasticsearch or OpenSearch through the bulk endpoint."""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from itertools import repeat
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlencode, urlsplit

from ..._core import checks
from ..._core.batch import RowBatch
from ..._core.checks import bad
from ..._core.classify import caused
from ..._core.errors import PermanentError, RefusedError, SinkError
from ..._core.keywords import known_arguments
from ..._core.outcome import Outcome
from ..._core.sink import Capabilities, WriteResult
from ..._core.values.encoding import encoded, getter, json_texts, to_json
from ..client import HttpBase
from ..config import MAX_BYTES, HttpAccess, access_of, endpoint, split_url
from ..errors import RecordRefused, for_status
from ..write import RequestFormat
from .answer import FILTER, AnswerReader, refusal_of_request
from .stored import Action, ConflictError, found_in, judge, lookups, unread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..._core.batch import Batch
    from ..._core.values.encoding import Getter, Records
    from ..write import HttpResponse


Operation = Literal["index", "create", "update", "upsert", "delete"]
OPERATIONS = ("index", "create", "update", "upsert", "delete")
_AROUND = {"update": ('{"doc":', "}"), "upsert": ('{"doc":', ',"doc_as_upsert":true}')}
"""The text before and after the document."""
_NEEDS_ID = frozenset({"update", "upsert", "delete"})
_TAKES_VERSION = frozenset({"index", "delete"})
_LONGEST_ID = 512
"""Bytes of the longest id."""
_RETRIES = 3
"""How often the server itself retries an update after a concurrent change."""


@known_arguments(access=HttpAccess)
class ElasticsearchSink(HttpBase):
    """Writes items as documents to Elasticsearch or OpenSearch, by `_bulk`. Each item has its own
    outcome.

    `max_bytes` and `pool_size` are those of `HttpSink`; an API key is
    `HttpAccess(url, auth="ApiKey ...")`.

    Args:
        url: the server's URL, or an `HttpAccess`; its path is kept before `_bulk`. A user and
            password in it become basic authentication.
        index: the name of the index, data stream or alias, or a function from an item to it.
        operation: `"index"` (default) replaces a document, `"create"` fails if it exists,
            `"update"` changes fields of an existing one, `"upsert"` does either, `"delete"` removes
            it; or a function from an item to one of these.
        id: the field that holds a document's id, or a function from an item to it; for `"index"`
            and `"create"` it may return `None`, and then the server generates an id at every
            attempt. Default: an id generated once per accepted item, so that a resend never stores
            it twice.
        document: a function from an item to its document: a mapping, a dataclass, a pydantic model
            or the like, or JSON as bytes on one line. Default: the item.
        routing: the field that holds the routing value, or a function from an item to it.
        pipeline: the name of an ingest pipeline, or a function from an item to it.
        version: the field that holds a version (a whole number), or a function from an item to it:
            an older version never replaces a newer one. For `"index"` and `"delete"`.
        on_stale: the outcome of an item whose version is not new enough: `"error"` (default)
            refuses it (`PermanentError`); `"ignore"` counts it as delivered, since the stored one
            is newer.
        params: additional parameters of the request, such as `{"refresh": "wait_for"}`.
        compression: `"gzip"` (default) or `None`.

    Raises `ConfigError` for a bad argument and `MissingExtra` without httpx. Constructing does not
    suspend. Opening connects to nothing.
    """

    def __init__(
        self,
        url: str | HttpAccess,
        *,
        index: str | Callable[[Any], str],
        operation: Operation | Callable[[Any], Operation] = "index",
        id: str | Callable[[Any], str | int | None] | None = None,  # noqa: A002  # the name in every bulk interface
        document: Callable[[Any], object] | None = None,
        routing: str | Callable[[Any], str | None] | None = None,
        pipeline: str | Callable[[Any], str | None] | None = None,
        version: str | Callable[[Any], int | None] | None = None,
        on_stale: Literal["error", "ignore"] = "error",
        params: Mapping[str, str] | None = None,
        compression: Literal["gzip"] | None = "gzip",
        max_bytes: int | None = MAX_BYTES,
        pool_size: int | None = None,
    ) -> None:
        access = access_of(url)
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
                access,
                _url(access.url, "_bulk", {**_check_params(params), "filter_path": FILTER}),
                own_headers={"content-type": "application/x-ndjson", "accept": "application/json"},
                compression=compression,
                max_bytes=max_bytes,
                pool_size=pool_size,
            ),
            reads_answers=True,
        )
        host = urlsplit(self._endpoint.url).netloc  # without the login
        self._lookup_url = urlsplit(_url(access.url, "_mget", {}))._replace(netloc=host).geturl()
        self._actions = ActionMaker(
            index=self._index,
            operation=self._operation,
            id_of=getter("id", id),
            document=document,
            routing=getter("routing", routing),
            pipeline=None if pipeline is None else _name_or_function("pipeline", pipeline),
            version=getter("version", version),
        )
        stale_is_fine = checks.choice("on_stale", on_stale, ("error", "ignore")) == "ignore"
        static = self._index if isinstance(self._index, str) else None
        reader = AnswerReader(own_ids=id is None, stale_is_fine=stale_is_fine, index=static)
        self._format = RequestFormat(join, self._endpoint.max_bytes, reader)

    @property
    def capabilities(self) -> Capabilities:
        """One concurrent write per connection; idempotent if `id` is given, for every operation
        except `"create"` and a function. Always repeatable, since a document keeps its id.

        Not `key_prefix_safe`: a refused document does not stop a later one of its key.
        """
        certain = (
            isinstance(self._operation, str)
            and self._operation != "create"
            and not self._actions.wants_keys
        )
        return Capabilities(
            idempotent=certain, repeatable="item", max_concurrency=self._endpoint.pool_size
        )

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Send every item of `batch`, in order; suspends for one request, or for several beyond
        `max_bytes`, after a 413, and after a 400 for the whole request: that is sent again in
        halves, since a single item may have caused it.

        The details of an item are its entry in the response: `_id`, `_version`, `result`, `status`,
        and `error` if present. An item fails with `ThrottledError` (429), `TransientError` (5xx, or
        an update that conflicted with a concurrent change), `RefusedError` (its index is missing,
        closed, blocked or not granted), `ResultMismatch` (an unreadable entry) or `PermanentError`
        (other 4xx, or an item that cannot be encoded). After an attempt that may have been applied,
        a `delete` that finds nothing is a `duplicate`; and a `create` or an external version that
        conflicts is one if the stored document is the item's. Otherwise it fails with
        `StoredRowDiffers`, with `KeyRepeated` if an earlier item of the batch has its id, or with
        `UnverifiableError` if the document cannot be read. Exceptions and cancellation are those of
        `HttpSink`.
        """
        items: Sequence[Any] = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        keys = batch.item_keys() if self._actions.wants_keys else [None] * len(items)
        records = encoded(self._actions.records, self._actions.record, items, keys)
        result = await self._send(batch, records, self._format)
        if result is None:
            return None
        taken = {i: error for i, error in result.errors.items() if isinstance(error, ConflictError)}
        return await self._verify(batch, records, result, taken) if taken else result

    async def _verify(
        self,
        batch: Batch[Any],
        records: Records,
        result: WriteResult,
        taken: Mapping[int, ConflictError],
    ) -> WriteResult:
        """Compare the stored documents with conflicting items that an earlier attempt may have
        stored. Suspends for a request, or several for large documents.
        """
        stored = [i for i in range(len(batch)) if i not in result.errors]
        for index in stored:
            outcome = result.outcomes.get(index, Outcome.DELIVERED)
            batch.settle((index,), outcome, {index: result.details[index]})
        lines = zip(records.indices, records.records, strict=True)
        actions = {index: Action.of(record) for index, record in lines}
        found: dict[int, dict[str, Any] | SinkError] = {}
        for part, body in lookups(actions, taken):
            try:
                response = await self._look_up(body, batch)
            except SinkError as error:
                lasts = isinstance(error, (PermanentError, RefusedError))
                found.update(dict.fromkeys(part, unread(error) if lasts else error))
            else:
                found.update(zip(part, found_in(response.body, len(part)), strict=True))
        errors, outcomes = dict(result.errors), dict(result.outcomes)
        for index, judgement in judge(self._endpoint.place, actions, found, stored).items():
            if judgement is None:
                del errors[index]
                outcomes[index] = Outcome.DUPLICATE
            else:
                errors[index] = judgement
        return WriteResult(len(batch), errors, outcomes, result.details)

    async def _look_up(self, body: bytes, batch: Batch[Any]) -> HttpResponse:
        assert self._client is not None, "the sink has just written"
        assert self._room is not None
        return await self._post(
            self._client,
            self._room,
            lambda _: self._lookup_url,
            body,
            batch,
            content_type="application/json",
        )

    def _known_failure(
        self, status: int, headers: Mapping[str, str], text: str, retry_after: float | None
    ) -> SinkError | None:
        """The error of a request that one item may have caused: the server parses some items with
        the request, and applies nothing.
        """
        kind, repair = refusal_of_request(status, text)
        if status != HTTPStatus.BAD_REQUEST or not kind or repair is not None:
            return None
        error = for_status(status, self._endpoint.place, text, retry_after, reason=kind)
        return caused(RecordRefused(str(error)), error.__cause__, summary=error.summary)

    def _refusal(self, status: int, text: str) -> tuple[str, str | None]:
        return refusal_of_request(status, text)

    def __repr__(self) -> str:
        operation = self._operation if isinstance(self._operation, str) else "..."
        return (
            f"ElasticsearchSink({self._endpoint.place}, index={self._index!r}, "
            f"operation={operation!r})"
        )


def _check_params(params: Mapping[str, str] | None) -> dict[str, str]:
    given = dict(params or {})
    if "filter_path" in given:
        raise bad("params", "filter_path", "is set by the sink, which needs every item's status")
    return given


def _url(url: object, name: str, query: Mapping[str, str]) -> str:
    parts = split_url(url)
    if parts.query:
        raise bad("url", "...", "must have no query; see params=")
    return parts._replace(
        path=f"{parts.path.rstrip('/')}/{name}", query=urlencode(query, safe=",*")
    ).geturl()


def _name_or_function(name: str, value: object) -> Any:
    if callable(value) or (isinstance(value, str) and value):
        return value
    raise bad(name, value, "must be a name, or a function of an item that returns one")


# -- actions ---------------------------------------------------------------------------------------


class ActionMaker:
    """Encoder of an item's lines in the body.

    A server refuses a whole request for one malformed action, so known mistakes are detected here
    and fail only their own item.
    """

    def __init__(
        self,
        *,
        index: str | Getter,
        operation: str | Getter,
        id_of: Getter | None,
        document: Getter | None,
        routing: Getter | None,
        pipeline: str | Getter | None,
        version: Getter | None,
    ) -> None:
        self._index = index
        self._operation = operation
        self._id = id_of
        self._document = document
        self._routing = routing
        self._pipeline = pipeline
        self._version = version

    @property
    def wants_keys(self) -> bool:
        """Whether ids are derived from the batch's keys."""
        return self._id is None

    def records(self, items: Sequence[Any], keys: Sequence[str | None]) -> list[bytes]:
        """The lines for each item; `keys` are the ids if no function returns one. Raises if any
        item cannot be encoded.
        """
        if self._operation == "delete" or not isinstance(self._operation, str):
            return list(map(self.record, items, keys))
        before, after = _AROUND.get(self._operation, ("", ""))
        documents = items if self._document is None else list(map(self._document, items))
        sources = json_texts(documents)
        if not all(source.startswith("{") for source in sources):
            raise TypeError("a document is not a JSON object")
        actions = map(self._action, repeat(self._operation), items, keys)
        return [
            f"{action}\n{before}{source}{after}\n".encode()
            for action, source in zip(actions, sources, strict=True)
        ]

    def record(self, item: Any, key: str | None = None) -> bytes:
        """The lines for one item. Raises if it cannot be encoded."""
        operation = self._operation if isinstance(self._operation, str) else self._operation(item)
        action = self._action(operation, item, key)
        if operation == "delete":
            return f"{action}\n".encode()
        before, after = _AROUND.get(operation, ("", ""))
        return b"".join((f"{action}\n{before}".encode(), self._source(item), f"{after}\n".encode()))

    def _action(self, operation: str, item: Any, key: str | None) -> str:
        index = self._index if isinstance(self._index, str) else self._index(item)
        pipeline = (
            self._pipeline
            if self._pipeline is None or isinstance(self._pipeline, str)
            else self._pipeline(item)
        )
        action = _head(operation, index, pipeline)
        document_id = key if self._id is None else self._id(item)
        if document_id is not None:
            action += f',"_id":{_id(document_id)}'
        elif operation in _NEEDS_ID:
            raise ValueError(f"{operation!r} requires an id, and the item has none")
        if self._routing is not None and (routing := self._routing(item)) is not None:
            action += f',"routing":{encode_basestring(str(routing))}'
        if self._version is not None and (version := self._version(item)) is not None:
            action += _with_version(operation, version)
        return action + "}}"

    def _source(self, item: Any) -> bytes:
        document = item if self._document is None else self._document(item)
        source = document if isinstance(document, bytes) else to_json(document)
        if not source.startswith(b"{"):
            raise TypeError(
                f"a document is a JSON object; got {type(document).__name__}; pass document=, a "
                "function that returns one"
            )
        if b"\n" in source:
            raise ValueError("a document given as bytes must not contain a newline")
        return source


def join(records: Sequence[bytes]) -> bytes:
    """JoinBodies records to a bulk body; each record already ends in a newline."""
    return b"".join(records)


@lru_cache(maxsize=1024)
def _head(operation: str, index: str, pipeline: str | None) -> str:
    """The beginning of an action's line; most items share it."""
    if operation not in OPERATIONS:
        raise ValueError(f"operation {operation!r}: must be one of {', '.join(OPERATIONS)}")
    if not isinstance(cast("object", index), str) or not index:
        raise ValueError(f"index {index!r}: must be a name")
    name = "update" if operation == "upsert" else operation
    head = f'{{"{name}":{{"_index":{encode_basestring(index)}'
    if name == "update":
        head += f',"retry_on_conflict":{_RETRIES}'
    if pipeline is not None and operation != "delete":
        head += f',"pipeline":{encode_basestring(pipeline)}'
    return head


def _id(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise TypeError(f"an id is text or a whole number, not {type(value).__name__}")
    text = str(value)
    if not 1 <= len(text.encode()) <= _LONGEST_ID:
        raise ValueError(f"an id has 1 to {_LONGEST_ID} bytes, not {len(text.encode())}")
    return encode_basestring(text)


def _with_version(operation: str, version: object) -> str:
    if operation not in _TAKES_VERSION:
        raise ValueError(f"{operation!r} takes no version")
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 2**63:
        raise ValueError(f"a version is a whole number from 0 to 2**63 - 1, not {version!r}")
    return f',"version":{version},"version_type":"external"'


def check_needs(operation: object, *, has_id: bool, has_version: bool) -> None:
    """Raise `ConfigError` if every item would fail."""
    if not isinstance(operation, str):
        return
    if operation in _NEEDS_ID and not has_id:
        raise bad(
            "id", None, f"operation={operation!r} needs a field's name or a function of an item"
        )
    if has_version and operation not in _TAKES_VERSION:
        raise bad(
            "version", "...", f"operation={operation!r} takes no version; 'index' and 'delete' do"
        )
