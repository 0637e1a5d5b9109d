"""`sluicegate queue`: operate the queues of a schema."""

from ....cli.parser import DSN, Group
from .arguments import queue_options
from .commands import queue

GROUP = Group(
    description=(
        "Create and change queues in PostgreSQL; show waiting jobs and why they wait; continue, park "
        "or skip keys, move slots between consumers, enqueue dead letters again, delete jobs."
    ),
    example=f"sluicegate queue lag {DSN}",
    options=queue_options,
    run=queue,
    extras={"asyncpg": "postgres"},
)
