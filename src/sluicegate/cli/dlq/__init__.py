"""`sluicegate dlq`: inspect, replay and purge dead letters.

`commands` are run with the `arguments` and print by `output`; `replay` sends letters to a `target`.
The stores of dead letters are those of the technologies, by name.
"""

from typing import TYPE_CHECKING

from ..._core.public import later

if TYPE_CHECKING:
    from ...files.letters import FileStore
    from ...postgres.letters.store import PostgresStore, prepare
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "..files.letters": ["FileStore"],
            "..postgres.letters.store": ["prepare", "PostgresStore"],
        },
    )

__all__ = [
    "FileStore",
    "PostgresStore",
    "prepare",
]
