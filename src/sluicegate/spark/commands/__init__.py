"""`sluicegate pipeline`: check, explain and run pipelines on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...cli.group import Group

if TYPE_CHECKING:
    import argparse

    from ...cli.group import Counts
    from ...cli.parser import Parser


def _options(parser: Parser, _: Counts) -> None:
    add = parser.accept_commands("action")
    helps = {
        "run": "run a pipeline to its end",
        "validate": "report every error of a pipeline",
        "explain": "print a pipeline's steps",
    }
    for action, text in helps.items():
        command = add(action, text, f"sluicegate pipeline {action} sales.toml")
        command.add_argument("file", metavar="FILE", help="the pipeline's TOML file")
        if action == "run":
            command.add_argument(
                "--plain",
                action="store_true",
                help="print progress as plain lines, also on a terminal",
            )
        else:
            command.add_argument(
                "--spark", action="store_true", help="start Spark and let it check the plan too"
            )


def _run(options: argparse.Namespace) -> int:
    from .commands import pipeline  # it needs the extra

    return pipeline(options)


GROUP = Group(
    description="Validate a pipeline's file, explain its steps, or run it on Spark.",
    example="sluicegate pipeline run sales.toml",
    options=_options,
    run=_run,
    extras={"pyspark": "pipeline", "rich": "pipeline"},
)
