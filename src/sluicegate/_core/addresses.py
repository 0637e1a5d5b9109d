"""Addresses that may hold a password: split strictly or refused, and shown without it.

1. A parser ends the login at the first `/`, `?` or `#`, and a reader at the last `@`. A password
   with one of these that is not percent-encoded moves a piece of it into the host, the path or the
   query, where it would be shown, and the client would connect to another host. So `@` may stand
   once, in front of the host; each host and port must look like one; and an address that is none of
   this is refused.
2. An error shows no more of an address than its scheme.
3. `place` is the only form of an address for reprs, errors and logs: without login, query, fragment.
4. `Options` shows only the names of a client's options, which may hold a password as well.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from .errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection


ENCODING = (
    "a port is a number, and special characters in a login or an option are percent-encoded "
    "(@ : / ? # [ ] % as %40 %3A %2F %3F %23 %5B %5D %25)"
)
UNSET = "is an environment variable not set?"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+._-]*://")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[^\s:@/?#\[\]\\]*)(?::(?P<port>\d{1,5}))?")
_NAMES = re.compile(r"[\w.-]*(?::\d*)?(?:[,\s]+[\w.-]+(?::\d*)?)*,?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def split(
    name: str, address: object, schemes: Collection[str], rule: str, *, several: bool = False
) -> SplitResult:
    """Split the argument `name` into the parts of a URL; `several` hosts may stand in a list.

    Raises `ConfigError` with `rule` for another scheme.
    """
    if address is None or address == "":
        raise ConfigError(f"{name}={address!r}: {rule}; {UNSET}")
    if not isinstance(address, str):
        raise ConfigError(f"{name}={type(address).__name__!r}: {rule}")
    scheme, _, rest = address.partition("://")
    if scheme.lower() not in schemes or "://" not in address:
        raise ConfigError(f"{name}={_scheme(address)}: {rule}")
    try:
        # urlsplit knows no scheme with an underscore, as that of psycopg_async
        parts = urlsplit(f"url://{rest}")._replace(scheme=scheme.lower())
    except ValueError:  # its text shows the address
        raise unreadable(name, address) from None
    login, _, hosts = parts.netloc.rpartition("@")
    found = [_HOST.fullmatch(each) for each in (hosts.split(",") if several else [hosts])]
    if (
        _CONTROL.search(address)
        or address.count("@") != parts.netloc.count("@")
        or "@" in login
        or any(host is None or int(host["port"] or 0) >= 1 << 16 for host in found)
    ):
        raise unreadable(name, address)
    return parts


def place(parts: SplitResult) -> str:
    """Return scheme, host, port and path."""
    return f"{parts.scheme}://{hosts(parts)}{parts.path}"


def shown(value: object) -> str:
    """Return the `repr` of a bad address, if it is only names with ports; otherwise three dots."""
    return repr(value) if isinstance(value, str) and _NAMES.fullmatch(value) else "..."


def hosts(parts: SplitResult) -> str:
    """Return the hosts and ports."""
    return parts.netloc.rpartition("@")[2]


def unreadable(name: str, address: str) -> ConfigError:
    """Return the error for an address that cannot be split; it shows the scheme at most."""
    return ConfigError(f"{name}={_scheme(address)}: its host or port cannot be read: {ENCODING}")


def _scheme(address: str) -> str:
    """Return the form of an address in errors."""
    scheme = _SCHEME.match(address)
    return f"'{scheme[0]}...'" if scheme else "..."


class Options(dict[str, Any]):
    """A mapping of options whose `repr` shows only their names."""

    def __repr__(self) -> str:
        return f"Options({', '.join(self)})"
