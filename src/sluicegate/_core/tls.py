"""TLS from files: a context that is created where it is used, since it cannot be pickled."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from .errors import ConfigError


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
