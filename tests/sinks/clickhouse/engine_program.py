"""A front of HTTP for ClickHouse's embedded engine, which runs each statement that it is sent.

    python engine_program.py PORT FOLDER

It does what the server does with a request: the statement of the query string and the body behind it,
with the other parameters as settings; the code of an exception in a header. What it does not have is
the server's: users, connections that are limited, replicas.
"""

from __future__ import annotations

import gzip
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from chdb.session import Session

INSERT = re.compile(r"(INSERT INTO .+) (FORMAT [A-Za-z]+)", re.DOTALL)
CODE = re.compile(r"Code: ([0-9]+)\.")
OF_HTTP = {"query", "wait_end_of_query"}
STATUSES = {60: 404, 81: 404, 115: 404, **dict.fromkeys((6, 26, 27, 38, 41, 53, 72, 117), 400)}


class Front(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    session: Any
    file: Path
    lock = threading.Lock()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        asked = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        statement = asked.get("query", "").encode() + body
        insert = INSERT.fullmatch(asked.get("query", ""))
        if insert is not None:
            given = ((name, text) for name, text in asked.items() if name not in OF_HTTP)
            settings = ", ".join(f"{name} = '{text}'" for name, text in given)
            told = f" SETTINGS {settings}" if settings else ""
            if insert[2].endswith("Stream"):  # bytes within a statement would be taken for its end
                statement = f"{insert[1]} FROM INFILE '{self.file}'{told} {insert[2]}".encode()
            else:
                statement = f"{insert[1]}{told} {insert[2]}\n".encode() + body
        try:
            with self.lock:
                self.file.write_bytes(body)
                found = self.session.query(statement, "TSV").bytes()
        except Exception as error:
            text = str(error)
            code = CODE.search(text)
            number = int(code[1]) if code else 1001
            headers = {"X-ClickHouse-Exception-Code": str(number)}
            self.answer(STATUSES.get(number, 500), text.encode(), headers)
        else:
            self.answer(200, found or b"", {})

    def do_GET(self) -> None:
        self.answer(200, b"Ok.\n", {})

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base's name
        """Say nothing."""


if __name__ == "__main__":
    make: Any = Session  # it has no types
    Front.session = make(sys.argv[2])
    Front.file = Path(sys.argv[2]).with_name("body")
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Front).serve_forever()
