"""One batch over HTTP: bodies of limited size, one request for each, one outcome for every item.

1. A successful request is settled as soon as its response arrives; a later failure or cancellation
   does not revoke it.
2. A failed request does not stop the following ones, except for a throttle and an outage: those
   end the batch, and their error applies to the unsent items too. A refusal may concern a single
   body, so the other requests are sent.
3. A 413 response splits the body in two; a single item that is too large fails alone.
4. A body that is refused because of one record is sent again in parts: the records before and after
   the one that the server names, and that record alone. If a named record was then accepted, or the
   server names none, the body is halved.
5. A *join* turns records into a body. Only the length of the joined body is compared with the limit.
   An oversized record fails alone.
6. Records keep their order, within a body and from one body to the next.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from .._core.classify import caused
from .._core.errors import (
    PermanentError,
    RefusedError,
    ResultMismatch,
    SinkError,
    ThrottledError,
    TooLargeError,
    UnavailableError,
)
from .._core.outcome import Outcome
from .._core.sink import WriteResult, checked_result
from .._core.text import text_of
from .._core.values.encoding import item_error
from .errors import RecordRefused, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .._core.batch import Batch
    from .._core.values.encoding import Records


_UNKNOWN = "the outcome of every item is unknown"
JoinBodies = Callable[[Sequence[bytes]], "bytes"]
"""Joins encoded items into the body of a request."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The response to a successful request. Header names are in lower case. Its repr shows only the
    status.
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    retry_after: float | None = None
    """Seconds of its `Retry-After`, between 0 and a year; for servers that throttle individual
    items.
    """
    redact: Callable[[str], str] = field(default=str, repr=False, compare=False)
    """Masks the request's credentials and other secrets in response text used in error messages."""


ParseResponse = Callable[[HttpResponse, "Batch[Any]"], "WriteResult | None"]
"""Returns the outcome of each item of a request from its response; `None`: all delivered."""
Post = Callable[[bytes, "Batch[Any]"], Awaitable[HttpResponse]]


@dataclass(frozen=True, slots=True)
class RequestFormat:
    """How records are joined to bodies, how responses are parsed, and where requests are sent."""

    join: JoinBodies
    max_bytes: int | None
    parse: ParseResponse | None
    url_of: Callable[[Batch[Any]], str] | None = None
    """The URL of the request for a part of a batch; default: that of the endpoint."""
    look: Callable[[], Awaitable[None]] | None = None
    """Awaited after each response to a success, before it is parsed; an error is that of the
    request's items.
    """


class RequestSeries:
    """The requests that carry the records of one batch."""

    def __init__(
        self, batch: Batch[Any], records: Records, request_format: RequestFormat, post: Post
    ) -> None:
        self._batch = batch
        self._records = records
        self._format = request_format
        self._post = post
        self._todo: deque[Body] = deque()
        self._errors = records.errors
        self._outcomes: dict[int, Outcome] = {}
        self._details: dict[int, object] = {}
        self._blamed: set[range] = set()
        self._believes = True

    async def run(self) -> WriteResult | None:
        """Send every record and return the result, or `None` if every item was delivered. Suspends
        for each request.
        """
        self._todo.extend(self._bodies(None))
        while self._todo:
            body = self._todo.popleft()
            part = self._part(body)
            try:
                response = await self._post(body.content, part)
                if self._format.look is not None:
                    await self._format.look()
                result = (
                    None
                    if self._format.parse is None
                    else _parse(self._format.parse, response, part)
                )
            except Exception as error:
                self._fail(body, part, error)
            else:
                self._succeed(body, part, result)
        if not (self._errors or self._outcomes or self._details):
            return None
        return WriteResult(len(self._batch), self._errors, self._outcomes, self._details)

    def _bodies(self, places: range | None) -> list[Body]:
        """The bodies for these records; a record that fits into no body fails."""
        made = bodies(self._records.records, self._format.join, self._format.max_bytes, places)
        for place, error in made.refused.items():
            self._errors[self._records.indices[place]] = error
        return made.bodies

    def _indices(self, body: Body) -> Sequence[int]:
        return self._records.indices[body.places.start : body.places.stop]

    def _part(self, body: Body) -> Batch[Any]:
        whole = len(body.places) == len(self._batch)
        return self._batch if whole else self._batch.pick(self._indices(body))

    def _fail(self, body: Body, part: Batch[Any], error: Exception) -> None:
        if isinstance(error, (TooLargeError, RecordRefused)) and len(body.places) > 1:
            self._batch.delivery.heard((error,))
            self._todo.extendleft(
                reversed(
                    [
                        each
                        for places in self._divide(body.places, error)
                        for each in self._bodies(places)
                    ]
                )
            )
            return
        self._errors.update(dict.fromkeys(self._indices(body), error))
        if isinstance(error, RefusedError):
            # not applied, whatever the outcome of the other requests
            part.hold(range(len(part)), tried=True)
        elif isinstance(error, (ThrottledError, UnavailableError)):
            for other in self._todo:
                self._errors.update(dict.fromkeys(self._indices(other), error))
            self._todo.clear()

    def _divide(self, places: range, error: SinkError) -> Sequence[range]:
        """The parts of a body to send again."""
        at = error.at if isinstance(error, RecordRefused) and self._believes else None
        if at is None or not 0 <= at < len(places):
            return halves(places)
        self._blamed.add(places[at : at + 1])
        return around(places, at)

    def _succeed(self, body: Body, part: Batch[Any], result: WriteResult | None) -> None:
        if body.places in self._blamed:
            self._believes = False
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


def _parse(parse: ParseResponse, response: HttpResponse, part: Batch[Any]) -> WriteResult | None:
    """Parse the outcome of each item; an unreadable response leaves every outcome unknown."""
    try:
        result = cast("object", parse(response, part))
        if result is None:
            return None
        if isinstance(result, WriteResult):
            return WriteResult(len(part), *checked_result(result, part))
    except SinkError:
        raise
    except Exception as error:
        name = type(error).__name__
        made = ResultMismatch(
            f"the answer cannot be understood ({name}: "
            f"{shorten(response.redact(text_of(error)))}); {_UNKNOWN}"
        )
        summary = f"the answer cannot be understood ({name}); {_UNKNOWN}"
        raise caused(made, error, summary=summary)  # noqa: B904  # the cause is set
    if inspect.iscoroutine(result):
        result.close()
    raise ResultMismatch(
        f"parse returned {type(result).__name__}; expected None or a WriteResult; {_UNKNOWN}"
    )


# -- bodies ----------------------------------------------------------------------------------------


def json_array(records: Sequence[bytes]) -> bytes:
    """One JSON array."""
    return b"[" + b",".join(records) + b"]"


@dataclass(frozen=True, slots=True)
class Body:
    """One request's body; `places` are the positions of its records in the batch."""

    places: range
    content: bytes


@dataclass(frozen=True, slots=True)
class Bodies:
    """The bodies of a batch's records, in order, and an error for the place of each oversized one."""

    bodies: list[Body] = field(default_factory=list[Body])
    refused: dict[int, PermanentError] = field(default_factory=dict[int, PermanentError])


def bodies(
    records: Sequence[bytes], join: JoinBodies, most: int | None, places: range | None = None
) -> Bodies:
    """Pack the records at `places` (default: all) into bodies of at most `most` bytes. Does not
    suspend.

    A record that is too long by itself, or for which `join` raises, is refused alone.
    """
    made = Bodies()
    _fill(made, records, join, most, range(len(records)) if places is None else places)
    return made


def _fill(
    made: Bodies, records: Sequence[bytes], join: JoinBodies, most: int | None, places: range
) -> None:
    if not places:
        return
    error: PermanentError | None = None
    content = b""
    try:
        content = bytes(join(records[places.start : places.stop]))
    except Exception as cause:
        error = item_error("cannot be put into a body", cause)
    else:
        if most is None or len(content) <= most:
            made.bodies.append(Body(places, content))
            return
    if len(places) == 1:
        made.refused[places.start] = error or _too_long(len(content), most)
        return
    for part in _parts(records, most, places):
        _fill(made, records, join, most, part)


def halves(places: range) -> tuple[range, range]:
    """The two halves of an oversized body."""
    middle = len(places) // 2
    return places[:middle], places[middle:]


def around(places: range, at: int) -> list[range]:
    """The records before one record of a body, that record, and those after it."""
    return [part for part in (places[:at], places[at : at + 1], places[at + 1 :]) if part]


def _parts(records: Sequence[bytes], most: int | None, places: range) -> Sequence[range]:
    """Split by the records' lengths and one byte between them; any further overhead of a join shows
    in the joined body.
    """
    parts: list[range] = []
    first, length = places.start, 0
    for place in places:
        more = len(records[place]) + 1
        if most is not None and length + more > most and place > first:
            parts.append(range(first, place))
            first, length = place, 0
        length += more
    parts.append(range(first, places.stop))
    return parts if len(parts) > 1 else halves(places)


def _too_long(length: int, most: int | None) -> PermanentError:
    return PermanentError(
        f"the item alone results in a body of {length} bytes, more than max_bytes={most}"
    )
