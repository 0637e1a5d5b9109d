"""Give exported objects their public home."""

from __future__ import annotations


def publish(home: str, *objects: object) -> None:
    """Make each object report `home` as its module, for reprs, errors and docs."""
    for thing in objects:
        if getattr(thing, "__module__", "").startswith("penstock."):
            thing.__module__ = home
