"""Give exported objects their public home."""

from __future__ import annotations


def publish(home: str, *objects: object) -> None:
    """Make each object report `home` as its module, so that reprs, errors and docs show where users
    import it from.
    """
    for thing in objects:
        if getattr(thing, "__module__", "").startswith("penstock."):
            thing.__module__ = home
