"""`sluicegate pg`: install, upgrade and check streams and queues in PostgreSQL."""

from ....cli.parser import DSN, Group
from .arguments import pg_options
from .commands import pg

GROUP = Group(
    description=(
        "Create the schema of streams and queues in PostgreSQL, grant rights on it to roles, upgrade it, "
        "or check it for problems."
    ),
    example=f"sluicegate pg install {DSN}",
    options=pg_options,
    run=pg,
    extras={"asyncpg": "postgres"},
)
