"""Log records, sent in batches."""

import logging

import sluicegate


class BatchHandler(logging.Handler):
    """Passes each record to a batcher without waiting, and drops records of the batcher's own
    work.
    """

    def __init__(self, batcher: sluicegate.BlockingBatcher[str]) -> None:
        super().__init__()
        self.batcher = batcher
        self.addFilter(sluicegate.batcher.NoFeedback())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.batcher.try_add(self.format(record))
        except Exception:  # like the standard library's handlers
            self.handleError(record)


def ship(batch: sluicegate.Batch[str]) -> None:
    """Send a batch of records. The handler drops the record that is logged here."""
    logging.getLogger("shipping").warning("shipping %d records", len(batch))
    print(*batch, sep="\n")


def main() -> None:
    batcher = sluicegate.BlockingBatcher(ship, name="logs", overflow="drop_newest").start()
    handler = BatchHandler(batcher)
    logging.getLogger().addHandler(handler)
    try:
        for number in range(3):
            logging.getLogger("app").warning("record %d", number)
    finally:
        logging.getLogger().removeHandler(handler)
        print(batcher.shutdown().tally)


if __name__ == "__main__":
    main()
