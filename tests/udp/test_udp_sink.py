"""`UdpSink`: datagrams, receivers that disappear, move or return, and repr.

White box: the connection of one socket, and the wait for a refusal.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.udp.udp_help import Receiver

from sluicegate import (
    Backoff,
    Batcher,
    ClosedError,
    ConfigError,
    Limits,
    Outcome,
    RefusedError,
    Retry,
    RowBatch,
    UnavailableError,
    gather,
    send,
    stack,
)
from sluicegate.batcher import LoopClock
from sluicegate.udp import UdpSink
from sluicegate.udp.channel import _hear, hand_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("real_clock")


def hits(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"name": "hits", "value": n, "type": "c"} for n in range(start, start + count)]


def names(errors: dict[int, BaseException]) -> dict[int, str]:
    return {index: type(error).__name__ for index, error in errors.items()}


@pytest.mark.parametrize("limit", [12, 512, 1432, 8932, 65_507])
async def test_datagrams_stay_below_the_limit(receiver: Receiver, limit: int) -> None:
    async with UdpSink(receiver.host, receiver.port, max_datagram=limit) as sink:
        assert await send(sink, RowBatch(hits(2_000))) == {}
    found = receiver.datagrams()
    assert max(map(len, found)) <= limit
    assert len(found) <= 2_000 * 12 // limit + 1
    assert receiver.lines() == [f"hits:{n}|c" for n in range(2_000)]


async def test_a_record_without_room_fails_alone(receiver: Receiver) -> None:
    """Between others, which share their datagrams as if it did not exist."""
    items: list[Any] = ["a" * 10, "b" * 21, "c" * 10, "", "d\nd", "e" * 20, 5]
    async with UdpSink(receiver.host, receiver.port, encode=_itself, max_datagram=20) as sink:
        errors = await send(sink, RowBatch(items))
    told = dict.fromkeys((3, 4, 6), "PermanentError")
    assert names(errors) == {1: "TooLargeError", **told}
    assert "max_datagram=20" in str(errors[1])
    assert receiver.datagrams() == [b"a" * 10, b"c" * 10, b"e" * 20]


def _itself(item: Any) -> Any:
    return item


async def test_nothing_is_sent_behind_a_failed_item_of_its_key(receiver: Receiver) -> None:
    items = hits(5)
    items[1]["name"] = "a:b"
    async with UdpSink(receiver.host, receiver.port) as sink:
        errors = await send(sink, RowBatch(items, keys=[*"aabab"]))
    assert names(errors) == {1: "PermanentError", 3: "KeyStopped"}
    assert receiver.lines() == ["hits:0|c", "hits:2|c", "hits:4|c"]


async def test_a_receiver_of_ipv6() -> None:
    with Receiver("::1") as receiver:
        async with UdpSink("::1", receiver.port) as sink:
            assert await send(sink, RowBatch(hits(3))) == {}
        assert receiver.lines() == ["hits:0|c", "hits:1|c", "hits:2|c"]


# -- receivers that are gone -----------------------------------------------------------------------


async def test_what_was_sent_before_a_refusal_is_lost_and_the_rest_is_not_sent(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """At most once: delivered means handed to the kernel. Later writes check for the receiver
    first, and the loss is logged once.
    """
    async with UdpSink(receiver.host, receiver.port, max_datagram=10) as sink:
        assert await send(sink, RowBatch(hits(1))) == {}
        receiver.close()
        errors = await send(sink, RowBatch(hits(3)))
        assert names(errors) == dict.fromkeys((1, 2), "UnavailableError")
        for _ in range(2):
            with pytest.raises(UnavailableError, match="refused"):
                await sink.write(RowBatch(hits(3)))
        with Receiver(port=receiver.port) as other:
            assert await send(sink, RowBatch(hits(3))) == {}
            assert other.lines() == ["hits:0|c", "hits:1|c", "hits:2|c"]
        assert await send(sink, RowBatch(hits(1))) == {}
        assert names(await send(sink, RowBatch(hits(1)))) == {0: "UnavailableError"}
    (told,) = caplog.messages
    assert told == (
        f"127.0.0.1:{receiver.port}: Connection refused; datagrams sent shortly before this report "
        "are lost, although their items are delivered"
    )


async def test_a_receiver_that_restarts_loses_only_what_was_on_its_way(receiver: Receiver) -> None:
    retry = Retry(backoff=Backoff(base=0.05, jitter="none"))
    sink = stack(UdpSink(receiver.host, receiver.port), retry)
    async with Batcher(sink, limits=Limits(max_items=10, max_delay=0.01)) as batcher:
        first = [await batcher.submit(item) for item in hits(10)]
        assert {*await gather(first)} == {Outcome.DELIVERED}
        receiver.datagrams()
        receiver.close()
        lost = [await batcher.submit(item) for item in hits(10, 10)]
        assert {*await gather(lost)} == {Outcome.DELIVERED}
        later = [await batcher.submit(item) for item in hits(40, 20)]
        await LoopClock().sleep(0.3)
        assert not any(receipt.done for receipt in later)
        with Receiver(port=receiver.port) as other:
            assert {*await gather(later)} == {Outcome.DELIVERED}
            assert other.lines() == [f"hits:{n}|c" for n in range(20, 60)]


class Resolver:
    """Stands in for the system's DNS."""

    def __init__(self, *hosts: str) -> None:
        self.hosts: Sequence[str] = hosts
        self.asked = 0

    def __call__(self, host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        assert host == "metrics.example"
        self.asked += 1
        if not self.hosts:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (
                socket.AF_INET6 if ":" in each else socket.AF_INET,
                socket.SOCK_DGRAM,
                socket.IPPROTO_UDP,
                "",
                (each, port),
            )
            for each in self.hosts
        ]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    made = Resolver("127.0.0.1")
    monkeypatch.setattr(socket, "getaddrinfo", made)
    return made


async def test_a_name_is_looked_up_again_after_a_failure(
    receiver: Receiver, resolver: Resolver
) -> None:
    """It resolves to another machine then; without a failure it is not resolved again so soon."""
    async with UdpSink("metrics.example", receiver.port) as sink:
        for number in range(3):
            assert await send(sink, RowBatch(hits(1, number))) == {}
        assert resolver.asked == 1
        receiver.datagrams()
        receiver.close()
        with Receiver("127.0.0.2", receiver.port) as other:
            resolver.hosts = ["127.0.0.2"]
            assert await send(sink, RowBatch(hits(1, 3))) == {}  # lost
            assert await send(sink, RowBatch(hits(1, 4))) == {}
            assert await send(sink, RowBatch(hits(1, 5))) == {}
            assert other.lines() == ["hits:4|c", "hits:5|c"]
    assert resolver.asked == 2


async def test_a_receiver_that_moves_without_a_trace_is_followed(
    receiver: Receiver,
    resolver: Resolver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing reports that its old address is no longer in use, so its name is looked up again."""
    monkeypatch.setattr("sluicegate.udp.channel.LOOK_EVERY", 0.0)
    with Receiver("127.0.0.2", receiver.port) as other:
        async with UdpSink("metrics.example", receiver.port) as sink:
            assert await send(sink, RowBatch(hits(1))) == {}
            resolver.hosts = []  # no answer: the known address may still be right
            assert await send(sink, RowBatch(hits(1, 1))) == {}
            resolver.hosts = ["127.0.0.3", "127.0.0.2"]
            assert await send(sink, RowBatch(hits(2, 2))) == {}
        assert receiver.lines() == ["hits:0|c", "hits:1|c"]
        assert other.lines() == ["hits:2|c", "hits:3|c"]


async def test_the_address_of_several_that_listens_is_found(
    receiver: Receiver, resolver: Resolver
) -> None:
    """`localhost` is also `::1`, which has no listener; nothing is lost there."""
    resolver.hosts = ["::1", "127.0.0.3", "127.0.0.1"]
    async with UdpSink("metrics.example", receiver.port) as sink:
        for number in range(3):
            assert await send(sink, RowBatch(hits(1, number))) == {}
    assert receiver.lines() == ["hits:0|c", "hits:1|c", "hits:2|c"]


async def test_a_name_that_is_not_found_is_an_outage(
    receiver: Receiver, resolver: Resolver
) -> None:
    resolver.hosts = []
    with pytest.raises(UnavailableError, match=r"metrics\.example.*cannot be looked up"):
        await UdpSink("metrics.example", receiver.port).__aenter__()
    resolver.hosts = ["127.0.0.1"]
    async with UdpSink("metrics.example", receiver.port) as sink:
        receiver.close()
        await send(sink, RowBatch(hits(1)))
        resolver.hosts = []
        assert names(await send(sink, RowBatch(hits(1)))) == {0: "UnavailableError"}


async def test_an_address_that_is_not_allowed_is_refused() -> None:
    async with UdpSink("255.255.255.255", 8125) as sink:
        with pytest.raises(RefusedError, match="broadcast"):
            await sink.write(RowBatch(hits(1)))


async def test_a_refusal_that_comes_while_the_loop_is_busy_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop sees it together with the end of the wait. A stream that is reset represents it."""
    monkeypatch.setattr("sluicegate.udp.channel.PROBE_SECONDS", 0.0)
    near, far = socket.socketpair()
    with near:
        near.setblocking(False)
        near.send(b"not read")
        hearing = asyncio.create_task(_hear(near))
        asyncio.get_running_loop().call_soon(far.close)
        with pytest.raises(ConnectionResetError):
            await hearing


async def test_a_cancelled_write_leaves_no_socket_behind(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it checks whether the receiver has returned."""
    async with UdpSink(receiver.host, receiver.port) as sink:
        port = receiver.port
        receiver.close()
        await send(sink, RowBatch(hits(1)))
        with Receiver(port=port) as other:
            batch = RowBatch(hits(1, 1))
            with monkeypatch.context() as patient:
                patient.setattr("sluicegate.udp.channel.PROBE_SECONDS", 60.0)
                write = asyncio.create_task(send(sink, batch))
                assert await other.next() == b"hits:1|c"
                write.cancel()
                await asyncio.wait([write])
            assert write.cancelled()
            assert not batch.delivery.is_settled(0)
            assert await send(sink, RowBatch(hits(1, 2))) == {}
            assert other.lines()[-1] == "hits:2|c"


async def test_what_a_cancelled_write_had_sent_is_delivered(receiver: Receiver) -> None:
    """The second datagram is refused because of the first, and the write checks for the
    receiver.
    """
    async with UdpSink(receiver.host, receiver.port, max_datagram=10) as sink:
        assert await send(sink, RowBatch(hits(1))) == {}
        receiver.close()
        batch = RowBatch(hits(3))
        write = asyncio.create_task(send(sink, batch))
        await LoopClock().sleep(0)
        write.cancel()
        await asyncio.wait([write])
    assert write.cancelled()
    assert [batch.delivery.is_settled(at) for at in range(3)] == [True, False, False]


async def test_writes_beside_each_other_look_one_after_another(receiver: Receiver) -> None:
    """The first write finds the receiver for all, and leaves one socket."""
    receiver.close()
    async with UdpSink(receiver.host, receiver.port) as sink:
        await send(sink, RowBatch(hits(1)))
        with Receiver(port=receiver.port) as other:
            answers = await asyncio.gather(
                *(send(sink, RowBatch(hits(5, 5 * n))) for n in range(4))
            )
            assert answers == [{}] * 4
            assert other.lines() == [f"hits:{n}|c" for n in range(20)]


# -- a full send buffer ----------------------------------------------------------------------------


@contextmanager
def _local(path: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A socket, and its receiver with a buffer that stays full."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as far,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as near,
    ):
        far.bind(str(path))
        near.connect(str(path))
        far.setblocking(False)
        near.setblocking(False)
        yield near, far


async def test_a_full_send_buffer_is_waited_for(tmp_path: Path) -> None:
    """Local datagram sockets have one; UDP's own buffer drains by itself."""
    with _local(tmp_path / "far") as (near, far):
        sent = 0
        while True:
            sending = asyncio.create_task(hand_over(near, b"%d" % sent, 10.0))
            await LoopClock().sleep(0.01)
            if not sending.done():
                break
            sent += 1
        for number in range(sent):
            assert far.recv(100) == b"%d" % number
        await sending
        assert far.recv(100) == b"%d" % sent


async def test_a_send_buffer_that_stays_full_is_told(tmp_path: Path) -> None:
    """The datagram is dropped."""
    with _local(tmp_path / "far") as (near, far):
        sent = 0
        with pytest.raises(UnavailableError, match=r"was full for 0\.05 s"):
            while True:
                await hand_over(near, b"%d" % sent, 0.05)
                sent += 1
        assert [far.recv(100) for _ in range(sent)] == [b"%d" % n for n in range(sent)]
        with pytest.raises(BlockingIOError):
            far.recv(100)


# -- arguments -------------------------------------------------------------------------------------


async def test_a_sink_that_is_not_open_sends_nothing() -> None:
    with pytest.raises(ClosedError, match=r"UdpSink\('h', 8125\) is not open"):
        await UdpSink("h", 8125).write(RowBatch(hits(1)))


def _of_two(_: object, __: object) -> bytes:
    return b""


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: UdpSink("", 1), "host='': must be text"),
        (lambda: UdpSink("h", 0), "port=0: must be a whole number"),
        (lambda: UdpSink("h", 70_000), "port=70000: must be at most 65535"),
        (lambda: UdpSink("h", 1, encode="json"), "encode='json': must be a function"),  # type: ignore[arg-type]
        (lambda: UdpSink("h", 1, encode=_of_two), "encode=<function"),  # type: ignore[arg-type]
        (lambda: UdpSink("h", 1, max_datagram=0), "max_datagram=0: must be a whole number"),
        (
            lambda: UdpSink("h", 1, max_datagram=70_000),
            "max_datagram=70000: must be at most 65,507",
        ),
        (lambda: UdpSink("h", 1, timeout=0), "timeout=0: must be more than 0"),
    ],
)
def test_bad_arguments_are_refused_with_their_rule(make: Callable[[], object], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert told in str(caught.value)
