"""The times in lists and tables of others, and the names of their columns."""

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    TimestampNTZType,
    TimestampType,
)

from zonemta_py.submit.recipients import BLANKS

EARLIEST_MS = 631_152_000_000  # 1990: an earlier time is an error, such as 0 for "never"
# A number from MS_FROM on is in milliseconds; a larger one is not a time.
MS_FROM, MS_END = 10**11, 10**14
NUMBER = r"\A[0-9]{9,14}(?:\.[0-9]+)?\z"
BASIC_DAY = r"\A[0-9]{8}\z"  # 20261101: as seconds it would be in 1970
ISO = (
    r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?(?: ?(?:Z|UTC|GMT|[+-][0-9]{2}:?[0-9]{2}))?)?\z"
)
MINUTE = r"([T ][0-9]{2}:[0-9]{2})(?=\z| ?[ZUG+-])"


def quoted(name: str) -> str:
    """The name of a column as Spark's expressions take it: a dot or a space in it has no meaning."""
    return f"`{name.replace('`', '``')}`"


def time_ms(column: str, kind: DataType) -> Column:
    """Unix milliseconds of a time, a date, an ISO 8601 text, or a number of seconds or milliseconds; else null."""
    found = F.col(quoted(column))
    if isinstance(kind, TimestampType | TimestampNTZType | DateType):
        ms = F.unix_millis(found.cast("timestamp"))
    else:
        if isinstance(kind, DoubleType | FloatType | DecimalType):
            found = found.try_cast("decimal(20,3)")  # a double as text has an exponent
        text = F.btrim(found.cast("string"), F.lit(BLANKS))
        number = F.when(text.rlike(NUMBER), text.cast("double"))
        basic = F.concat_ws(
            "-", F.substring(text, 1, 4), F.substring(text, 5, 2), F.substring(text, 7, 2)
        )
        whole = F.regexp_replace(text, MINUTE, "$1:00")  # Spark wants seconds before an offset
        iso = F.when(text.rlike(BASIC_DAY), basic).when(text.rlike(ISO), whole)
        ms = F.coalesce(
            F.when(number < MS_FROM, number * 1000).when(number < MS_END, number).cast("long"),
            F.unix_millis(F.try_to_timestamp(iso)),
        )
    return F.when(ms >= EARLIEST_MS, ms)
