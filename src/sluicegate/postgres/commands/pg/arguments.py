"""The arguments of `sluicegate pg`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....cli.parser import DSN
from ...schema.opened import DEFAULT_SCHEMA

if TYPE_CHECKING:
    from ....cli.parser import Counts, Parser

_COMMANDS = {
    "install": (
        "create the schema of streams and queues unless it exists, and grant rights on it to roles"
    ),
    "upgrade": "upgrade the schema to the version of this release; messages and jobs stay",
    "check": "print the problems of the schema and the SQL that repairs them; change nothing",
}
_EXAMPLES = {
    "install": " --append web --subscribe billing --enqueue web --work mailer",
    "check": " --work mailer",
}
_RIGHTS = {
    "append": "may append messages, but neither read nor change them",
    "read": "may read messages",
    "subscribe": "may read messages and store positions of subscriptions",
    "enqueue": "may enqueue jobs, but neither read nor claim them",
    "work": "may read queues, and claim and settle jobs",
    "operate": "may create and change queues, resume and park keys, redrive and purge jobs",
}


def pg_options(parser: Parser, _: Counts) -> None:
    """Declare the sub-commands and their arguments."""
    add = parser.accept_commands("pg_command")
    for name, text in _COMMANDS.items():
        command = add(name, text, f"sluicegate pg {name} {DSN}{_EXAMPLES.get(name, '')}")
        command.add_argument(
            "dsn", metavar="DSN", help="postgresql://...; missing parts come from PG* variables"
        )
        command.add_argument(
            "--schema",
            default=DEFAULT_SCHEMA,
            metavar="NAME",
            help=f"the schema (default: {DEFAULT_SCHEMA})",
        )
        if name != "upgrade":
            verb = "check that this role" if name == "check" else "a role that"
            for right, rule in _RIGHTS.items():
                command.add_argument(
                    f"--{right}",
                    action="append",
                    default=[],
                    metavar="ROLE",
                    help=f"{verb} {rule}; can be repeated",
                )
        if name != "check":
            command.add_argument(
                "--dry-run", action="store_true", help="change nothing; print the SQL"
            )
