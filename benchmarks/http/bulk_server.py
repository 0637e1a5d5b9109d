"""A server that only counts the items of bulk requests; in its own process, so that it costs the
clients nothing.

`POST /lines` counts lines. `POST /_bulk` counts pairs of lines and responds for each like
Elasticsearch with a filtered response. `GET /count` returns the number of items since the last such
request. `delay=20/` in the path waits 20 ms.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_DELAY = re.compile(rb"delay=(\d+)")


class Connection(asyncio.Protocol):
    taken = 0

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head_end = self._buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = bytes(self._buffer[:head_end])
        found = _LENGTH.search(head)
        end = head_end + 4 + (int(found[1]) if found else 0)
        if len(self._buffer) < end:
            return
        body = bytes(self._buffer[head_end + 4 : end])
        del self._buffer[:end]
        answer = self._answer(head, body)
        delay = _DELAY.search(head)
        if delay is None or delay[1] == b"0":
            self._send(answer)
        else:
            asyncio.get_running_loop().call_later(int(delay[1]) / 1000, self._send, answer)

    def _send(self, answer: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(answer)

    @staticmethod
    def _answer(head: bytes, body: bytes) -> bytes:
        if head.startswith(b"GET /count"):
            taken, Connection.taken = Connection.taken, 0
            return _response(b"%d" % taken)
        lines = body.count(b"\n")
        if b"/_bulk" in head.partition(b"\r\n")[0]:
            Connection.taken += lines // 2
            return _bulk_answer(lines // 2)
        Connection.taken += lines
        return _response(b"")


@functools.cache
def _bulk_answer(count: int) -> bytes:
    items = [
        {"index": {"_id": f"{number:032}", "_version": 1, "result": "created", "status": 201}}
        for number in range(count)
    ]
    return _response(json.dumps({"errors": False, "items": items}, separators=(",", ":")).encode())


def _response(body: bytes) -> bytes:
    head = (
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Elastic-Product: "
        "Elasticsearch\r\nContent-Length: {}\r\n\r\n"
    )
    return head.format(len(body)).encode() + body


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(
        None, sys.stdin.read
    )  # until the process that started it is gone


@contextmanager
def running() -> Iterator[str]:
    """Run the server; provide its URL."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise AssertionError
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()


if __name__ == "__main__":
    asyncio.run(serve())
