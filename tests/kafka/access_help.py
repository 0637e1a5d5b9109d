"""The arguments of a Kafka class from options of the class, of its access and of its client."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

from sluicegate.kafka import KafkaAccess, KafkaSink, KafkaState

_OF_ACCESS = {each.name for each in fields(KafkaAccess)} - {"bootstrap", "client"}


def kafka_args(kind: Any, bootstrap: Any, **options: Any) -> dict[str, Any]:
    """Sort the options; those that no class knows are the client's."""
    known = inspect.signature(kind).parameters
    own = {name: value for name, value in options.items() if name in known and name != "client"}
    access = {name: value for name, value in options.items() if name in _OF_ACCESS - own.keys()}
    client = {
        **options.get("client", {}),
        **{name: value for name, value in options.items() if name not in {*own, *access, "client"}},
    }
    if kind in (KafkaSink, KafkaState):
        access["client"] = client
    elif client:
        own["client"] = client
    return {"bootstrap": KafkaAccess(bootstrap, **access) if access else bootstrap, **own}
