"""The Spark session of a job, quiet and in UTC, and the Java that runs it: JAVA_HOME, else the one in PATH.

A local session uses an archive of Java's classes (CDS, JEP 350), which saves the loading and checking of some 20,000 of them:

    ~/.cache/zonemta/spark/DIGEST.jsa     written by Java when a session ends
    ~/.cache/zonemta/spark/DIGEST.seen    a byte for each session without it

The archive is made by the second session of a machine: in a container that is new for each run it would cost more than it saves. Java
uses none that does not fit, and ends as always where it cannot write one, but says so on standard error: the fourth session was the last to try.

A *deferred* session starts when it is needed: a report of a few segments is made faster without one.

Ctrl-C ends a job with one line, at once, as if it were killed: the same command, run again, completes the work. Spark's own handler
calls into Java in the middle of another call to it; both fail, and Java and Python print their stacks. A job that runs at an interval
finishes its current run (``repeat_until_interrupted``).
"""

import contextlib
import hashlib
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyspark
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from zonemta_py.core import clock
from zonemta_py.core.clock import now_ms
from zonemta_py.core.errors import LocalError
from zonemta_py.core.files import private_directory

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


def silence_loggers() -> None:
    """A Java that has ended is an error of ours, in one line: nothing of it is logged by others."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_gateway)  # which it uses for one of its messages
    for name in CONTEXT_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True


def _is_not_of_gateway(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


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
    silence_loggers()
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
    """True if a session on ``master``, or without one on that of spark-defaults.conf, is a client of Spark Connect."""
    return (master or _user_defaults().get("spark.master", "")).startswith(CONNECT)


def is_local(spark: SparkSession) -> bool:
    """True if tasks run in the driver's process, on its machine."""
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
    """The directory in which Spark looks for its files of configuration."""
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


class DeferredSession:
    """Stands for the session that ``opened`` returns, which is called when something of it is used. Not for Spark Connect."""

    def __init__(self, opened: Callable[[], SparkSession]) -> None:
        self._opened = opened
        self._session: SparkSession | None = None

    @property
    def is_open(self) -> bool:
        """True if the session has started."""
        return self._session is not None

    def __getattr__(self, name: str) -> Any:
        if self._session is None:
            with same_handler():
                self._session = self._opened()
        return getattr(self._session, name)

    def stop(self) -> None:
        """Stop the session, if it has started."""
        if self._session is not None:
            self._session.stop()


def is_deferred(spark: SparkSession) -> bool:
    """True if the session has not started yet."""
    return isinstance(spark, DeferredSession) and not spark.is_open


# ---- Spark's exceptions as one line that names the file or table and the last cause.

_READ = re.compile(r"Encountered error while reading file (?:file:/*(?=/))?(\S+?)\. ")
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_THROWN = re.compile(r"^: (?:[\w.$]+: )?(.+)$", re.MULTILINE)  # by a method that Py4J called
_HEADER = re.compile(
    r"CSV header does not conform to the schema\.\s+Header: (.+)\s+Schema: (.+)"
    r"|Number of column in CSV header .*\s+Header length: (\d+), schema size: (\d+)"
)
_CSV_FILE = re.compile(r"CSV file: (?:file:/*(?=/))?(\S+)")
_OWN = re.compile(r"^\s*zonemta_py\.core\.errors\.LocalError: (.+)$", re.MULTILINE)  # by a task of ours
_CONDITION = re.compile(r"^\[[A-Z_.0-9]+\] |;? SQLSTATE: \w{5}\b.*$")  # Spark's names of an error
_NO_PATH = re.compile(r"Path does not exist: (?:file:/*(?=/))?(.+?)\.(?: SQLSTATE|$)")
_RAISED = re.compile(r"^\s*([\w.]*(?:Error|Exception): .+)$", re.MULTILINE)  # by a Python worker


@contextmanager
def spark_errors(context: str) -> Iterator[None]:
    """Raise LocalError for any exception of Spark: that of a task, or one whose text begins with ``context``."""
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as exc:
        raise LocalError(
            f"{context}: Java has ended; if it had too little memory (see above), give it more with --heap"
        ) from exc
    except (PySparkException, Py4JError) as exc:
        if own := _OWN.search(str(exc)):
            raise LocalError(own[1]) from exc
        raise LocalError(f"{context}: {error_line(str(exc))}") from exc


def analysed(rows: DataFrame) -> DataFrame:
    """``rows``, analysed now: over Spark Connect a missing path would be found only where they are used.

    Raises pyspark's AnalysisException.
    """
    assert rows.schema is not None  # asks for it
    return rows


def error_line(text: str) -> str:
    """The most specific line of a Java stack trace; for a CSV file with other columns, which ones."""
    file, header = _READ.search(text), _HEADER.search(text)
    if header is not None:
        named = _CSV_FILE.search(text)
        name = file[1] if file else named[1] if named else "a CSV file"
        own, others = (each.strip() for each in header.groups() if each is not None)
        own = f"{own} columns" if header[3] else f"the columns {own}"
        return (
            f"{name} has {own}, other files have {others}: "
            "give all files the same columns in the same order"
        )
    if missing := _NO_PATH.search(text):
        return f"{missing[1]} does not exist"
    causes = _CAUSE.findall(text) or _THROWN.findall(text) or _RAISED.findall(text)
    cause = causes[-1] if causes else next((line for line in text.splitlines() if line.strip()), "")
    cause = _CONDITION.sub("", cause)
    return f"{file[1]} cannot be read: {cause}" if file else cause


# ---- SIGINT.

INTERRUPTED = 130  # the exit code of a process that SIGINT ended, as shells have it
ANSWER_S = 2.0  # for Java to answer
MESSAGE = b"interrupted: start it again to complete the work\n"
SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT ends the process meanwhile. The handler of ``repeat_until_interrupted`` comes before it."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as nohup sets it
        yield
        return
    before = signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def same_handler() -> Iterator[None]:
    """Keep the handler of SIGINT, which a session that starts would replace."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        is_own = before is not signal.default_int_handler
        if is_own and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _end(*_: object) -> None:
    # In a thread of its own: this one may be in a call to Java.
    silencing = threading.Thread(target=_silence_java, daemon=True)
    silencing.start()
    silencing.join(ANSWER_S)
    with suppress(OSError):
        os.write(2, (SHOW_CURSOR if os.isatty(2) else b"") + MESSAGE)
    os._exit(INTERRUPTED)


def _silence_java() -> None:
    """Stop Java's log: its tasks fail when this process ends."""
    context = SparkContext._active_spark_context
    if context is not None:
        with suppress(Exception):
            context.setLogLevel("OFF")


def repeat_until_interrupted(run: Callable[[], None], every_s: float | None) -> None:
    """Call ``run`` once; with ``every_s`` at this interval, until SIGINT, and then finish the current call."""
    with _interrupted() as interrupted:
        while True:
            began_s = clock.monotonic_s()
            try:
                run()
            except KeyboardInterrupt:
                return
            if every_s is None or interrupted.wait(max(0.0, began_s + every_s - clock.monotonic_s())):
                return


@contextlib.contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """An event that SIGINT sets; a second SIGINT raises KeyboardInterrupt.

    Spark's own handler calls into Java in the middle of another call to it, and both fail.
    """
    interrupted = threading.Event()

    def on_signal(*_: object) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


# ---- The archive of Java's classes.

SUFFIX, SEEN = ".jsa", ".seen"
HEADER_BYTES = 4  # written last; zero until then
TRIES = range(1, 4)  # sessions before this one
WRITING_MS = 600_000  # a file without a header that is older was left by a process that was killed
UNUSED_MS = 30 * 86_400_000  # after which an archive, of another Java or Spark, is removed
# Java says on standard output why it leaves a class out.
QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def directory() -> Path | None:
    """The directory of the archives; None without a home directory."""
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "zonemta" / "spark"
    except RuntimeError:
        return None


def archive_options(within: Path, *parts: str) -> str:
    """Options of Java that use or make the archive in ``within`` for ``parts``, all that it depends on; empty for neither.

    Never raises: a session without an archive starts later, that is all.
    """
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    archive = within / f"{digest}{SUFFIX}"
    try:
        # A path with a space would be two options; an archive of another user could contain any code.
        if any(character.isspace() for character in str(archive)) or not _is_private(within):
            return ""
        if _is_usable(archive):
            os.utime(archive)
            return f"-XX:SharedArchiveFile={archive} {QUIET}"
        if archive.exists() and now_ms() - archive.stat().st_mtime_ns // 1_000_000 < WRITING_MS:
            return ""
        with (within / f"{digest}{SEEN}").open("ab") as seen:
            sessions = seen.tell()
            seen.write(b".")
        if sessions not in TRIES:
            return ""
        _remove_unused(within)
    except OSError:
        return ""
    return f"-XX:ArchiveClassesAtExit={archive} {QUIET}"


def _is_private(within: Path) -> bool:
    private_directory(within)
    return within.stat().st_uid == os.geteuid()


def _is_usable(archive: Path) -> bool:
    if not archive.is_file():
        return False
    with archive.open("rb") as file:
        return any(file.read(HEADER_BYTES))


def _remove_unused(within: Path) -> None:
    for each in within.glob(f"*{SUFFIX}"):
        if now_ms() - each.stat().st_mtime_ns // 1_000_000 > UNUSED_MS:
            each.unlink(missing_ok=True)
            each.with_suffix(SEEN).unlink(missing_ok=True)
