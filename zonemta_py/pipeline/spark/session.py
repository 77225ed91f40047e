"""The Spark session of a job: on this machine unless told otherwise, quiet, in UTC."""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.errors import line_of
from zonemta_py.pipeline.spark.java import find_java
from zonemta_py.pipeline.spark.source import ZonemtaSource

DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # The default of 128 groups makes every quantile over more of them sort.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
    # Sending twice is what submission keys are for, but not a plan.
    "spark.speculation": "false",
    # What streams remember is on disk: five million identities in the heap were three gigabytes.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # What a task has written counts when the task is done, not when the job is.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
}

LOCAL = {
    # 200 parts, the default, are for a cluster: on one machine their overhead is a quarter of a plan.
    "spark.sql.shuffle.partitions": "32",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}


def open_session(master: str, heap: str = "2g", **settings: str) -> SparkSession:
    """A session on ``master`` (``local[*]``, ``spark://…``). Raises LocalError without Java."""
    java = find_java()
    os.environ.setdefault("JAVA_HOME", str(java.resolve().parents[1]))
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "conf"))
    defaults = DEFAULTS
    if master.startswith("local"):
        defaults = {**DEFAULTS, **LOCAL}
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Workers must run this interpreter, and not the first one in PATH.
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("zonemta")
    for name, value in {**defaults, "spark.driver.memory": heap, **settings}.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
        spark.dataSource.register(ZonemtaSource)
        return spark
    except Exception as exc:  # whatever the gateway raises
        raise LocalError(f"Spark does not start on {master}: {line_of(str(exc))}") from exc
