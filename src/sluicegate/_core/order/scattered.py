"""Sinks that do not keep the rows of one key in order, although they receive them in order.

The check follows the items: through a decorator to its sink, through a combinator to each branch,
but not to dead-letter targets.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ..sink import branches_of, inner_of


@runtime_checkable
class ScattersKeys(Protocol):
    """A sink whose destination has several lanes that are ordered independently."""

    @property
    def scatters_keys(self) -> str | None:
        """Return why rows of a key can reach several lanes, and a remedy; `None` if they cannot."""
        ...


def scattered_by(sink: object) -> str | None:
    """Return the first reason of `sink` or an inner sink of the same items; `None` without any."""
    if isinstance(sink, ScattersKeys):
        return sink.scatters_keys
    inner = inner_of(sink)
    found = map(scattered_by, branches_of(sink) if inner is None else (inner,))
    return next((reason for reason in found if reason is not None), None)
