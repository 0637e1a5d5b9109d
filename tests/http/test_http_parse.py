"""Results of a `parse` function: those that do not match the request leave its items unknown and
affect no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.http.http_help import Server, batch_of, serving

from sluicegate import (
    Backoff,
    ConfigError,
    Outcome,
    PermanentError,
    Retry,
    WriteResult,
    send,
    stack,
)
from sluicegate.errors import ResultMismatch
from sluicegate.http import HttpAccess, HttpResponse, HttpSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate import Batch
    from sluicegate.batcher import LoopClock

ITEMS = [{"id": number} for number in range(4)]


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raising(error: Exception) -> Callable[..., Any]:
    def parse(response: HttpResponse, batch: Batch[Any]) -> None:
        raise error

    return parse


BAD = PermanentError("bad")
RESULTS: list[Any] = [
    WriteResult(4, {-1: BAD}),
    WriteResult(4, {4: BAD}),
    WriteResult(4, {True: BAD}),
    WriteResult(4, {"0": BAD}),  # type: ignore[dict-item]  # that is the point
    WriteResult(4, {0: "bad"}),  # type: ignore[dict-item]  # that is the point
    WriteResult(4, [BAD]),  # type: ignore[arg-type]  # that is the point
    WriteResult(4, {}, {-1: Outcome.DUPLICATE}),
    WriteResult(4, {}, {9: Outcome.DUPLICATE}),
    WriteResult(4, {}, {0: Outcome.UNKNOWN}),
    WriteResult(4, {}, {0: 200}),  # type: ignore[dict-item]  # that is the point
    WriteResult(4, {}, {}, {-1: "detail"}),
    WriteResult(4, {}, {}, {4: "detail"}),
    WriteResult(-4),
    WriteResult(5),
    [None, None, None, None],
    0,
    True,
]


@pytest.mark.parametrize("result", RESULTS, ids=str)
@pytest.mark.parametrize("max_bytes", [None, 12])
async def test_a_result_that_speaks_of_other_items_is_not_believed(
    real_clock: LoopClock, result: Any, max_bytes: int | None
) -> None:
    """Negative and impossible indices, wrong types and lengths; in one request or several, no
    neighbour is affected.
    """

    def parse(response: HttpResponse, batch: Batch[Any]) -> Any:
        if isinstance(result, WriteResult) and max_bytes is not None:
            return WriteResult(result.size - 3, result.errors, result.outcomes, result.details)
        return result

    server = Server()
    async with HttpSink(
        HttpAccess(server.url, client=server.client), parse=parse, max_bytes=max_bytes
    ) as sink:
        batch = batch_of(ITEMS)
        errors = await send(stack(sink, Retry(backoff=Backoff(base=0.0))), batch)
        wrong = {index for index, error in errors.items() if type(error) is ResultMismatch}
        assert wrong == {0, 1, 2, 3}
        assert len(server.requests) == (1 if max_bytes is None else 4)


@pytest.mark.parametrize(
    "error",
    [ValueError("secret-item"), Mute(), RecursionError(), MemoryError(), StopAsyncIteration()],
)
async def test_a_parse_function_that_raises_leaves_every_item_unknown(
    real_clock: LoopClock, error: Exception
) -> None:
    server = Server()
    async with HttpSink(HttpAccess(server.url, client=server.client), parse=raising(error)) as sink:
        errors = await send(sink, batch_of(ITEMS))
        (one,) = set(errors.values())
        assert type(one) is ResultMismatch
        assert (
            one.summary
            == f"the answer cannot be understood ({type(error).__name__}); the outcome of "
            "every item is unknown"
        )


async def test_a_parse_function_that_is_async_is_told_at_once_or_leaves_the_items_unknown(
    real_clock: LoopClock,
) -> None:
    async def parse(response: HttpResponse, batch: Batch[Any]) -> None: ...

    wrong: Any = parse
    with pytest.raises(ConfigError, match="must not be async"):
        HttpSink("http://host/", parse=wrong)
    async with (
        serving() as server,
        HttpSink(server.url, parse=lambda *given: wrong(*given)) as sink,
    ):
        assert {type(error) for error in (await send(sink, batch_of(ITEMS))).values()} == {
            ResultMismatch
        }


def test_a_response_shows_its_status_alone() -> None:
    assert (
        repr(HttpResponse(200, {"set-cookie": "secret"}, b"secret"))
        == "HttpResponse(status=200, retry_after=None)"
    )
