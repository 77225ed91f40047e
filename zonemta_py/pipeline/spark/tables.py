"""The tables of the pipeline as Spark schemas, and how rows of Python become Arrow batches of them.

PLAN/message/                MESSAGE: one row, the message as it was when the plan was made
PLAN/envelopes/              ENVELOPE: written before anything is sent, never changed
PLAN/left_out/               kind, address and reason of each row of the list that is in no envelope
PLAN/postponed/               the list of the recipients over a cap, for another plan
PLAN/begun/                  BEGUN: when the first submission of the plan began
PLAN/ledger/run=TIME/        LEDGER: a row for each recipient that was submitted, by the time of the round (ms)
PLAN/manifest/               MANIFEST: one row, written last: without it there is no plan
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)


def _struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


RECIPIENT = _struct(address=StringType(), fields=MapType(StringType(), StringType()))

ENVELOPE = _struct(
    key=StringType(),  # ``plan.pack.submission_key``
    slot=IntegerType(),  # the part of the work that it belongs to; slots are sent in parallel
    turn=LongType(),  # orders the envelopes of a slot, so that providers take turns
    zone=StringType(),
    provider=StringType(),
    recipients=ArrayType(RECIPIENT),
    send_at_ms=LongType(),  # the message is not sent before; null: at once. Since version 3
)

LEDGER = _struct(
    campaign=StringType(),
    key=StringType(),
    relay=StringType(),
    address=StringType(),
    state=StringType(),  # accepted, refused, or deferred: the next run submits deferred ones again
    code=IntegerType(),
    reply=StringType(),
    messages=ArrayType(
        StringType()
    ),  # the relay's ids; two when only some recipients of a repeat were new
    repeated=BooleanType(),
    time_ms=LongType(),
    age_ms=LongType(),  # of a repeated message: how long before time_ms the relay had accepted it; null: it did not say
)

BEGUN = _struct(begun_ms=LongType())

LEDGER_RUNS = StructType([*LEDGER.fields, StructField("run", LongType())])  # of all runs

MESSAGE = _struct(octets=BinaryType())  # header and body

MANIFEST = _struct(
    version=IntegerType(),
    campaign=StringType(),
    sender=StringType(),
    personal=BooleanType(),  # the message has merge fields: one envelope for each recipient
    slots=IntegerType(),
    made_ms=LongType(),
    input=LongType(),  # rows of the list: the sum of the next four fields
    planned=LongType(),
    rejected=LongType(),
    duplicate=LongType(),
    suppressed=LongType(),
    envelopes=LongType(),
    id=StringType(),  # random; since version 2, as is the next
    once_per=StringType(),
    not_sampled=LongType(),  # since version 3, as are the next; they are in the sum, too
    other_variant=LongType(),
    postponed=LongType(),
)


def record_batch(rows: Sequence[tuple[Any, ...]], schema: StructType) -> pa.RecordBatch:
    """``rows``, their values in the order of ``schema``, as ``mapInArrow`` expects them."""
    arrow = to_arrow_schema(schema)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(arrow)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


# ---- How far a job is: the steps that it reports, and the rows of the Parquet files that it has written.
#
# Spark reports a task only when it is done. The job therefore closes a file every ROWS_PER_FILE rows, and
# the footers of the closed files are counted while the job runs. A task that runs again writes files of the same names.

ROWS_PER_FILE = 5000
POLL_S = 1.0

Transform = Callable[[DataFrame], DataFrame]
Progress = Callable[[str], None]  # called with a line for the operator when a step begins


@contextmanager
def report_rows(path: str, report: Callable[[int], None]) -> Iterator[None]:
    """Call ``report`` from a thread with the number of rows below ``path`` whenever it grows.

    Only where ``path`` is a local directory; elsewhere ``report`` is not called.
    """
    if "://" in path:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_watch, args=(Path(path), report, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _watch(directory: Path, report: Callable[[int], None], done: threading.Event) -> None:
    rows: dict[str, int] = {}
    while not done.wait(POLL_S):
        before = len(rows)
        for path in _parquet_files(directory):
            if path.name not in rows:
                closed = _rows_of(path)
                if closed is not None:
                    rows[path.name] = closed
        if len(rows) > before:
            report(sum(rows.values()))


def _parquet_files(directory: Path) -> Iterator[Path]:
    """Spark removes its temporary directories meanwhile: ``os.walk`` skips those, ``rglob`` raises."""
    for parent, _, names in os.walk(directory):
        yield from (Path(parent, name) for name in names if name.endswith(".parquet"))


def _rows_of(path: Path) -> int | None:
    """None for a file that is not complete yet or was moved meanwhile."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowInvalid, OSError):
        return None
