"""The Spark data source ``zonemta``: writes envelopes to relays, reads the queue of a relay.

    spark.dataSource.register(ZonemtaSource)

    envelopes.write.format("zonemta").mode("append") \\
        .option("relays", "10.0.0.1:2525 10.0.0.2:2525").option("sender", "news@example.com") \\
        .option("message", text).save()
    spark.read.format("zonemta").option("queue", "/var/lib/zonemta/queue").load()

The rows to write have the columns ``key`` and ``recipients`` of a plan's envelopes. A job that fails has
submitted some of them; when it runs again, the relay recognises those by their keys. ``zonemta pipeline
send`` also writes a ledger.
"""

import asyncio
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from zonemta_py.admin.control_client import ask
from zonemta_py.admin.requests import ListRequest
from zonemta_py.config.endpoints import host_port
from zonemta_py.config.values import duration
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.core.runtime import loop_factory
from zonemta_py.pipeline.send.submission import ACCEPTED, EnvelopeSubmitter, SubmitOptions, envelope_of

_TEXTS = ("message", "recipient", "zone", "domain", "tenant", "campaign", "state", "reply")
QUEUE = ", ".join([*(f"{name} string" for name in _TEXTS), "attempts int"])
_QUEUE_SCHEMA = pa.schema([*((name, pa.string()) for name in _TEXTS), ("attempts", pa.int32())])
ROWS_AT_ONCE = 10_000


class ZonemtaSource(DataSource):
    """``format("zonemta")``."""

    @classmethod
    def name(cls) -> str:
        """The name that ``format`` takes."""
        return "zonemta"

    def schema(self) -> str:
        """The columns of the reader: one row for each waiting recipient."""
        return QUEUE

    def reader(self, schema: StructType) -> "QueueReader":
        """A reader of the queue of a relay on this machine. Raises ConfigError without the option ``queue``."""
        return QueueReader(Path(_required(self.options, "queue")))

    def writer(self, schema: StructType, overwrite: bool) -> "SubmittingWriter":
        """A writer that submits envelopes. Raises ConfigError for missing columns and for bad options."""
        missing = {"key", "recipients"} - set(schema.names)
        if missing:
            raise ConfigError(
                f"the columns {', '.join(sorted(missing))} are missing: write a plan's envelopes"
            )
        return SubmittingWriter(_submit_options(self.options))


def _required(options: MutableMapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise ConfigError(f"the data source zonemta needs the option '{name}'")
    return value


def _submit_options(options: MutableMapping[str, str]) -> SubmitOptions:
    relays = _required(options, "relays").replace(",", " ").split()
    for relay in relays:
        try:
            host_port(relay)
        except ValueError as exc:
            raise ConfigError(f"option relays: found '{relay}', expected {exc}") from exc
    user, password = options.get("user"), options.get("password")
    return SubmitOptions(
        sender=_required(options, "sender"),
        message=_required(options, "message").encode(),
        relays=tuple(relays),
        connections=int(options.get("connections") or options.get("sessions", "8")),
        tls=options.get("tls", "opportunistic"),
        credentials=(user, password or "") if user else None,
        patience_s=duration(options.get("patience", "1h")),
    )


class QueueReader(DataSourceReader):
    """Reads the waiting recipients of a relay's queue over its control socket."""

    def __init__(self, queue: Path) -> None:
        self._queue = queue

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One row for each recipient. Raises ConnectionRefusedError when no relay runs there."""
        rows = ask(self._queue, ListRequest())
        while some := list(islice(rows, ROWS_AT_ONCE)):
            yield pa.RecordBatch.from_pylist(some, schema=_QUEUE_SCHEMA)


@dataclass
class CommitMessage(WriterCommitMessage):
    """The number of recipients that a task has submitted."""

    accepted: int


class SubmittingWriter(DataSourceArrowWriter):
    """Submits the envelopes of one task."""

    def __init__(self, options: SubmitOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Submit all envelopes. Raises LocalError afterwards when a recipient was not accepted."""
        submitter = EnvelopeSubmitter(self._options)
        accepted, refused = 0, []
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            for batch in iterator:
                for result in runner.run(submitter.settle(map(envelope_of, batch.to_pylist()))):
                    if result.state == ACCEPTED:
                        accepted += 1
                    else:
                        refused.append(f"{result.address}: {result.reply}")
            runner.run(submitter.aclose())
        if refused:
            raise LocalError(f"{len(refused)} recipients were not accepted, such as {refused[0]}")
        return CommitMessage(accepted)
