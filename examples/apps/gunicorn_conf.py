"""A batcher per worker process: opened after the fork, drained before the process ends."""

from gunicorn.arbiter import Arbiter
from gunicorn.workers.base import Worker

worker_class = "gthread"
workers = 2
threads = 4

REQUESTS_WITHIN = 5  # seconds after SIGTERM for the requests that are still open
graceful_timeout = 25  # seconds after SIGTERM, then SIGKILL: these requests, the drain and a margin
timeout = 30  # seconds without a heartbeat, then SIGABRT: a drain sends none


def post_worker_init(worker: Worker) -> None:
    from flask_app import batcher  # not at the top: the master would import it permanently

    batcher.start()
    worker.log.info("batcher started in worker %s", worker.pid)
    # This process's copy. With the master's value, a slow client could use up the drain's time.
    worker.cfg.set("graceful_timeout", REQUESTS_WITHIN)


def worker_exit(_server: Arbiter, _worker: Worker) -> None:
    from flask_app import batcher

    batcher.shutdown()
