"""The outcome of each item in a bulk response.

1. Each item's status counts; the summary field `errors` beside them is ignored.
2. A response with more or fewer items than the request, or of another shape, leaves every item
   unknown. A malformed entry leaves only its own item unknown. Both are `ResultMismatch`: the
   request may have been applied, so nothing is resent automatically.
3. A document that its data stream did not accept, but a *failure store* did, has the status of a
   success. It is in none of the data stream's own indices, so its item has failed.
4. A reason may quote an item, so it is part of the error's message, for receipts and dead letters,
   but not of `summary`, for logs.
"""

from __future__ import annotations

import json
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
from .refusals import reasons, repair_of_item
from .stored import ConflictError

if TYPE_CHECKING:
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
