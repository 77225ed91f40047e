"""The Spark session of a job, quiet and in UTC, and the Java that runs it: JAVA_HOME, else the one in PATH."""

import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pyspark
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.class_archive import archive_options, directory
from zonemta_py.pipeline.spark.exceptions import error_line

LOG_SETTINGS = Path(__file__).parent / "conf" / "log4j2.properties"
LOG_PROPERTY = "log4j2.configurationFile"
# They write each error of an expression to standard error, as JSON with Java's stack; the job says it in a line.
CONTEXT_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
JAVA_MIN = 17
REMEDY = f"Spark needs Java {JAVA_MIN} or newer (Debian: apt-get install openjdk-17-jre-headless)"

CONNECT, CONNECT_PORT = "sc://", 15002
REACH_S = 10.0  # to open a TCP connection to a server
_REFUSED = re.compile(r"Failed to set (\S+) to ")  # a warning of pyspark

TIME_ZONE = {"spark.sql.session.timeZone": "UTC"}  # of every session: sums are by UTC hours and days

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
GARBAGE = "-XX:+IgnoreUnrecognizedVMOptions -XX:+UseParallelGC"
# Code is optimised after four times as many calls: in jobs of a minute much of it is not worth that.
LATE = (
    "-XX:Tier4InvocationThreshold=20000 -XX:Tier4MinInvocationThreshold=2400"
    " -XX:Tier4CompileThreshold=60000 -XX:Tier4BackEdgeThreshold=160000"
)
NEVER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
# Directories of the class path, which Java cannot archive.
CLASS_DIRECTORIES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")

DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # Above this number of groups a quantile sorts; the default is 128.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
    # Tables that are distributed by a digest alone are joined by it and the text without being distributed anew.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    # A stored table has as many partitions as its size needs: a short list is packed as a whole.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
    # A speculative task would submit everything twice; submission keys make that harmless, not free.
    "spark.speculation": "false",
    # The output of a task is committed when the task is done, not when the job is.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
}

LOCAL = {
    # The default of 200 is for a cluster: on one machine its overhead is a quarter of a plan's time.
    "spark.sql.shuffle.partitions": "32",
    JAVA_OPTIONS: GARBAGE,
    # What is shuffled goes to the page cache, and from there to the same process.
    "spark.shuffle.compress": "false",
    # A file of this machine is open at once: a log has a segment for each minute, and a task is for many.
    "spark.sql.files.openCostInBytes": "262144",
}


def open_session(
    master: str | None = None, heap: str | None = None, *, light: bool = False, **settings: str
) -> SparkSession:
    """A session on ``master`` (``local[*]``, ``spark://…``, ``sc://…``); ``heap``: memory of the driver's Java.

    ``light``: Java has little to do, because the list is short or tasks work in Python: then its code is not worth optimising.

    What is not given is that of spark-defaults.conf, else of DEFAULTS. Raises LocalError when there is no suitable Java or
    Spark does not start.
    """
    given = {"spark.master": master, "spark.driver.memory": heap, **settings}
    of_user = _user_defaults()
    chosen = session_settings({name: value for name, value in given.items() if value}, of_user)
    master = chosen["spark.master"]
    if is_connect(master):
        return _connect(master, {**settings, **TIME_ZONE})
    java = find_java()
    os.environ.setdefault("JAVA_HOME", str(java.resolve().parents[1]))
    _set_log_settings()
    logging.getLogger("py4j").setLevel(
        logging.CRITICAL
    )  # a Java that has ended is an error of ours, in one line
    for name in CONTEXT_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    builder = SparkSession.builder.appName("zonemta").master(master)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Workers must run this interpreter, not the first one in PATH.
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        # Arrow's other allocators give memory back and take it again: a third of a report's time.
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        if JAVA_OPTIONS not in {**of_user, **settings}:
            parts = (GARBAGE, NEVER if light else LATE, _archive_options(java, chosen))
            chosen[JAVA_OPTIONS] = " ".join(parts)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except Exception as exc:  # the gateway raises exceptions of many kinds
        raise LocalError(f"Spark does not start on {master}: {error_line(str(exc))}") from exc


def is_connect(master: str | None) -> bool:
    """Whether a session on ``master``, or without one on that of spark-defaults.conf, is a client of Spark Connect."""
    return (master or _user_defaults().get("spark.master", "")).startswith(CONNECT)


def is_local(spark: SparkSession) -> bool:
    """Whether tasks run in the driver's process, on its machine."""
    return str(spark.conf.get("spark.master")).partition("[")[0] == "local"


def _connect(master: str, settings: Mapping[str, str]) -> SparkSession:
    """A client of a Spark Connect server. Raises LocalError, also for a setting that only the server has."""
    _reach_server(master)
    builder = SparkSession.builder.remote(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            spark = builder.getOrCreate()
    except Exception as exc:  # those of gRPC, too
        raise LocalError(f"{master}: no Spark Connect session: {error_line(str(exc))}") from exc
    for each in caught:
        refused = _REFUSED.search(str(each.message))
        if refused:
            spark.stop()
            raise LocalError(f"{master}: {refused[1]} can be set only where the server is started")
    return spark


def _reach_server(master: str) -> None:
    """Raises LocalError where nothing listens: the client would try for ten minutes, without a word."""
    if any(os.environ.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")):
        return  # gRPC uses them, and a name may be known to the proxy only
    try:
        where = urlsplit(master)
        socket.create_connection((where.hostname, where.port or CONNECT_PORT), REACH_S).close()
    except (OSError, ValueError) as exc:
        raise LocalError(f"{master}: no Spark Connect server: {exc}") from exc


def session_settings(given: Mapping[str, str], of_user: Mapping[str, str]) -> dict[str, str]:
    """The settings of a session: those that are given, else those of spark-defaults.conf, else DEFAULTS."""
    found = {**DEFAULTS, **of_user, **given}
    if found["spark.master"].startswith("local"):
        found = {**LOCAL, **found}
    return {**found, **TIME_ZONE}


def _archive_options(java: Path, settings: Mapping[str, str]) -> str:
    """Options for the archive of classes; empty where it cannot be used."""
    within = directory()
    conf = _conf_dir()
    has_directories = any(os.environ.get(name) for name in CLASS_DIRECTORIES)
    has_classes = "spark.driver.extraClassPath" in settings
    if within is None or has_directories or has_classes or (conf.is_dir() and any(conf.iterdir())):
        return ""
    spark = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    binary, jars = java.resolve(), spark / "jars"
    dates = (str(each.stat().st_mtime_ns) for each in (binary, jars) if each.exists())
    return archive_options(within, str(binary), str(jars), pyspark.__version__, *dates)


def _user_defaults() -> dict[str, str]:
    """The settings of spark-defaults.conf: Spark's own reader would let those of the builder win."""
    path = _conf_dir() / "spark-defaults.conf"
    if not path.is_file():
        return {}
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    parts = (
        re.split(r"\s*[=:]\s*|\s+", line, maxsplit=1) for line in lines if line and line[0] not in "#!"
    )
    return {pair[0]: pair[1] for pair in parts if len(pair) == 2}


def _conf_dir() -> Path:
    """Where Spark looks for its files of configuration."""
    directory = os.environ.get("SPARK_CONF_DIR")
    if directory:
        return Path(directory)
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "conf"


def _set_log_settings() -> None:
    """Errors only, on standard error, unless there is a log4j2.properties of the user."""
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if LOG_PROPERTY not in options and not (_conf_dir() / LOG_SETTINGS.name).is_file():
        os.environ["SPARK_SUBMIT_OPTS"] = f"{options} -D{LOG_PROPERTY}={LOG_SETTINGS}".strip()


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
