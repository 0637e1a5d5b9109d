"""Logging that never raises.

A filter or a handler of the program's may raise, and `logging` lets what a filter raises through.
No batcher ends because of it.
"""

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
    """Log a line, with the traceback of `error` if one is given. What logging raises goes to
    stderr, with the line.
    """
    try:
        logger.log(level, message, *args, exc_info=error, stacklevel=3)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as broken:
        if logging.raiseExceptions and sys.stderr is not None:
            sys.stderr.write(
                f"penstock: logging raised {repr_of(broken)}; the line was: {message} "
                f"{repr_of(args)}\n"
            )
