"""Values and keys whose schemas are in a registry.

`registry` is its client, `codec` the common part of the formats `avro`, `protobuf` and
`json_schema`, and `server` a real registry for tests.
"""

from ..._core.public import publish_all
from .avro import Avro
from .json_schema import Json
from .protobuf import Protobuf, message_to_row
from .registry import SchemaRegistry

__all__ = ["Avro", "Json", "Protobuf", "SchemaRegistry", "message_to_row"]

publish_all(__name__, "sluicegate.kafka")
