"""TLS from files: a context that is created where it is used, since it cannot be pickled."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .checks import bad
from .errors import ConfigError

TlsContext = ssl.SSLContext | Callable[[], ssl.SSLContext]
FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password")
"""Arguments of an access that name files of TLS; `ssl_context` replaces them."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TlsFiles:
    """Creates an `ssl.SSLContext` for a client, in the process in which it is called.

    Args:
        cafile: the file with the certificates to trust. Default: those of the system.
        certfile: the file with the client's own certificate, for a server that requests one.
        keyfile: the file with its private key. Default: `certfile`.
        password: the password of the private key.
    """

    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    password: str | None = None

    def __call__(self) -> ssl.SSLContext:
        """Read the files. Raises `ConfigError` if one is missing or has other contents."""
        try:
            made = ssl.create_default_context(cafile=self.cafile)
            if self.certfile is not None:
                made.load_cert_chain(self.certfile, self.keyfile, self.password)
        except OSError as error:
            raise ConfigError(f"{self!r}: {error}") from error
        return made

    def __repr__(self) -> str:
        names = {"cafile": self.cafile, "certfile": self.certfile, "keyfile": self.keyfile}
        given = ", ".join(f"{name}={value!r}" for name, value in names.items() if value is not None)
        return f"ssl_context({given})"


def check_tls(access: Any) -> None:
    """Check the arguments of TLS of an access. Raises `ConfigError`, which shows no value."""
    given = [name for name in FILES if getattr(access, name) is not None]
    for name in given:
        if not (isinstance(getattr(access, name), str) and getattr(access, name)):
            raise ConfigError(f"{name}=...: must be text that is not empty")
    context = access.ssl_context
    if context is None:
        return
    if not (isinstance(context, ssl.SSLContext) or callable(context)):
        rule = "must be an ssl.SSLContext, or a function that returns it"
        raise bad("ssl_context", type(context).__name__, rule)
    if given:
        raise ConfigError(f"{given[0]}=...: must not be given beside ssl_context=")


def context_of(access: Any) -> TlsContext | None:
    """Return the context of an access, or a function that creates it; `None` if none is given."""
    if access.ssl_context is not None or all(getattr(access, name) is None for name in FILES):
        context: TlsContext | None = access.ssl_context
        return context
    return TlsFiles(
        cafile=access.ssl_cafile,
        certfile=access.ssl_certfile,
        keyfile=access.ssl_keyfile,
        password=access.ssl_password,
    )
