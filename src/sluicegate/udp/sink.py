"""The sink for metrics over UDP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from .._core import checks
from .._core.batch import RowBatch
from .._core.errors import ClosedError, PermanentError, SinkError, TooLargeError
from .._core.keywords import known_arguments
from .._core.opening import Openable
from .._core.order.left_out import stopped_behind
from .._core.outcome import Outcome
from .._core.sink import Capabilities, WriteResult
from .._core.values.encoding import encoded_items
from .channel import UdpChannel
from .records import statsd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from .._core.batch import Batch
    from .._core.values.encoding import Encode


ETHERNET = 1432
LARGEST = 65_507
"""Maximum payload of an IPv4 datagram, in bytes."""


@known_arguments()
class UdpSink(Openable):
    """Sends items as metrics over UDP, at most once: many records per datagram, none of them split.

    An item is `delivered` once the kernel of this machine has accepted its datagram. Its arrival
    cannot be confirmed.

    Args:
        host: the receiver's name or address, IPv4 or IPv6. A name is looked up when opening, every
            60 seconds, and after a failure.
        port: the receiver's port.
        encode: a function from an item to bytes or text without a newline; default: a metric of
            statsd, from a mapping, or an object with attributes. An item has `name`, `value`,
            `type` (`c`, `g`, `ms`, `h`, `s` or `d`), and optionally `sample_rate` and `tags`, as
            DogStatsD accepts them.
        max_datagram: the maximum size of a datagram, in bytes; default 1,432, the recommendation of
            statsd's documentation for Ethernet, which avoids fragmentation. It recommends 8,932 for
            jumbo frames, and 512 for the internet.
        timeout: limit for looking up the name, and for a full send buffer, in seconds; default 5.

    Raises `ConfigError` for a bad argument. Constructing does not suspend and opens no socket.
    Opening suspends; it looks up the name, and raises `UnavailableError` if that fails.
    """

    _run_time = ("_channel", "_turn")

    def __init__(
        self,
        host: str,
        port: int,
        *,
        encode: Encode | None = None,
        max_datagram: int = ETHERNET,
        timeout: float | timedelta = 5.0,
    ) -> None:
        self._host = checks.text("host", host)
        self._port = checks.count("port", port)
        if self._port >= 1 << 16:
            raise checks.bad("port", port, "must be at most 65535")
        rule = "must be a function from an item to bytes or text"
        self._encode: Callable[[Any], bytes | str]
        self._encode = checks.optional_function("encode", encode, rule) or statsd
        self._limit = checks.count("max_datagram", max_datagram)
        if self._limit > LARGEST:
            raise checks.bad("max_datagram", max_datagram, f"must be at most {LARGEST:,}")
        self._timeout = checks.seconds("timeout", timeout, usual=checks.LONG_TIMEOUT)
        self._channel: UdpChannel | None = None
        self._turn: asyncio.Lock | None = None

    @property
    def capabilities(self) -> Capabilities:
        """`key_prefix_safe`: datagrams are sent in order, and none after a failed one; in a batch
        with keys, nothing is sent after a failed item of the same key. Writes take turns.
        """
        return Capabilities(key_prefix_safe=True)

    async def _open(self, stack: AsyncExitStack) -> None:
        channel = UdpChannel(self._host, self._port, timeout=self._timeout)
        stack.callback(channel.close)
        await channel.look_up()
        self._channel, self._turn = channel, asyncio.Lock()

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Send every item of `batch`, in order; suspends until its turn, while the send buffer is
        full, and to probe the receiver: at first, after a failure, and every 60 seconds.

        An item fails with `PermanentError` (it is not a metric), `TooLargeError` (its record is
        larger than `max_datagram`), `UnavailableError` (the host reports that nothing listens at
        the port; the name cannot be looked up; no route), `RefusedError` (the kernel does not allow
        the datagram) or `KeyStopped` (after a failed item of its key). Such an item was not sent,
        or is known to be refused. Raises `ClosedError` while the sink is not open. Items that a
        cancelled write has sent are delivered.
        """
        channel, turn = self._channel, self._turn
        if channel is None or turn is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        items: Sequence[Any] = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        made = encoded_items(self._encode, items, lines=True)
        errors = made.errors
        for index, record in zip(made.indices, made.records, strict=True):
            found = too_large(record, self._limit) if record else PermanentError("an empty record")
            if found is not None:
                errors[index] = found
        errors |= stopped_behind(batch.keys, errors)
        chosen = [
            (index, record)
            for index, record in zip(made.indices, made.records, strict=True)
            if index not in errors
        ]
        async with turn:
            await self._send(channel, batch, chosen, errors)
        if not errors:
            return None
        if len(errors) == len(batch) and len({*map(id, errors.values())}) == 1:
            raise next(iter(errors.values()))
        return WriteResult.failed(batch, errors)

    async def _send(
        self,
        channel: UdpChannel,
        batch: Batch[Any],
        chosen: Sequence[tuple[int, bytes]],
        errors: dict[int, BaseException],
    ) -> None:
        """Send the datagrams until one fails, and record the error for the remaining items."""
        sent: list[int] = []
        indices = [index for index, _ in chosen]
        try:
            for datagram in pack(indices, [record for _, record in chosen], self._limit):
                await channel.send(datagram.data)
                sent += datagram.indices
        except SinkError as error:
            errors |= dict.fromkeys(indices[len(sent) :], error)
        except BaseException:
            batch.settle(sent, Outcome.DELIVERED)
            raise

    def __repr__(self) -> str:
        return f"UdpSink({self._host!r}, {self._port})"


# -- datagrams -------------------------------------------------------------------------------------


class Datagram(NamedTuple):
    """The payload of one datagram, and the indices of its items."""

    indices: Sequence[int]
    data: bytes


def too_large(record: bytes, limit: int) -> TooLargeError | None:
    """The error of a record that is too large for any datagram."""
    if len(record) <= limit:
        return None
    told = f"a record of {len(record):,} bytes is larger than a datagram can be (max_datagram"
    return TooLargeError(f"{told}={limit:,})")


def pack(indices: Sequence[int], records: Sequence[bytes], limit: int) -> list[Datagram]:
    """Datagrams of records separated by newlines, as full as the order of records allows."""
    found: list[Datagram] = []
    held: list[int] = []
    lines: list[bytes] = []
    size = -1  # the first record has no newline before it
    for index, record in zip(indices, records, strict=True):
        if held and size + 1 + len(record) > limit:
            found.append(Datagram(held, b"\n".join(lines)))
            held, lines, size = [], [], -1
        held.append(index)
        lines.append(record)
        size += 1 + len(record)
    if held:
        found.append(Datagram(held, b"\n".join(lines)))
    return found
