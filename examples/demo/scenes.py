"""The scenes after the first one, each with its own tables, proof and closing line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sluicegate.errors import MissingExtra
from sluicegate.testing import EmbeddedUnavailable
from sluicegate.testing.servers.require import is_required

from . import jetstream, kafka, order, queue_scene, spark
from .carried import CarriedScene
from .flights import FlightFile, find_file
from .order import OrderScene
from .queue_scene import QueueScene
from .spark import SparkScene
from .tenants import TenantsScene

if TYPE_CHECKING:
    import argparse

    from .flights import Flight
    from .progress import View
    from .proof import Finding

_NOT_ASKED_FOR = "skipped by an option"


def check_options(options: argparse.Namespace) -> None:
    """Raise `MissingExtra` if the required scene on Spark cannot run here."""
    reason = spark.unavailable_reason() if options.spark else None
    if reason is not None:
        raise MissingExtra(f"--spark: {reason}")


def _needs_kafka(options: argparse.Namespace) -> bool:
    return options.kafka or (is_required("kafka") and not options.no_kafka)


class Scenes:
    """The scenes of one run, in a schema that has the flights."""

    def __init__(
        self,
        options: argparse.Namespace,
        view: View,
        dsn: str,
        schema: str,
        flights: list[Flight],
    ) -> None:
        self._options = options
        self._view = view
        self._dsn = dsn
        self._schema = schema
        self._flights = flights

    async def play(self) -> bool:
        """Play the scenes up to the first failed proof; return whether all proofs hold."""
        return (
            await self._order()
            and await self._tenants()
            and await self._queue()
            and await self._jetstream()
            and await self._kafka()
            and await self._spark()
        )

    async def _order(self) -> bool:
        scene = OrderScene(self._dsn, self._schema, self._flights)
        return self._holds(await scene.play(), "the histories are not in order") and self._say(
            f"every aircraft's history is in order, written by {order.WORKERS} workers; "
            f"{scene.parked:,} flights were parked behind "
            f"{order.STOPPED} refused ones, and written when their aircraft were unparked"
        )

    async def _tenants(self) -> bool:
        scene = TenantsScene(self._dsn, self._schema, self._flights)
        if not self._holds(await scene.play(), "the table does not match the carriers' flights"):
            return False
        waits = ", ".join(
            f"{seconds * 1000:,.0f} ms with {way}" for way, seconds in scene.waits.items()
        )
        return self._say(
            "beside a carrier that sends all at once, a flight of a small carrier waited, in 99 "
            f"of 100 cases, at most {waits}"
        )

    async def _queue(self) -> bool:
        if self._options.no_queue:
            return self._say(f"no scene on a queue: {_NOT_ASKED_FOR}")
        began = time.monotonic()
        queues = f"{self._schema}_queue"
        scene = QueueScene(self._dsn, self._schema, queues, self._flights, self._view)
        return self._holds(
            await scene.play(), "the handled flights do not match the enqueued ones"
        ) and self._say(
            f"every committed flight was handled, in order per aircraft, by {scene.workers} of "
            f"{len(queue_scene.WORKERS)} workers, and every spoiled one is a dead letter; "
            f"{len(queue_scene.KILLED)} workers were killed, and {scene.repeated:,} flights were "
            f"handled again: {time.monotonic() - began:.0f} s"
        )

    async def _jetstream(self) -> bool:
        """Play the scene if NATS can be started."""
        if self._options.no_nats:
            return self._say(f"no scene on NATS: {_NOT_ASKED_FOR}")
        began = time.monotonic()
        scene = CarriedScene(jetstream.CARRIER, self._dsn, self._schema, self._flights, self._view)
        try:
            findings = await scene.play()
        except EmbeddedUnavailable as error:
            if is_required("nats"):
                raise
            return self._say(f"no scene on NATS: {error}")
        return self._holds(
            findings, "the table does not match the records sent to NATS"
        ) and self._say(
            f"every aircraft's flights came through JetStream once and in order, stored by "
            f"{scene.consumers} members of a group; {scene.repeated:,} were written again after the "
            f"kill: {time.monotonic() - began:.0f} s"
        )

    async def _kafka(self) -> bool:
        """Play the scene if Kafka can be started."""
        if self._options.no_kafka:
            return self._say(f"no scene on Kafka: {_NOT_ASKED_FOR}")
        began = time.monotonic()
        scene = CarriedScene(kafka.CARRIER, self._dsn, self._schema, self._flights, self._view)
        try:
            findings = await scene.play()
        except EmbeddedUnavailable as error:
            if _needs_kafka(self._options):
                raise
            return self._say(f"no scene on Kafka: {error}")
        return self._holds(
            findings, "the table does not match the records sent to Kafka"
        ) and self._say(
            f"every aircraft's flights came through Kafka once and in order, stored by "
            f"{scene.consumers} consumers; {scene.repeated:,} were written again after the kill: "
            f"{time.monotonic() - began:.0f} s including Kafka's start"
        )

    async def _spark(self) -> bool:
        """Play the scene if Spark can run."""
        reason = _NOT_ASKED_FOR if self._options.no_spark else spark.unavailable_reason()
        if reason is not None:
            return self._say(f"no scene on Spark: {reason}")
        began = time.monotonic()
        scene = SparkScene(
            self._dsn, self._schema, FlightFile(find_file(), self._options.rows), self._view.say
        )
        if not self._holds(await scene.play(), "the table does not match the rows given to Spark"):
            return False
        how = (
            "although an executor was killed"
            if scene.killed
            else "and the write ended before an executor could be killed"
        )
        return self._say(
            f"every aircraft has its latest flight, {how}: {time.monotonic() - began:.0f} s "
            "including Spark's start"
        )

    def _holds(self, findings: list[Finding], otherwise: str) -> bool:
        for finding in findings:
            self._say(str(finding))
        holds = all(finding.holds for finding in findings)
        if not holds:
            self._say(f"DIFFERENT, {otherwise}")
        return holds

    def _say(self, text: str) -> bool:
        self._view.say(text)
        return True
