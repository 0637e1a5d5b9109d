"""What a bulk answer says of each item."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from .._core.errors import TransientError
from .._core.outcome import Outcome
from .._core.result import WriteResult
from ._http_errors import for_item

if TYPE_CHECKING:
    from .._core.batch import Batch
    from ._http_write import HttpResponse

FILTER = "errors,items.*._id,items.*._version,items.*.result,items.*.status,items.*.error"
"""What of an answer is read: about a third of it."""


class AnswerReader:
    """Reads an answer, item by item.

    A conflict is a `duplicate` only where it must be the work of an earlier try: where one may have been applied, or under an id that
    nobody else has (`own_ids`). `stale_is_fine` says that a document of the same or a newer version is what the item wanted to achieve.
    """

    def __init__(self, *, own_ids: bool, stale_is_fine: bool) -> None:
        self._own_ids = own_ids
        self._stale_is_fine = stale_is_fine

    def __call__(self, response: HttpResponse, batch: Batch[Any]) -> WriteResult:
        """The result for the items that the request carried. Raises `ResultMismatch` unless there is one answer for each."""
        answer = json.loads(response.body)
        said: list[dict[str, Any]] = [next(iter(entry.values())) for entry in answer["items"]]
        details: dict[int, object] = dict(enumerate(said))
        if not answer["errors"] and len(said) == len(batch):
            return WriteResult(len(batch), details=details)
        maybe = batch.maybe_applied
        operations = [next(iter(entry)) for entry in answer["items"]]
        outcomes = [
            self._outcome(operation, each, maybe=index in maybe, retry_after=response.retry_after)
            for index, (operation, each) in enumerate(zip(operations, said, strict=True))
        ]
        return WriteResult.from_outcomes(batch, outcomes, details=details)

    def _outcome(self, operation: str, said: dict[str, Any], *, maybe: bool, retry_after: float | None) -> Outcome | Exception | None:
        status: int = said["status"]
        if 200 <= status < 300:
            return None
        if status == HTTPStatus.CONFLICT and operation == "create" and (maybe or self._own_ids):
            return Outcome.DUPLICATE
        if status == HTTPStatus.CONFLICT and operation == "update":
            return TransientError(_message(said))  # somebody else changed the document meanwhile
        if status == HTTPStatus.CONFLICT and operation in {"index", "delete"}:
            if maybe:
                return Outcome.DUPLICATE
            if self._stale_is_fine:
                return None
        if status == HTTPStatus.NOT_FOUND and operation == "delete" and maybe:
            return Outcome.DUPLICATE
        return for_item(status, _message(said), retry_after)


def _message(said: dict[str, Any]) -> str:
    """The reasons that the server gave, the outer one first."""
    reasons: list[str] = []
    error: Any = said.get("error") or {"type": said.get("result", "no reason given")}
    while isinstance(error, dict):
        named = cast("dict[str, Any]", error)
        reasons.append(": ".join(str(named[name]) for name in ("type", "reason") if named.get(name)))
        error = named.get("caused_by")
    return f"{said['status']} " + "; caused by ".join(reasons or [str(error)])
