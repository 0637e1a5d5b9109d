"""Items to streams of Redis.

Provisional: its public names may change in a minor release.

- `sink`, and `write`: one write; `commands`: items as commands.
- `connections`: options and exchanges; `refusals`: the classes of errors.
"""

from .._core.public import publish_all
from .sink import RedisSink

__all__ = ["RedisSink"]

publish_all(__name__, "sluicegate.redis")
