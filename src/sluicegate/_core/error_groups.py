"""The errors of one write, grouped by exception.

A write that fails as a whole has one exception for all its items. Decisions that depend only on the
exception are made once per group. Groups are formed by identity, since different exceptions may be
equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .causes import distinct

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class ErrorGroup(NamedTuple):
    """One exception, and the indices of the items that failed with it."""

    error: BaseException
    indices: Collection[int]


def by_error(errors: Mapping[int, BaseException]) -> list[ErrorGroup]:
    """Group errors; the groups are in the order of their first items."""
    alone = distinct(errors.values())
    if len(alone) > 1:
        return _groups(errors)
    return [ErrorGroup(error, errors.keys()) for error in alone]


def _groups(errors: Mapping[int, BaseException]) -> list[ErrorGroup]:
    found: dict[int, tuple[BaseException, list[int]]] = {}
    for index, error in errors.items():
        known = found.get(id(error))
        if known is None:
            found[id(error)] = (error, [index])
        else:
            known[1].append(index)
    return [ErrorGroup(error, indices) for error, indices in found.values()]
