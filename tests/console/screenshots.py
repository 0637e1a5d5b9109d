"""Takes the pictures of the page about the console: `python tests/console/screenshots.py`.

It needs Chromium, and Pillow for small files. White box: the server of the probes.
"""

from __future__ import annotations

import asyncio
import io
import shutil
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

from PIL import Image
from tests.console.console_help import kill
from tests.postgres.queues.jobs_help import insert
from tests.postgres.queues.operated_help import fail
from tests.postgres.streams.log_help import Log

from sluicegate import Consumer, Message, RetryPolicy
from sluicegate.console import Console
from sluicegate.consumer import MemoryLog, MemorySource
from sluicegate.consumer.operating.probes import listening_at, serve_app
from sluicegate.postgres import QueueAdmin, install_streams
from sluicegate.testing import embedded_postgres

FOLDER = Path(__file__).parents[2] / "docs" / "assets" / "console"
PICTURES = {
    "part.png": ("part?name=ledger", "1100,700", ""),
    "queue.png": ("queue?name=invoices", "1100,760", "--blink-settings=preferredColorScheme=0"),
}


async def fill(dsn: str) -> None:
    log = Log(dsn, "sluicegate")
    async with QueueAdmin(dsn) as admin, log.connected() as con:
        await admin.create("mails", poison="skip", max_attempts=1)
        await admin.create("invoices", poison="park_key", max_attempts=3)
        await insert(con, log, "mails", *[(f"user-{n}", {"n": n}) for n in range(30)])
        await kill(con, log, "mails", "SmtpError")
        await insert(con, log, "invoices", *[(f"order-{n % 4}", {"n": n}) for n in range(24)])
        await fail(con, log, "invoices", 3)


async def take(chromium: str, url: str, size: str, option: str, target: Path) -> None:
    with TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        options = ("--headless=new", "--no-sandbox", "--hide-scrollbars", f"--window-size={size}")
        command = (chromium, *options, f"--screenshot={shot}", *filter(None, [option]), url)
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
        await process.wait()
        picture = Image.open(io.BytesIO(shot.read_bytes())).convert("RGB").quantize(64)
        picture.save(target, optimize=True)


async def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    assert chromium is not None, "install Chromium"
    log = MemoryLog()
    for n in range(60):
        log.produce("payments", n, key=f"customer-{n % 7}")

    async def book(message: Message) -> None:
        if message.value == 5:
            raise ValueError("card declined")
        if message.value % 20 == 19:
            await asyncio.Event().wait()

    retry = RetryPolicy(attempts=1)
    consumer = Consumer(MemorySource(log), name="ledger", retry=retry, poison="block", drain=0.1)
    with embedded_postgres() as server, closing(listening_at("127.0.0.1", 0)) as listening:
        await install_streams(server.dsn)
        await fill(server.dsn)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with consumer, Console(consumer, postgres=server.dsn) as console:
            task = asyncio.create_task(consumer.run(book))
            async with serve_app(console, listening):
                for name, (page, size, option) in PICTURES.items():
                    await take(chromium, f"{address}/{page}", size, option, FOLDER / name)
            consumer.stop()
            await task


if __name__ == "__main__":
    asyncio.run(main())
