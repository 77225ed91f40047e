"""A table of a catalog of the session, to which each run of a job appends its rows once.

The column ``run`` names the run: the next run can thus see whether the rows of one that was killed are there. Iceberg and Delta commit
all rows of a run or none; Spark's own Parquet tables show the files of the tasks that had ended.
"""

from contextlib import suppress

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.events import event_schema, with_columns_of
from zonemta_py.pipeline.spark.exceptions import spark_errors

RUN = "run"


def run_table_schema() -> StructType:
    """The columns of a table of events: those of ``event_schema``, and ``run``."""
    return StructType([*event_schema().fields, StructField(RUN, StringType())])


def prepare_table(spark: SparkSession, table: str) -> None:
    """Create ``table``, by ``date``, unless it exists. Raises LocalError for one that lacks a column, or has it with another type.

    Without ``USING`` the catalog chooses the format; Spark's own takes that of spark.sql.sources.default.
    """
    columns = ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in run_table_schema())
    with spark_errors(f"table {table}"):
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) PARTITIONED BY (date)")
        spark.catalog.refreshTable(table)  # a job that failed may have written files
        present = {each.name: each.dataType.simpleString() for each in spark.table(table).schema}
    for each in run_table_schema():
        kind = each.dataType.simpleString()
        if each.name not in present:
            raise LocalError(
                f"table {table}: has no column {each.name}; if it is a table of events, add it: "
                f"ALTER TABLE {table} ADD COLUMNS (`{each.name}` {kind})"
            )
        if present[each.name] != kind:
            raise LocalError(
                f"table {table}: the column {each.name} is {present[each.name]}, expected {kind}"
            )


def append_once(
    spark: SparkSession, table: str, run: str, rows: DataFrame, *, count: int, is_first_try: bool
) -> None:
    """Append the ``count`` ``rows`` of ``run`` to a table that is prepared, in one commit, unless they are there.

    Columns of the table that are not in ``run_table_schema`` are null. Raises LocalError when some of the rows are there.
    """
    with spark_errors(f"table {table}"):
        found = 0 if is_first_try else _rows_of(spark, table, run)
        if found == count:
            return
        if found:
            raise LocalError(
                f"table {table}: has {found:,} rows of the run {run}, which are {count:,}: the commit was interrupted, and the table "
                f"shows a part of it; delete the rows with {RUN} = '{run}', then run this again"
            )
        tagged = rows.withColumn(RUN, F.lit(run))
        # By position: to append by name Spark would need the format of a table of its own.
        with_columns_of(tagged, spark.table(table).schema).write.insertInto(table)


def _rows_of(spark: SparkSession, table: str, run: str) -> int:
    # A kill after the files of a new partition, and before the Hive metastore knew it: the next append would show them.
    with suppress(AnalysisException):  # tables without partitions, and all others than Spark's own
        spark.sql(f"MSCK REPAIR TABLE {table}")
    return spark.table(table).where(F.col(RUN) == run).count()
