"""The Spark data source ``zonemta``: envelopes written to relays, the waiting queue read.

    spark.dataSource.register(ZonemtaSource)          # ``open_session`` does it

    envelopes.write.format("zonemta").mode("append") \\
        .option("relays", "10.0.0.1:2525 10.0.0.2:2525").option("sender", "news@example.com") \\
        .option("message", text).save()
    spark.read.format("zonemta").option("queue", "/var/lib/zonemta/queue").load()

What is written has the columns ``key`` and ``recipients`` of a plan's envelopes. A job that fails has
sent some of them; run it again, and the relay knows those by their keys. ``zonemta pipeline send``
keeps a ledger as well.
"""

import asyncio
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from zonemta_py.admin.control import ask
from zonemta_py.config.units import duration, host_port
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.core.loop import loop_factory
from zonemta_py.pipeline.submission import ACCEPTED, Manners, Submission, envelope_of

QUEUE = "message string, recipient string, zone string, domain string, state string, attempts int, reply string"
_QUEUE_COLUMNS = ("message", "recipient", "zone", "domain", "state", "attempts", "reply")


class ZonemtaSource(DataSource):
    """``format("zonemta")``."""

    @classmethod
    def name(cls) -> str:
        """Its short name."""
        return "zonemta"

    def schema(self) -> str:
        """Of what is read: the recipients that wait."""
        return QUEUE

    def reader(self, schema: StructType) -> "QueueReader":
        """Reads the queue of a relay on this machine."""
        return QueueReader(Path(_needed(self.options, "queue")))

    def writer(self, schema: StructType, overwrite: bool) -> "EnvelopeWriter":
        """Submits envelopes."""
        missing = {"key", "recipients"} - set(schema.names)
        if missing:
            raise ConfigError(
                f"the columns {', '.join(sorted(missing))} are missing: write a plan's envelopes"
            )
        return EnvelopeWriter(_manners(self.options))


def _needed(options: MutableMapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise ConfigError(f"the data source zonemta needs the option '{name}'")
    return value


def _manners(options: MutableMapping[str, str]) -> Manners:
    relays = _needed(options, "relays").replace(",", " ").split()
    for relay in relays:
        try:
            host_port(relay)
        except ValueError as exc:
            raise ConfigError(f"option relays: found '{relay}', expected {exc}") from exc
    user, password = options.get("user"), options.get("password")
    return Manners(
        sender=_needed(options, "sender"),
        message=_needed(options, "message").encode(),
        relays=tuple(relays),
        sessions=int(options.get("sessions", "8")),
        tls=options.get("tls", "opportunistic"),
        credentials=(user, password or "") if user else None,
        patience_s=duration(options.get("patience", "1h")),
    )


class QueueReader(DataSourceReader):
    """The recipients that wait in a relay's queue, asked over its control socket."""

    def __init__(self, queue: Path) -> None:
        self._queue = queue

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """One row for each. Raises LocalError when no relay runs there."""
        for row in ask(self._queue, "list", {}):
            yield tuple(row.get(name) for name in _QUEUE_COLUMNS)


@dataclass
class Sent(WriterCommitMessage):
    """What a task did, in recipients."""

    accepted: int


class EnvelopeWriter(DataSourceArrowWriter):
    """Submits the envelopes of its task."""

    def __init__(self, manners: Manners) -> None:
        self._manners = manners

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Submit them all; a recipient that no relay accepts fails the task, when the others are done."""
        submission = Submission(self._manners)
        accepted, refused = 0, []
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            for batch in iterator:
                for settled in runner.run(submission.send(map(envelope_of, batch.to_pylist()))):
                    if settled.state == ACCEPTED:
                        accepted += 1
                    else:
                        refused.append(f"{settled.address}: {settled.reply}")
            runner.run(submission.aclose())
        if refused:
            raise LocalError(f"{len(refused)} recipients were not accepted, such as {refused[0]}")
        return Sent(accepted)
