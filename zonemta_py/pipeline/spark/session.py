"""The Spark session of a job, quiet and in UTC, and the Java that runs it: JAVA_HOME, else the one in PATH."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.exceptions import error_line
from zonemta_py.pipeline.spark.source import ZonemtaSource

CONF_DIR = Path(__file__).parent / "conf"  # log4j2.properties
JAVA_MIN = 17
REMEDY = f"Spark needs Java {JAVA_MIN} or newer (Debian: apt-get install openjdk-17-jre-headless)"

DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # Above this number of groups a quantile sorts; the default is 128.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
    # A speculative task would submit everything twice; submission keys make that harmless, not free.
    "spark.speculation": "false",
    # The state of streams is on disk: five million identities took three gigabytes of heap.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # The output of a task is committed when the task is done, not when the job is.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
}

LOCAL = {
    # The default of 200 is for a cluster: on one machine its overhead is a quarter of a plan's time.
    "spark.sql.shuffle.partitions": "32",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}


def open_session(master: str, heap: str = "2g", **settings: str) -> SparkSession:
    """A session on ``master`` (``local[*]``, ``spark://…``); ``heap``: memory of the driver's Java.

    Raises LocalError when there is no suitable Java or Spark does not start.
    """
    java = find_java()
    os.environ.setdefault("JAVA_HOME", str(java.resolve().parents[1]))
    os.environ.setdefault("SPARK_CONF_DIR", str(CONF_DIR))
    defaults = DEFAULTS
    if master.startswith("local"):
        defaults = {**DEFAULTS, **LOCAL}
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Workers must run this interpreter, not the first one in PATH.
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("zonemta")
    for name, value in {**defaults, "spark.driver.memory": heap, **settings}.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
        spark.dataSource.register(ZonemtaSource)
        return spark
    except Exception as exc:  # the gateway raises exceptions of many kinds
        raise LocalError(f"Spark does not start on {master}: {error_line(str(exc))}") from exc


def find_java() -> Path:
    """The java command to use. Raises LocalError with what to install."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).is_file():
        raise LocalError(f"no Java found{f' in JAVA_HOME {home}' if home else ''}: {REMEDY}")
    version = java_version(Path(found))
    if version < JAVA_MIN:
        raise LocalError(f"{found} is Java {version}: {REMEDY}")
    return Path(found)


def java_version(java: Path) -> int:
    """The major version of a java command. Raises LocalError when it does not print one."""
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    if match is None:
        raise LocalError(f"{java} does not print its version: {REMEDY}")
    return int(match[1])
