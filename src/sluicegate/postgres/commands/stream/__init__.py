"""`sluicegate stream`: operate the subscriptions and the messages of a stream log."""

from ....cli.parser import DSN, Group
from .arguments import stream_options
from .commands import stream

GROUP = Group(
    description=(
        "Show the progress of subscriptions of a stream log in PostgreSQL, and why they wait; pause, "
        "reset or delete them, skip a message, replay messages, delete old ones."
    ),
    example=f"sluicegate stream lag {DSN}",
    options=stream_options,
    run=stream,
    extras={"asyncpg": "postgres"},
)
