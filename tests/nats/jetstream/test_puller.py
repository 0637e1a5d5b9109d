"""The requests of one partition, and the effect of server statuses on them. White box: the puller.

Proven here: consumer/C:C7.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from sluicegate.nats.jetstream.channel import ConsumerState
from sluicegate.nats.jetstream.puller import AFTER_ERROR, EXPIRES, IDLE, MOST_BYTES, Puller

NANOS = 1_000_000_000


class Requests:
    """A channel that records published requests."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        assert subject == "next"
        self.sent.append((reply, json.loads(payload)))

    @property
    def last(self) -> dict[str, Any]:
        """The last request."""
        return self.sent[-1][1]


def puller(*, group: str | None = "sluicegate") -> tuple[Puller, Requests]:
    """The puller of a consumer that may have 100 pending messages, with a pin of 15 s."""
    requests = Requests()
    state = ConsumerState.of(
        {
            "name": "c",
            "created": "2026-01-01T00:00:00Z",
            "config": {
                "ack_wait": 30 * NANOS,
                "max_ack_pending": 100,
                "priority_groups": [group] if group else None,
                "priority_policy": "pinned_client" if group else "none",
                "priority_timeout": 15 * NANOS,
            },
            "delivered": {"consumer_seq": 0, "stream_seq": 0},
            "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
            "num_ack_pending": 0,
            "num_pending": 0,
            "num_waiting": 0,
        }
    )
    made = Puller(cast("Any", requests), "next", "inbox", state)
    made.window.share(50)
    return made, requests


def ask(puller: Puller, messages: int, now: float) -> None:
    asyncio.run(puller.ask(messages, now))


def test_a_request_names_what_it_asks_for() -> None:
    made, requests = puller()
    ask(made, 10, 0.0)
    assert requests.sent == [
        (
            "inbox.m",
            {
                "batch": 10,
                "expires": round(EXPIRES * NANOS),
                "idle_heartbeat": round(IDLE * NANOS),
                "max_bytes": MOST_BYTES,
                "group": "sluicegate",
            },
        )
    ]
    assert made.window.credit == 10


def test_before_it_is_pinned_one_request_is_under_way() -> None:
    """A second one could pin this process after it has given up the consumer."""
    made, requests = puller()
    ask(made, 10, 0.0)
    ask(made, 10, 0.0)
    assert len(requests.sent) == 1
    made.message("me", 0.1)
    ask(made, 10, 0.2)
    assert (len(requests.sent), requests.last["id"], made.window.credit) == (2, "me", 19)


def test_a_consumer_that_pins_none_is_asked_at_any_time() -> None:
    made, requests = puller(group=None)
    ask(made, 10, 0.0)
    ask(made, 10, 0.0)
    assert (len(requests.sent), made.window.credit) == (2, 20)
    assert not {"group", "id"} & requests.last.keys()


def test_a_pinned_process_asks_in_time_without_credit() -> None:
    """consumer/C:C7: a request for a message of at most one byte, which does not exist."""
    made, requests = puller()
    asyncio.run(made.stay_pinned(100.0))
    assert requests.sent == []
    ask(made, 10, 0.0)
    made.message("me", 0.0)
    asyncio.run(made.stay_pinned(4.9))
    assert len(requests.sent) == 1
    assert made.next_due(4.9) == 5.0
    asyncio.run(made.stay_pinned(5.0))
    reply, request = requests.sent[-1]
    assert (reply, request["batch"], request["max_bytes"], request["id"]) == ("inbox.k", 1, 1, "me")
    assert made.window.credit == 9
    made.status("inbox.k", {"Status": "409", "Description": "Message Size Exceeds MaxBytes"}, 5.1)
    made.status("inbox.k", {"Status": "408", "Nats-Pending-Messages": "1"}, 6.0)
    assert made.window.credit == 9
    ask(made, 1, 6.0)
    assert requests.last["max_bytes"] == MOST_BYTES


@pytest.mark.parametrize(
    ("status", "told", "news", "credit", "waits"),
    [
        ("100", "Idle Heartbeat", "", 10, False),
        ("404", "No Messages", "", 6, False),
        ("408", "Request Timeout", "", 6, False),
        ("409", "Batch Completed", "", 6, False),
        ("409", "Message Size Exceeds MaxBytes", "", 6, False),
        ("409", "Exceeded MaxRequestBatch of 7", "", 6, False),
        ("409", "Exceeded MaxRequestExpires of 10s", "", 6, True),
        ("409", "Exceeded MaxWaiting", "", 6, True),
        ("409", "Leadership Change", "moved", 6, True),
        ("409", "Consumer Deleted", "deleted", 6, True),
        ("409", "Consumer is push based", "deleted", 6, True),
        ("503", "", "deleted", 6, True),
        ("423", "Nats-Wrong-Pin-Id", "taken", 6, False),
    ],
)
def test_a_status_ends_a_request(
    status: str, told: str, news: str, credit: int, waits: bool
) -> None:
    """The rest of its messages is no longer in flight; errors delay the next request."""
    made, requests = puller()
    made.pin = "me"
    ask(made, 4, 0.0)
    ask(made, 6, 0.0)
    headers = {"Status": status, "Description": told, "Nats-Pending-Messages": "4"}
    assert made.status("inbox.m", headers, 1.0) == news
    assert made.window.credit == credit
    assert made.pin == (None if news == "taken" else "me")
    made.window.reset()
    ask(made, 2, 1.0)
    assert (len(requests.sent) == 2) == waits
    ask(made, 2, 1.0 + AFTER_ERROR)
    assert len(requests.sent) > 2


def test_a_status_without_the_rest_ends_everything() -> None:
    made, _ = puller()
    ask(made, 10, 0.0)
    made.status("inbox.m", {"Status": "503"}, 1.0)
    assert made.window.credit == 0
    assert made.next_due(1.0) == 1.0 + IDLE


def test_the_servers_bound_of_one_request_is_kept() -> None:
    made, _ = puller()
    made.status("inbox.m", {"Status": "409", "Description": "Exceeded MaxRequestBatch of 7"}, 1.0)
    assert made.window.wanted(0, 0) == 7


def test_a_message_larger_than_a_request_is_asked_for_alone() -> None:
    """Without a byte limit; the next request has the limit again."""
    made, requests = puller()
    made.pin = "me"
    ask(made, 10, 0.0)
    told = {"Status": "409", "Description": "Message Size Exceeds MaxBytes"}
    made.status("inbox.m", {**told, "Nats-Pending-Messages": "10"}, 0.1)
    ask(made, 10, 0.2)
    assert (requests.last["batch"], made.window.credit) == (1, 1)
    assert "max_bytes" not in requests.last
    made.message("me", 0.3)
    ask(made, 10, 0.4)
    assert (requests.last["batch"], requests.last["max_bytes"]) == (10, MOST_BYTES)


def test_without_heartbeats_nothing_is_under_way() -> None:
    made, _ = puller()
    ask(made, 10, 0.0)
    made.status("inbox.m", {"Status": "100"}, 5.0)
    assert made.next_due(5.0) == 5.0 + 2 * IDLE
    made.check_heard(5.0 + 2 * IDLE)
    assert made.window.credit == 10
    made.check_heard(5.1 + 2 * IDLE)
    assert made.window.credit == 0


@pytest.mark.parametrize(("pinned", "pin"), [("me", "me"), ("other", None), (None, None)])
def test_on_a_new_connection_the_identity_is_the_servers(
    pinned: str | None, pin: str | None
) -> None:
    """No message is requested before the server has reported it."""
    made, requests = puller()
    made.pin = "me"
    ask(made, 10, 0.0)
    made.suspend()
    ask(made, 10, 1.0)
    assert len(requests.sent) == 1
    made.begin_again(pinned)
    assert (made.pin, made.window.credit) == (pin, 0)
    ask(made, 10, 1.0)
    assert requests.last.get("id") == pin
