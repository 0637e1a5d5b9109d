"""Records to Kafka topics.

- `sink`, and `write`: one batch, by partition.
- `records`: items as parts of records; `columns`: the same from Arrow; `places`: their partitions.
- `claims`: the partitions of a source whose offsets are committed with the records.
"""

from ..._core.public import publish_all
from .sink import KafkaSink

__all__ = ["KafkaSink"]

publish_all(__name__, "sluicegate.kafka")
