"""Responses that refuse every request, and the repair for each.

Errors of credentials, permissions, paths and proxies are not caused by an item: such a response is
a `RefusedError`, which `Retry` handles as an outage. Redirects are among them, since they are not
followed: the URL is wrong, or a login has expired and the server redirects to its login page. A 403
may concern a single body; `Retry` detects that by sending smaller parts of the batch.
"""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlsplit

from .._core import addresses
from .._core.errors import ConfigError

REDIRECTS = frozenset({301, 302, 303, 307, 308})
REFUSALS = frozenset({401, 403, 404, 405, 407, 410}) | REDIRECTS


def repair_of(
    status: int,
    place: str,
    *,
    method: str = "POST",
    has_credentials: bool = True,
    location: str | None = None,
) -> str:
    """The repair for one of the `REFUSALS`, in one sentence."""
    match status:
        case HTTPStatus.UNAUTHORIZED if not has_credentials:
            return f"give credentials for {place}, as auth= or in its URL; none were sent"
        case HTTPStatus.UNAUTHORIZED:
            return (
                f"give credentials that {place} accepts, as auth= or in its URL; those that "
                "were sent are wrong or have expired"
            )
        case HTTPStatus.FORBIDDEN:
            return f"grant the credentials that were sent the right to {method} to {place}"
        case HTTPStatus.NOT_FOUND:
            return f"correct the path of {place}, or create the resource that it names"
        case HTTPStatus.METHOD_NOT_ALLOWED:
            return f"give a method= that {place} takes, instead of {method}, or correct its path"
        case HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            return (
                f"give credentials that the proxy on the way to {place} accepts, in "
                "client_options proxy="
            )
        case HTTPStatus.GONE:
            return f"give the URL that has replaced {place}, which is gone for good"
        case _:
            target = "" if location is None else f", {location}"
            return (
                f"give the URL to which {place} redirects{target}, or log in again if that is a "
                "login page; redirects are not followed"
            )


def target_of(location: str | None) -> str | None:
    """A `Location` without userinfo, query and fragment; `None` if it cannot be read."""
    if location is None:
        return None
    if "://" not in location:
        path = urlsplit(f"//-{location}").path if location.startswith("/") else ""
        return None if "@" in location else path or None
    try:
        return addresses.place(addresses.split("Location", location, ("http", "https"), ""))
    except ConfigError:
        return None
