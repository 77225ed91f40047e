"""The tables of the pipeline, as Spark has them.

PLAN/message/                MESSAGE: one row, the message as it was when the plan was made
PLAN/envelopes/              ENVELOPE: frozen before anything is sent
PLAN/left_out/               LEFT_OUT: every row of the list that is not in an envelope
PLAN/ledger/run=N/           LEDGER: one row for each recipient that was submitted, by run
PLAN/manifest/               MANIFEST: one row, written last: without it there is no plan
"""

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
    key=StringType(),  # keys.submission_key
    slot=IntegerType(),  # which part of the work it belongs to
    turn=LongType(),  # its place in the slot: providers take turns
    zone=StringType(),
    provider=StringType(),
    recipients=ArrayType(RECIPIENT),
)

LEFT_OUT = _struct(
    kind=StringType(),  # rejected, duplicate or suppressed
    address=StringType(),  # as the list has it
    reason=StringType(),
)

LEDGER = _struct(
    campaign=StringType(),
    key=StringType(),
    relay=StringType(),
    address=StringType(),
    state=StringType(),  # accepted, refused, or deferred: resume tries those again
    code=IntegerType(),
    reply=StringType(),
    messages=ArrayType(StringType()),  # the relay's ids; two when some recipients of a repeat were new
    repeated=BooleanType(),
    time_ms=LongType(),
)

LEDGER_RUNS = StructType([*LEDGER.fields, StructField("run", IntegerType())])  # all runs together

MESSAGE = _struct(octets=BinaryType())

MANIFEST = _struct(
    version=IntegerType(),
    campaign=StringType(),
    sender=StringType(),
    personal=BooleanType(),  # each recipient has a message of its own
    slots=IntegerType(),
    made_ms=LongType(),
    input=LongType(),  # rows of the list: the sum of the next four
    planned=LongType(),
    rejected=LongType(),
    duplicate=LongType(),
    suppressed=LongType(),
    envelopes=LongType(),
)
