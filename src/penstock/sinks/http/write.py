"""One write over HTTP: bodies no longer than the ceiling, a request for each, an answer for every
item.

1. A request's success is settled when its answer is there, so a later request that fails or is cut
   off takes nothing back.
2. An error of one request does not keep the next from being sent, except for a throttle and an
   outage: those would fail every further request too, and hold for their items as well. A refusal
   may be about one body alone, so the other requests are sent.
3. An answer of 413 cuts a body in two; a single item that is too large fails alone.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from ..._core.causes import caused
from ..._core.errors import (
    RefusedError,
    ResultMismatch,
    SinkError,
    ThrottledError,
    TooLargeError,
    UnavailableError,
)
from ..._core.outcome import Outcome
from ..._core.result import WriteResult
from ..._core.told import text_of
from .body import Body, bodies, halves
from .errors import cut, summarized

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..._clients.encoding import Records
    from ..._core.batch import Batch
    from .body import Join

_UNKNOWN = "the outcome of every item is unknown"


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A server's answer to a request that succeeded. Header names are in lower case. Its repr shows
    the status alone.
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    retry_after: float | None = None
    """The seconds of its `Retry-After`, for servers that throttle single items: between 0 and a
    year.
    """
    redact: Callable[[str], str] = field(default=str, repr=False, compare=False)
    """Replaces credentials and other secrets that the request carried, in a text of the answer that
    becomes an error's message.
    """


Parse = Callable[[HttpResponse, "Batch[Any]"], "WriteResult | None"]
Post = Callable[[bytes, "Batch[Any]"], Awaitable[HttpResponse]]


@dataclass(frozen=True, slots=True)
class Rules:
    """How a write is cut into requests, and how their answers are read."""

    join: Join
    most: int | None
    parse: Parse | None


class Write:
    """The records of one batch on their way."""

    def __init__(self, batch: Batch[Any], records: Records, rules: Rules, post: Post) -> None:
        self._batch = batch
        self._records = records
        self._rules = rules
        self._post = post
        self._todo: deque[Body] = deque()
        self._errors = records.errors
        self._outcomes: dict[int, Outcome] = {}
        self._details: dict[int, object] = {}

    async def run(self) -> WriteResult | None:
        """Send every record; return what came of them, `None` if every item was delivered. Suspends
        for each request.
        """
        self._todo.extend(self._bodies(None))
        while self._todo:
            body = self._todo.popleft()
            part = self._part(body)
            try:
                response = await self._post(body.content, part)
                result = (
                    None
                    if self._rules.parse is None
                    else _parsed(self._rules.parse, response, part)
                )
            except Exception as error:
                self._failed(body, part, error)
            else:
                self._succeeded(body, part, result)
        if not (self._errors or self._outcomes or self._details):
            return None
        return WriteResult(len(self._batch), self._errors, self._outcomes, self._details)

    def _bodies(self, places: range | None) -> list[Body]:
        """The bodies for some of the records; what fits into none has failed."""
        made = bodies(self._records.records, self._rules.join, self._rules.most, places)
        for place, error in made.refused.items():
            self._errors[self._records.indices[place]] = error
        return made.bodies

    def _indices(self, body: Body) -> Sequence[int]:
        return self._records.indices[body.places.start : body.places.stop]

    def _part(self, body: Body) -> Batch[Any]:
        whole = len(body.places) == len(self._batch)
        return self._batch if whole else self._batch.pick(self._indices(body))

    def _failed(self, body: Body, part: Batch[Any], error: Exception) -> None:
        if isinstance(error, TooLargeError) and len(body.places) > 1:
            self._batch.delivery.heard((error,))
            self._todo.extendleft(
                reversed([half for places in halves(body.places) for half in self._bodies(places)])
            )
            return
        self._errors.update(dict.fromkeys(self._indices(body), error))
        if isinstance(error, RefusedError):
            part.hold(
                range(len(part)), tried=True
            )  # nothing of it was applied, whatever becomes of the other requests
        elif isinstance(error, (ThrottledError, UnavailableError)):
            for other in self._todo:
                self._errors.update(dict.fromkeys(self._indices(other), error))
            self._todo.clear()

    def _succeeded(self, body: Body, part: Batch[Any], result: WriteResult | None) -> None:
        indices = self._indices(body)
        if result is not None:
            self._errors.update({indices[i]: error for i, error in result.errors.items()})
            self._outcomes.update({indices[i]: outcome for i, outcome in result.outcomes.items()})
            self._details.update({indices[i]: detail for i, detail in result.details.items()})
        if self._todo:
            self._settle(part, result)

    def _settle(self, part: Batch[Any], result: WriteResult | None) -> None:
        if result is None:
            part.settle(range(len(part)), Outcome.DELIVERED)
            return
        for index in range(len(part)):
            if index not in result.errors:
                part.settle((index,), result.outcomes.get(index, Outcome.DELIVERED), result.details)


def _parsed(parse: Parse, response: HttpResponse, part: Batch[Any]) -> WriteResult | None:
    """What the server said of each item. An answer that cannot be understood says nothing of any of
    them.
    """
    try:
        result = cast("object", parse(response, part))
        if result is None:
            return None
        if isinstance(result, WriteResult):
            return _checked(result, len(part))
    except SinkError:
        raise
    except Exception as error:
        name = type(error).__name__
        made = ResultMismatch(
            f"the answer cannot be understood ({name}: "
            f"{cut(response.redact(text_of(error)))}); {_UNKNOWN}"
        )
        raise caused(  # noqa: B904  # it has its cause
            summarized(made, f"the answer cannot be understood ({name}); {_UNKNOWN}"), error
        )
    if inspect.iscoroutine(result):
        result.close()
    raise ResultMismatch(
        f"parse returned {type(result).__name__}; expected None or a WriteResult; {_UNKNOWN}"
    )


def _checked(result: WriteResult, size: int) -> WriteResult:
    """`result`, if it speaks of `size` items and of no others. Raises `ResultMismatch`, or whatever
    a malformed result raises.
    """
    if result.size != size:
        raise ResultMismatch(
            f"parse returned a result for {result.size} items, for a request of {size}; {_UNKNOWN}"
        )
    for name, entries, is_good in (
        ("errors", result.errors, _is_error),
        ("outcomes", result.outcomes, _is_success),
    ):
        for index, entry in cast("Mapping[object, object]", entries).items():
            if type(index) is not int or not 0 <= index < size:
                raise ResultMismatch(
                    f"parse returned {name} for item {index!r:.40}, for a request of {size}; "
                    f"{_UNKNOWN}"
                )
            if not is_good(entry):
                raise ResultMismatch(
                    f"parse returned {type(entry).__name__} in {name}, which does not belong "
                    f"there; {_UNKNOWN}"
                )
    stray = [
        index
        for index in cast("Mapping[object, object]", result.details)
        if type(index) is not int or not 0 <= index < size
    ]
    if stray:
        raise ResultMismatch(
            f"parse returned details for item {stray[0]!r:.40}, for a request of {size}; {_UNKNOWN}"
        )
    return result


def _is_error(entry: object) -> bool:
    return isinstance(entry, BaseException)


def _is_success(entry: object) -> bool:
    return isinstance(entry, Outcome) and entry.is_success
