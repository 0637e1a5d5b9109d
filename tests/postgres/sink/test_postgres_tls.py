"""TLS options reach the client; the error of an untrusted certificate does not show the password.

The embedded server is built without TLS, so the tests put their own TLS endpoint in front of it,
like a pooler or a cloud gateway.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from tests.postgres.sink.postgres_help import database, written

from sluicegate import ConfigError, UnavailableError
from sluicegate.postgres import PostgresAccess, PostgresSink

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

TRUSTED, FOREIGN = "trusted.pem", "foreign.pem"
SSL_REQUEST = (80877103).to_bytes(4)


class Gateway:
    """Accepts the client's TLS request and forwards the traffic."""

    def __init__(self, port: int, certificate: ssl.SSLContext) -> None:
        self._port = port
        self._certificate = certificate
        self.sealed = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if (await reader.readexactly(8))[4:] == SSL_REQUEST:
                writer.write(b"S")
                await writer.start_tls(self._certificate)
                self.sealed += 1
                up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
                async with asyncio.TaskGroup() as group:
                    group.create_task(passed_on(reader, up_writer))
                    group.create_task(passed_on(up_reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()


async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def gateway(dsn: str, folder: Path) -> AsyncGenerator[tuple[Gateway, str]]:
    """A gateway with a certificate of the tests' own authority, and the DSN that leads to it;
    `folder` gets the authority files.
    """
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / TRUSTED))
    trustme.CA().cert_pem.write_to_path(str(folder / FOREIGN))
    certificate = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(certificate)
    before, _, rest = dsn.rpartition(":")
    port, _, path = rest.partition("/")
    made = Gateway(int(port), certificate)
    server = await asyncio.start_server(made.connected, "127.0.0.1", 0)
    async with server:
        yield made, f"{before}:{server.sockets[0].getsockname()[1]}/{path}"


def context(folder: Path, name: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(folder / name))


def given(dsn: str, folder: Path, authority: str, how: str) -> dict[str, Any]:
    """Two ways to pass the options: a context from a function, or files named in the DSN."""
    if how == "dsn":
        return {"dsn": f"{dsn}?sslmode=verify-full&sslrootcert={folder / authority}"}
    options = {"ssl": functools.partial(context, folder, authority)}
    return {"dsn": PostgresAccess(dsn, connect_options=options)}


@pytest.mark.parametrize("how", ["factory", "dsn"])
async def test_rows_travel_under_a_trusted_certificate(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, tmp_path: Path, how: str
) -> None:
    async with database(embedded_postgres.dsn) as db, gateway(db.dsn, tmp_path) as (made, through):
        async with db.sink(**given(through, tmp_path, TRUSTED, how)) as sink:
            assert await written(sink, [(1, "x")]) == {}
        assert made.sealed == 1
        assert await db.rows() == [(1, "x")]


@pytest.mark.parametrize("how", ["factory", "dsn"])
async def test_a_foreign_authority_is_told_at_opening_without_the_password(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, tmp_path: Path, how: str
) -> None:
    async with gateway(embedded_postgres.dsn, tmp_path) as (made, through):
        sink = PostgresSink(
            table="events", columns=("id",), **given(through, tmp_path, FOREIGN, how)
        )
        with pytest.raises(ConfigError, match=r"127\.0\.0\.1.*certificate verify failed") as caught:
            async with sink:
                pass
        assert not sink.is_open
        assert (
            embedded_postgres._password
            not in f"{caught.value!r} {caught.value.__cause__!r} {sink!r}"
        )
        assert made.sealed == 0


async def test_a_server_without_tls_says_so(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    with pytest.raises(UnavailableError, match="rejected SSL") as caught:
        dsn = f"{embedded_postgres.dsn}?sslmode=require"
        async with PostgresSink(dsn, table="events", columns=("id",)):
            pass
    assert embedded_postgres._password not in f"{caught.value!r} {caught.value.__cause__!r}"
