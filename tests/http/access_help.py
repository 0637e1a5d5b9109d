"""The access of a test, from its options."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sluicegate.http import HttpAccess

_OPTIONS = {each.name for each in fields(HttpAccess)} - {"url"}


def access_from(url: Any, options: dict[str, Any]) -> Any:
    """Take the options of an access out of `options`; return the URL, or an access with them."""
    given = {name: options.pop(name) for name in _OPTIONS & options.keys()}
    return HttpAccess(url, **given) if given else url
