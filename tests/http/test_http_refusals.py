"""Responses that refuse everything: an outage with the repair in its error, not an item's fault.
White box: a refusal by its status, and its text for logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.http.http_help import Reply, Request, Server, batch_of, hang, outcomes, reply, serving

from sluicegate import (
    Backoff,
    Batcher,
    DeadLetter,
    Limits,
    Outcome,
    PermanentError,
    RefusedError,
    Retry,
    Timeout,
    UnavailableError,
    send,
    stack,
)
from sluicegate._core.logs import for_log
from sluicegate.errors import TimedOutError
from sluicegate.http import HttpAccess, HttpSink
from sluicegate.http.errors import HttpStatusError, target_of
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate.batcher import LoopClock

ITEMS = [{"id": number, "word": f"wörd {number}"} for number in range(10)]
REPAIRS = [
    (401, "give credentials for "),
    (403, "the right to POST to "),
    (404, "correct the path of "),
    (405, "give a method= that "),
    (407, "client_options proxy="),
    (410, "has replaced "),
    (301, "give the URL to which "),
    (302, "redirects are not followed"),
    (303, "redirects are not followed"),
    (307, "redirects are not followed"),
    (308, "redirects are not followed"),
]


@pytest.mark.parametrize(("status", "repair"), REPAIRS)
async def test_a_request_that_is_refused_is_no_items_fault(
    real_clock: LoopClock, status: int, repair: str
) -> None:
    """One error for the request, with the server's answer as its cause and one sentence for the
    operator.
    """
    async with serving() as server, HttpSink(f"{server.url}/bulk?key=hidden") as sink:
        server.steps.append(reply(status, {"why": "no"}))
        errors = await send(sink, batch_of(ITEMS))
        (error,) = set(errors.values())
        assert len(errors) == len(ITEMS)
        assert isinstance(error, RefusedError)
        assert isinstance(error.__cause__, HttpStatusError)
        assert error.__cause__.status == status
        assert repair in error.repair
        assert f"{server.url}/bulk" in error.repair
        assert error.repair in str(error)
        assert error.repair in for_log(error)
        assert '"why"' not in for_log(error)
        assert "hidden" not in f"{error} {for_log(error)}"


async def test_credentials_that_were_sent_are_called_wrong_and_others_missing(
    real_clock: LoopClock,
) -> None:
    async with serving() as server:
        server.default = reply(401)
        for auth, told in (
            (None, "none were sent"),
            ("Bearer expired-token", "wrong or have expired"),
        ):
            async with HttpSink(HttpAccess(server.url, auth=auth)) as sink:
                error = (await send(sink, batch_of("a")))[0]
                assert isinstance(error, RefusedError)
                assert told in error.repair


@pytest.mark.parametrize("status", [400, 409, 413, 415, 422])
async def test_an_answer_about_the_body_stays_the_items_fault(
    real_clock: LoopClock, status: int
) -> None:
    async with serving() as server, HttpSink(server.url) as sink:
        server.default = reply(status)
        assert isinstance((await send(sink, batch_of("a")))[0], PermanentError)


async def test_a_refusal_of_one_request_leaves_the_others_their_own_outcomes(
    real_clock: LoopClock,
) -> None:
    """Five requests: delivered, refused, rejected, refused, delivered. Each refused request has its
    own error.
    """
    async with serving() as server, HttpSink(server.url, max_bytes=70) as sink:
        server.steps.extend([reply(), reply(403), reply(400), reply(403), reply()])
        batch = batch_of(ITEMS)
        errors = await send(sink, batch)
        kinds = {index: type(error) for index, error in errors.items()}
        assert kinds == {
            2: RefusedError,
            3: RefusedError,
            4: PermanentError,
            5: PermanentError,
            6: RefusedError,
            7: RefusedError,
        }
        assert errors[2] is errors[3]
        assert errors[6] is errors[7]
        assert errors[2] is not errors[6]
        assert [outcomes(batch)[index] for index in (0, 1, 8, 9)] == [Outcome.DELIVERED] * 4


async def test_a_refused_request_is_not_unknown_when_a_later_one_is_cut_off(
    real_clock: LoopClock,
) -> None:
    async with serving() as server, HttpSink(server.url, max_bytes=70) as sink:
        server.steps.extend([reply(403), hang()])
        batch = batch_of(ITEMS[:4])
        errors = await send(stack(sink, Timeout(0.1)), batch)
        assert [type(errors[index]) for index in range(4)] == [
            UnavailableError,
            UnavailableError,
            TimedOutError,
            TimedOutError,
        ]
        assert batch.maybe_applied == {2, 3}


async def test_an_outage_of_authorization_costs_no_item(real_clock: LoopClock) -> None:
    """A real server refuses a login for some time: no dead letters, and the server's count shows
    that all items arrived once.
    """
    taken: list[Any] = []
    refused = 0

    async def step(request: Request) -> Reply:
        nonlocal refused
        if refused < 12:
            refused += 1
            return Reply(401, b"token expired")
        taken.extend(item["id"] for item in request.items)
        return Reply()

    letters: MemorySink[Any] = MemorySink()
    server = Server()
    server.default = step
    async with serving(server):
        retry = Retry(attempts=2, backoff=Backoff(base=0.001, longest=0.002))
        sink = stack(
            HttpSink(HttpAccess(server.url, auth="Bearer token-of-today")),
            Timeout(5.0),
            retry,
            DeadLetter(letters),
        )
        async with Batcher(sink, limits=Limits(max_items=50, max_delay=0.01, workers=4)) as batcher:
            await batcher.add_many({"id": number} for number in range(400))
            await batcher.flush()
            tally = batcher.tally()
    assert refused == 12
    assert sorted(taken) == list(range(400))
    assert (tally.delivered, tally.dead_lettered, tally.rejected) == (400, 0, 0)
    assert _written(letters) == []


def _written(letters: MemorySink[Any]) -> Sequence[Any]:
    return list(letters.items)


async def test_a_function_for_credentials_that_fails_is_an_outage_and_sends_nothing(
    real_clock: LoopClock,
) -> None:
    """Its error may contain a secret, so only its type is shown."""

    def auth() -> str:
        raise LookupError("no token for client_secret=hunter2")

    async with serving() as server, HttpSink(HttpAccess(server.url, auth=auth)) as sink:
        error = (await send(sink, batch_of("a")))[0]
        assert isinstance(error, RefusedError)
        assert "auth() failed with LookupError" in str(error)
        assert "auth=" in error.repair
        assert "hunter2" not in f"{error} {for_log(error)}"
        assert server.requests == []


async def test_a_function_for_credentials_may_say_itself_what_its_failure_means(
    real_clock: LoopClock,
) -> None:
    async def auth() -> str:
        raise UnavailableError("the token service is away")

    async with serving() as server, HttpSink(HttpAccess(server.url, auth=auth)) as sink:
        assert str((await send(sink, batch_of("a")))[0]) == "the token service is away"


async def test_a_redirect_to_nowhere_is_a_refusal_all_the_same(real_clock: LoopClock) -> None:
    """Also if the client cannot parse its `Location`."""
    assert target_of("http://[::1") is None
    async with serving() as server, HttpSink(server.url) as sink:
        for location in ("/%00", "?", "x" * 5_000):
            server.default = reply(302, location=location)
            assert isinstance((await send(sink, batch_of("a")))[0], RefusedError)


async def test_a_proxy_that_wants_a_login_refuses_everything(real_clock: LoopClock) -> None:
    """It answers 407 to a plain request and to a tunnel."""
    async with serving() as server:
        server.default = reply(407)
        for scheme in ("http", "https"):
            options = {"proxy": server.url}
            async with HttpSink(
                HttpAccess(f"{scheme}://elsewhere.invalid/", client_options=options)
            ) as sink:
                error = (await send(sink, batch_of("a")))[0]
                assert isinstance(error, RefusedError), scheme
                assert "client_options proxy=" in error.repair
