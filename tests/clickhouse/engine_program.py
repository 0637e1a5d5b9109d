"""An HTTP front for ClickHouse's embedded engine, which runs each statement that it receives.

    python engine_program.py PORT FOLDER

It handles a request like the server: the statement in the query string and the body behind it, the
other parameters as settings, and the code of an exception in a header. It lacks the server's users,
connection limits and replicas.
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
OF_HTTP = {"wait_end_of_query", "client_protocol_version", "session_id", "query_id", "database"}
STATUSES = {60: 404, 81: 404, 115: 404, **dict.fromkeys((6, 26, 27, 38, 41, 53, 72, 117), 400)}


class Front(BaseHTTPRequestHandler):
    """One HTTP connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    session: Any
    file: Path
    lock = threading.Lock()

    def do_POST(self) -> None:
        body = self.body()
        asked = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        query = asked.pop("query", "")
        if not query and body.startswith(b"INSERT"):  # the form that clickhouse-connect expects
            line, _, body = body.partition(b"\n")
            query = line.decode()
        insert = INSERT.fullmatch(query)
        statement = query.encode() + body
        if insert is not None:
            statement = f"{insert[1]}{self.settings(asked)} {insert[2]}\n".encode() + body
            if not insert[2].endswith("Row"):  # bytes within a statement would be taken as its end
                file = f" FROM INFILE '{self.file}'"
                statement = f"{insert[1]}{file}{self.settings(asked)} {insert[2]}".encode()
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

    def body(self) -> bytes:
        if self.headers.get("transfer-encoding") == "chunked":
            parts: list[bytes] = []
            while length := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(length))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        body = self.rfile.read(int(self.headers["content-length"]))
        return gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body

    def settings(self, asked: dict[str, str]) -> str:
        given = [f"{name} = '{text}'" for name, text in asked.items() if name not in OF_HTTP]
        return f" SETTINGS {', '.join(given)}" if given else ""

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
        """Log nothing."""


if __name__ == "__main__":
    make: Any = Session  # it has no types
    Front.session = make(sys.argv[2])
    Front.file = Path(sys.argv[2]).with_name("body")
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Front).serve_forever()
