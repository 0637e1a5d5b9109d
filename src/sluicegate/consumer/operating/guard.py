"""Admission of requests that reveal or change a consumer: from loopback, or with a token.

1. A request is local if its peer has a loopback address and names a loopback host. Whether a header
   is trusted is never a question: a header can only make a request less local.
2. Behind a proxy of the same host or pod, every client has a loopback address. So a request with a
   header of a proxy is not local, whatever address the header names; nor is one whose `Host` is not
   a loopback name, which a proxy may forward and a page with a rebound DNS name sends.
3. A browser sends `Origin` with a form of any page. Such a request is not local.
4. A request with credentials is judged by them alone, so a wrong token fails on loopback too.
5. Only a digest of the token is kept. Comparing digests takes constant time, whatever the lengths.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from ..._core.checks import bad

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOKEN = re.compile(r"[\x21-\x7e]+")
_RULE = "must be None, or visible ASCII characters without spaces; strip the newline of a file"
_REVEALING = {
    "forwarded": "a proxy",
    "via": "a proxy",
    "x-real-ip": "a proxy",
    "origin": "a browser",
}
_CHALLENGE = 'Bearer realm="sluicegate"'


class Refusal(NamedTuple):
    """Why a request is refused."""

    status: int
    text: str
    challenge: str | None = None
    """The value of `WWW-Authenticate`."""


class Guard:
    """Admits requests from loopback, and with the token if there is one."""

    def __init__(self, token: object) -> None:
        if token is not None and not (isinstance(token, str) and _TOKEN.fullmatch(token)):
            raise bad("token", "..." if token else token, _RULE)
        self._digest = None if token is None else _digest(token)

    def refusal(self, scope: Mapping[str, Any]) -> Refusal | None:
        """Return why a request is refused; `None` if it is admitted."""
        headers = [(name.decode("latin-1").lower(), value) for name, value in scope["headers"]]
        given = b",".join([value for name, value in headers if name == "authorization"])
        if self._digest is not None and given:
            return _check(self._digest, given.decode("latin-1"))
        why = _not_local(scope.get("client"), headers)
        if why is None:
            return None
        if self._digest is not None:
            told = f"unauthorized: {why}; send `Authorization: Bearer <token>`"
            return Refusal(401, told, _CHALLENGE)
        return Refusal(
            403,
            f"forbidden: only loopback is answered, and {why}. Send the request from this host or "
            "pod (kubectl exec, kubectl port-forward), or serve the probes with token= and send "
            "`Authorization: Bearer <token>`",
        )


def _check(digest: bytes, given: str) -> Refusal | None:
    scheme, _, token = given.partition(" ")
    if hmac.compare_digest(_digest(token.strip()), digest) and scheme.lower() == "bearer":
        return None
    told = "unauthorized: the token is wrong; send `Authorization: Bearer <token>`"
    return Refusal(401, told, f'{_CHALLENGE}, error="invalid_token"')


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _not_local(client: tuple[str, int] | None, headers: list[tuple[str, bytes]]) -> str | None:
    """Return why a request is not local; `None` if it is."""
    if client is None:
        return "the server does not tell this request's address"
    if not _is_loopback(client[0]):
        return f"this request comes from {client[0]}"
    for name, _ in headers:
        through = "a proxy" if name.startswith("x-forwarded-") else _REVEALING.get(name)
        if through is not None:
            return f"this request comes through {through} (it has the header {name})"
    hosts = [value.decode("latin-1") for name, value in headers if name == "host"]
    if len(hosts) != 1 or not _is_loopback(_host_of(hosts[0])):
        return "this request is for another host (its header host is not a loopback name)"
    return None


def _host_of(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped  # a peer of a socket for both families
    return address.is_loopback
