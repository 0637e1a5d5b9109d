"""The outcome of each item in a bulk response.

1. Each item's status counts; the summary field `errors` beside them is ignored.
2. A response with more or fewer items than the request, or of another shape, leaves every item
   unknown. A malformed entry leaves only its own item unknown. Both are `ResultMismatch`: the
   request may have been applied, so nothing is resent automatically.
3. A document that its data stream did not accept, but a *failure store* did, has the status of a
   success. It is in none of the data stream's own indices, so its item has failed.
4. A reason may quote an item, so it is part of the error's message, for receipts and dead letters,
   but not of `summary`, for logs.

Errors of Elasticsearch and OpenSearch that persist until an operator repairs the cause.

1. Errors of a missing, closed or blocked index and of a missing privilege are not caused by an
   item: `RefusedError`, with the index and the setting.
2. Some of them have status 400 and a type that faulty documents have, too, so their text decides: a
   missing pipeline, an alias without a write index, a data stream that accepts only `create`, too
   many shards for another index.
3. So has an index whose primary shard is on no node: status 503, after the server has waited for it.
4. A full disk is one of these errors: from the flood-stage watermark on, the server blocks the
   index (status 403 or 429).
5. A missing document, a version conflict and a field that does not fit the mapping concern only
   their items.

Stored documents whose ids or versions conflict with items of an unknown attempt. Pure.

1. A conflict of an item that an earlier attempt may have stored is a duplicate only if the stored
   document is the item's: the same `_source`, and with external versions the same version. A
   deletion is the item's if the document does not exist.
2. An item is also a duplicate if a later item of the same batch with the same id and a higher
   version holds the document: the batch itself has replaced it.
3. All other conflicts are judged by `KeyConflicts`: a newer version of another writer may or may not
   have replaced the item's.
"""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..._core.classify import caused, summarized
from ..._core.errors import (
    PermanentError,
    RefusedError,
    ResultMismatch,
    SinkError,
    TransientError,
    UnverifiableError,
)
from ..._core.outcome import Outcome
from ..._core.sink import WriteResult
from ..._core.values.rows import KeyConflicts
from ..errors import for_item

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ..._core.batch import Batch
    from ..write import HttpResponse


FILTER = (
    "errors,items.*._id,items.*._version,items.*.result,items.*.status,items.*.error,"
    "items.*.failure_store"
)
"""The requested part of a response: about a third of it."""
_FAILURE_STORE = "failure_store"
_OPERATIONS = frozenset({"index", "create", "update", "delete"})
_SHOWN = 1_000
"""Characters of an item's reasons shown in a message."""

Said = dict[str, Any]
_BLOCKED = frozenset({"cluster_block_exception", "index_create_block_exception"})
_TYPE = re.compile(r'"type"\s*:\s*"([a-z_]{1,80})"')
_NAMED = re.compile(r"index \[([^\[\]]{1,255})\]|\[([^\[\]]{1,255})\] (?:index|blocked)")
_BLOCK = re.compile(r"\b[A-Z_]+/([0-9]{1,3})/")
_NO_HANDLER = re.compile(r'\{\s*"error"\s*:\s*"no handler found for uri')
_PARAMETER = re.compile(r'"reason"\s*:\s*"request \[[^\]]*\] contains unrecognized parameter')
_SETTINGS = {
    "4": "open {index}",
    "5": "set index.blocks.read_only of {index} to false",
    "6": "set cluster.blocks.read_only to false",
    "8": "set index.blocks.write of {index} to false",
    "9": "set index.blocks.metadata of {index} to false",
    "10": "set cluster.blocks.create_index to false, after freeing disk space if a full disk "
    "has set it",
    "12": "free disk space (or add some), then set index.blocks.read_only_allow_delete of "
    "{index} to null",
    "13": "set cluster.blocks.read_only_allow_delete to false",
}
"""The repair for each block, by the server's number for it."""
_BY_TEXT = (
    (
        "illegal_argument_exception",
        re.compile(r"pipeline with id \[([^\[\]]{1,255})\] does not exist"),
        'create the ingest pipeline "{0}", or correct pipeline= or default_pipeline of {index}',
    ),
    (
        "illegal_argument_exception",
        re.compile(r"no write index is defined for alias \[([^\[\]]{1,255})\]"),
        'make an index of the alias "{0}" its write index (is_write_index)',
    ),
    (
        "illegal_argument_exception",
        re.compile(r"only write ops with an op_type of create are allowed in data streams"),
        'pass operation="create": {index} is a data stream',
    ),
    (
        "validation_exception",
        re.compile(r"Validation Failed: .{1,300} maximum (?:\w+ )?shards open"),
        "remove indices, or raise cluster.max_shards_per_node, to let the cluster create {index}",
    ),
)
"""The type, the text and the repair of errors with status 400 for which no document is at fault."""
MOST_BYTES = 4_000_000
"""Documents looked up in one request, in bytes of the items'."""
_NOT_READ = (
    "an earlier attempt may have stored this document, and the stored one cannot be compared"
)


class AnswerReader:
    """Parser of bulk responses, item by item.

    A conflict under the sink's own id (`own_ids`) is a `duplicate`: only an earlier attempt can have
    caused it. Under another id it is a `ConflictError` if an attempt may have been applied, and the
    stored document decides. With `stale_is_fine`, a stored document of the same or a newer version
    counts as success. `index` is the name in every action, `None` if it differs.
    """

    def __init__(self, *, own_ids: bool, stale_is_fine: bool, index: str | None = None) -> None:
        self._own_ids = own_ids
        self._stale_is_fine = stale_is_fine
        self._index = index

    def __call__(self, response: HttpResponse, batch: Batch[Any]) -> WriteResult:
        """The result for the request's items. Raises `ResultMismatch` unless there is one entry for
        each.
        """
        pairs = _pairs(json.loads(response.body), len(batch))
        fine = [
            operation in _OPERATIONS
            and type(said) is dict
            and type(status := said.get("status")) is int
            and 200 <= status < 300
            and "error" not in said
            and _FAILURE_STORE not in said
            for operation, said in pairs
        ]
        if all(fine):
            return WriteResult(len(batch), details=dict(enumerate(said for _, said in pairs)))
        maybe = batch.maybe_applied
        entries = [_entry(*pair) for pair in pairs]
        outcomes = [
            self._outcome(operation, said, response, maybe=i in maybe)
            for i, (operation, said) in enumerate(entries)
        ]
        return WriteResult.from_outcomes(
            batch, outcomes, details=dict(enumerate(said for _, said in entries))
        )

    def _outcome(
        self, operation: str, said: Said, response: HttpResponse, *, maybe: bool
    ) -> Outcome | SinkError | None:
        status = said.get("status")
        if (
            type(status) is not int
            or not 200 <= status < 600
            or 300 <= status < 400
            or (status < 300 and "error" in said)
        ):
            return _unreadable(status)
        if status < 300:
            return _stored_as_failure() if said.get(_FAILURE_STORE) == "used" else None
        error = said.get("error")
        if status == HTTPStatus.CONFLICT and operation != "update":
            if operation == "create" and self._own_ids:
                return Outcome.DUPLICATE
            if operation != "create" and self._stale_is_fine:
                return Outcome.DUPLICATE if maybe else None
            if maybe:
                return ConflictError(cast("Said", error) if isinstance(error, dict) else {})
        repair = (
            repair_of_item(status, cast("Said", error), self._index)
            if isinstance(error, dict)
            else None
        )
        if repair is None and status == HTTPStatus.NOT_FOUND and operation == "delete" and maybe:
            return Outcome.DUPLICATE
        return _error(operation, status, said, repair, response)


def _pairs(answer: object, size: int) -> list[tuple[str, Said]]:
    """Each item's operation and entry, empty if malformed. Raises `ResultMismatch`."""
    items = cast("Said", answer).get("items") if isinstance(answer, dict) else None
    if not isinstance(items, list):
        raise ResultMismatch(
            "the answer has no list of items; the outcome of every item is unknown"
        )
    listed = cast("list[Said]", items)  # if well-formed
    if len(listed) != size:
        raise ResultMismatch(
            f"{len(listed)} answers for a request of {size} items; the outcome of every item "
            "is unknown"
        )
    return [
        next(iter(each.items())) if type(each) is dict and len(each) == 1 else ("", {})
        for each in listed
    ]


def _entry(operation: str, said: object) -> tuple[str, Said]:
    """The operation and its entry; both are empty if the entry is malformed."""
    return (
        (operation, cast("Said", said))
        if operation in _OPERATIONS and isinstance(said, dict)
        else ("", {})
    )


def _unreadable(status: object) -> ResultMismatch:
    shown = status if type(status) is int and abs(status) < 100_000 else type(status).__name__
    return ResultMismatch(
        f"the server's answer about this item cannot be understood (status: {shown}); it may "
        "have been applied"
    )


def _stored_as_failure() -> PermanentError:
    message = (
        "the data stream has not accepted the document, and has stored it in its failure store, "
        "with the reason"
    )
    return summarized(PermanentError(message), message)


def _error(
    operation: str, status: int, said: Said, repair: str | None, response: HttpResponse
) -> SinkError:
    told, kinds = reasons(said.get("error"), response.redact, _SHOWN)
    if not told:
        result = said.get("result")
        told = kinds = (
            result if isinstance(result, str) and result == "not_found" else "no reason given"
        )
    message, summary = f"{status} {told}", f"{status} {kinds}".rstrip()
    if repair is not None:
        repair = response.redact(repair)
        return summarized(
            RefusedError(message, repair=repair, of_item=True), f"{summary}; to repair: {repair}"
        )
    if status == HTTPStatus.CONFLICT and operation == "update":
        # another writer changed the document in the meantime
        return summarized(TransientError(message), summary)
    return summarized(for_item(status, message, response.retry_after), summary)


# -- refusals --------------------------------------------------------------------------------------


def repair_of_item(status: int, error: Mapping[str, Any], index: str | None) -> str | None:
    """The repair for an item's error, in one sentence; `None` if the item is at fault.

    `index` is the name in the item's action, if known; a name in the error takes precedence.
    """
    kind, reason = error.get("type"), error.get("reason")
    named = _index_of(error, reason) or index
    where = f'the index "{named}"' if named else "the index"
    if kind == "index_not_found_exception":
        return f"create {where}, or let action.auto_create_index create it"
    if kind == "index_closed_exception":
        return f"open {where}"
    if kind in _BLOCKED and status in {403, 429}:
        return _of_block(reason, where)
    if kind == "security_exception" and status in {401, 403}:
        return f"grant the credentials that were sent the right to write to {where}"
    if kind == "unavailable_shards_exception" and status == 503:
        return f"restore the shards of {where}; its cluster health names the missing ones"
    return _by_text(kind, reason, where) if status == 400 else None


def refusal_of_request(status: int, text: str) -> tuple[str, str | None]:
    """The error type in the response to a whole request, and the repair if the text is more
    specific than the status.
    """
    found = _TYPE.search(text)
    kind = "" if found is None else found[1]
    if kind in _BLOCKED and status in {403, 429}:
        return kind, _of_block(text, "the index")
    if status == 400 and _NO_HANDLER.match(text):
        return kind, "correct the path of the URL: the server has no _bulk there"
    if status == 400 and kind == "illegal_argument_exception" and _PARAMETER.search(text):
        return kind, "correct params=: the server does not know one of them"
    return kind, None


def _by_text(kind: object, reason: object, where: str) -> str | None:
    for known, pattern, repair in _BY_TEXT:
        if kind == known and isinstance(reason, str) and (found := pattern.match(reason)):
            return repair.format(*found.groups(), index=where)
    return None


def _of_block(reason: object, where: str) -> str:
    found = _BLOCK.search(reason) if isinstance(reason, str) else None
    return _SETTINGS.get(found[1] if found else "", "lift the block on {index}").format(index=where)


def _index_of(error: Mapping[str, Any], reason: object) -> str | None:
    index = error.get("index")
    if isinstance(index, str) and index:
        return index
    found = _NAMED.search(reason) if isinstance(reason, str) else None
    return None if found is None else found[1] or found[2]


def reasons(error: object, redact: Callable[[str], str], most: int) -> tuple[str, str]:
    """The server's reasons, outermost first: in full, and as types only, without values of items."""
    told: list[str] = []
    kinds: list[str] = []
    length = 0
    while isinstance(error, dict) and length <= most:
        named = cast("dict[str, Any]", error)
        said = [
            value
            for name in ("type", "reason")
            if isinstance(value := named.get(name), str) and value
        ]
        told.append(": ".join(said))
        kinds.extend(kind for kind in said[:1] if re.fullmatch(r"[a-z_]{1,80}", kind))
        length += len(told[-1])
        error = named.get("caused_by")
    if not told and isinstance(error, str):
        told.append(error)
    joined = redact("; caused by ".join(told))
    return joined if len(joined) <= most else f"{joined[:most]}...", "; caused by ".join(kinds)


# -- stored documents ------------------------------------------------------------------------------


class ConflictError(PermanentError):
    """A conflict of an item that an earlier attempt may have stored; never leaves the sink.

    `index` is the name of the stored document's index, if the server reports it.
    """

    def __init__(self, error: Mapping[str, object]) -> None:
        super().__init__("the id or a newer version is taken")
        index = error.get("index")
        self.index = index if isinstance(index, str) and index else None


class Action(NamedTuple):
    """One item of a bulk request."""

    operation: str
    key: tuple[str, str, str]
    """The index, the id and the routing."""
    version: int | None
    source: bytes

    @classmethod
    def of(cls, record: bytes) -> Action:
        """Parse the lines of an item."""
        head, _, source = record.partition(b"\n")
        ((operation, said),) = json.loads(head).items()
        key = said["_index"], said.get("_id", ""), said.get("routing", "")
        return cls(operation, key, said.get("version"), source)

    def is_stored_as(self, found: Mapping[str, Any]) -> bool:
        """Whether an entry of the answer to a look-up is what this action leaves behind."""
        if self.operation == "delete":
            return found.get("found") is not True
        if found.get("found") is not True:
            return False
        if self.version is not None and found.get("_version") != self.version:
            return False
        try:
            return _canonical(json.loads(self.source)) == _canonical(found["_source"])
        except (ValueError, RecursionError):
            return False


def _canonical(document: object) -> str:
    """The text of a document; equal for equal values, but not for 1, 1.0 and true."""
    return json.dumps(document, sort_keys=True)


def lookups(
    actions: Mapping[int, Action], taken: Mapping[int, ConflictError]
) -> Iterator[tuple[Sequence[int], bytes]]:
    """The bodies of requests for the stored documents, and the indices of their items."""
    part: list[int] = []
    size = 0
    for index in sorted(taken):
        part.append(index)
        size += len(actions[index].source) + 1_000
        if size >= MOST_BYTES:
            yield part, _lookup(actions, taken, part)
            part, size = [], 0
    if part:
        yield part, _lookup(actions, taken, part)


def _lookup(
    actions: Mapping[int, Action], taken: Mapping[int, ConflictError], part: Iterable[int]
) -> bytes:
    docs: list[dict[str, str]] = []
    for index in part:
        name, id_, routing = actions[index].key
        docs.append({"_index": taken[index].index or name, "_id": id_})
        if routing:
            docs[-1]["routing"] = routing
    return json.dumps({"docs": docs}).encode()


def found_in(body: bytes, size: int) -> list[dict[str, Any] | UnverifiableError]:
    """The entry of each document in the answer, or the reason why it cannot be compared."""
    try:
        docs: object = json.loads(body)["docs"]
        if not isinstance(docs, list) or len(cast("list[object]", docs)) != size:
            raise ValueError("the answer has not one entry for each document")
        return [_document(each) for each in cast("list[Any]", docs)]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return [_unverifiable(f"the answer cannot be read ({type(error).__name__})")] * size


def _document(found: dict[str, Any]) -> dict[str, Any] | UnverifiableError:
    if (error := found.get("error")) is not None:
        kind = cast("dict[str, Any]", error).get("type") if isinstance(error, dict) else None
        return _unverifiable(f"the server cannot read it ({kind or 'no reason given'})")
    if found.get("found") is True and not isinstance(found.get("_source"), dict):
        return _unverifiable("its index does not keep _source")
    return found


def _unverifiable(why: str) -> UnverifiableError:
    return UnverifiableError(f"{_NOT_READ}: {why}")


def unread(error: SinkError) -> SinkError:
    """The error of items whose look-up is refused for good."""
    made = _unverifiable("the look-up is refused; grant the credentials the right to read")
    return caused(made, error)


def judge(
    place: str,
    actions: Mapping[int, Action],
    found: Mapping[int, dict[str, Any] | SinkError],
    stored: Iterable[int],
) -> dict[int, SinkError | None]:
    """The error of each conflicting item, by the entries `found`; `None` for a duplicate. `stored`
    are the items that this attempt has stored.
    """
    same = {
        index: not isinstance(entry, SinkError) and actions[index].is_stored_as(entry)
        for index, entry in found.items()
    }
    newest: dict[tuple[str, str, str], tuple[int, int]] = {}
    """The highest version of the batch that is stored under each key, and its item."""
    held = {*stored, *(index for index, is_same in same.items() if is_same)}
    for index in held:
        _, key, version, _ = actions[index]
        if version is not None:
            newest[key] = max(newest.get(key, (-1, -1)), (version, index))
    conflicts = KeyConflicts(place, ("_index", "_id"))
    judgement: dict[int, SinkError | None] = {}
    for index in sorted({*held, *found}):
        _, key, version, _ = actions[index]
        if index not in found:
            conflicts.note_stored(key)
            continue
        entry = found[index]
        newer, at = newest.get(key, (-1, -1))
        if version is not None and newer > version and at > index:
            judgement[index] = None
        elif isinstance(entry, SinkError):
            judgement[index] = entry
        else:
            judgement[index] = conflicts.verdict(key, is_same=same[index])
    return judgement
