"""A PostgreSQL server for trying the examples, until Ctrl-C. Usage: python a_postgres.py
[FILE.sql ...]; the files are executed at the start.

SIGHUP makes it crash and start again.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import asyncpg

from sluicegate.testing import embedded_postgres


async def execute(dsn: str, scripts: list[str]) -> None:
    connection = await asyncpg.connect(dsn)
    for script in scripts:
        await connection.execute(script)
    await connection.close()


def main(files: list[str]) -> None:
    with embedded_postgres() as server:
        asyncio.run(execute(server.dsn, [Path(file).read_text() for file in files]))
        signals = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        print(f"export DSN={server.dsn}\n# to see it crash: kill -HUP {os.getpid()}", flush=True)
        while signal.sigwait(signals) == signal.SIGHUP:
            server.kill()
            print("# killed with SIGKILL", flush=True)
            server.start()
            print("# up again", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
