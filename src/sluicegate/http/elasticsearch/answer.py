"""The outcome of each item in a bulk response.

1. Each item's status counts; the summary field `errors` next to them is ignored.
2. A response with more or fewer items than the request, or of another shape, leaves every item
   unknown. A malformed entry leaves only its own item unknown. Both are `ResultMismatch`: the
   request may have been applied, so nothing is resent automatically.
3. A document that its data stream did not accept, but a *failure store* did, has the status of a
   success. It is in none of the data stream's own indices, so its item has failed.
4. A reason may quote an item, so it is part of the error's message, for receipts and dead letters,
   but not of `summary`, for logs.
5. Errors of a missing, closed or blocked index and of a missing privilege are not caused by an
   item, and persist until an operator repairs the cause: `RefusedError`, with the index and the
   setting. A full disk is one of them: from the flood-stage watermark on, the server blocks the
   index (status 403 or 429).
6. Some of them have status 400 and a type that faulty documents have, too, so their text decides: a
   missing pipeline, an alias without a write index, a data stream that accepts only `create`, too
   many shards for another index.
7. An index whose primary shard is on no node is one, too: status 503, after the server has waited
   for it.
8. A missing document, a version conflict and a field that does not fit the mapping concern only
   their items.
"""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from ..._core.classify import summarized
from ..._core.errors import (
    PermanentError,
    RefusedError,
    ResultMismatch,
    SinkError,
    TransientError,
)
from ..._core.outcome import Outcome
from ..._core.sink import WriteResult
from ..errors import for_item
from .stored import ConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    """The server's reasons, outermost first: in full, and as types only, without item values."""
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
