"""Logging that never raises: an error in the program's filter or handler must not end a batcher."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from .text import repr_of

if TYPE_CHECKING:
    from logging import Logger


def say(
    logger: Logger, level: int, message: str, *args: object, error: BaseException | None = None
) -> None:
    """Log a line, with the traceback of `error`. An error during logging is printed to stderr."""
    try:
        logger.log(level, message, *args, exc_info=error, stacklevel=3)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as broken:
        if logging.raiseExceptions and sys.stderr is not None:
            line = f"{message} {repr_of(args)}"
            sys.stderr.write(
                f"sluicegate: logging raised {repr_of(broken)}; the line was: {line}\n"
            )
