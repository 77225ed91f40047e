"""The output of a job: a local directory, or one on any file system that Spark reaches (s3a://, hdfs://, file://).

Files are written and removed by Hadoop's FileSystem in the driver, with the credentials of the session. Over Spark Connect
the driver is elsewhere: only local directories can be looked at there.
"""

import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any
from uuid import uuid4

from pyspark.sql import SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.session import DeferredSession, spark_errors

BLOCK_BYTES = 1 << 20  # of one call to Java
RENAMING = (
    "file",
    "hdfs",
    "viewfs",
)  # schemes of file systems that show a part of a file while it is written
SUCCESS = "_SUCCESS"  # written by Spark, when all files of a table are there
PATTERN = frozenset("*?[]{}\\")  # characters that Hadoop takes for a pattern where it reads a path
TABLE = "table:"  # before the name of a table of a catalog of the session
HIDDEN = ("_", ".")  # names that Spark leaves out, too


def prepare_output(
    spark: SparkSession, output: str, parts: Collection[str], last: str, *, overwrite: bool
) -> None:
    """Remove what a run that did not end left in ``output``, and with ``overwrite`` what one that did.

    ``parts``: the names that the job writes there; ``last``: the file that is written last. Raises LocalError when the
    output is complete and not to be replaced, and when anything else is in the directory, unless its name begins with
    ``_`` or ``.``.
    """
    directory, _, name = last.rpartition("/")
    if is_url(output) and not directory and name != SUCCESS:
        # The last file is not written by Spark: better an error now than after the tables.
        _reachable(spark, output)
    found = names_in(spark, output) or set()
    others = sorted(name for name in found - set(parts) if not name.startswith(("_", ".")))
    if others:
        raise LocalError(
            f"{output}: contains {others[0]}, which is not of this job; choose another directory"
        )
    complete = name in (names_in(spark, f"{output}/{directory}" if directory else output) or ())
    if complete and not overwrite:
        raise LocalError(f"{output}: exists; choose another directory, or replace it with --overwrite")
    # What is written last goes first: a directory that is removed in part is not complete.
    for name in sorted(found & set(parts), key=lambda part: part != last.partition("/")[0]):
        remove(spark, f"{output}/{name}")


def names_in(spark: SparkSession, path: str) -> set[str] | None:
    """The names in a directory; None if there is none, or none that this process can look at."""
    if not is_url(path):
        directory = Path(path)
        return {each.name for each in directory.iterdir()} if directory.is_dir() else None
    found = _file_system(spark, path)
    if found is None:
        return None
    system, at = found
    with spark_errors(path):
        if not system.exists(at):
            return None
        return {str(status.getPath().getName()) for status in system.listStatus(at)}


def remove(spark: SparkSession, path: str) -> None:
    """Remove a file, or a directory and everything below it, if there is one. Raises LocalError."""
    if not is_url(path):
        try:
            shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink(missing_ok=True)
        except OSError as exc:
            raise LocalError(f"{path}: {exc.strerror}") from exc
        return
    system, at = _reachable(spark, path)
    with spark_errors(path):
        system.delete(at, True)


def read_text(spark: SparkSession, path: str) -> str | None:
    """The text of a file; None if there is none. Raises LocalError."""
    if not is_url(path):
        try:
            return Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise LocalError(f"{path}: {exc.strerror}") from exc
    system, at = _reachable(spark, path)
    with spark_errors(path):
        if not system.exists(at):
            return None
        rows = spark.read.text(path, wholetext=True).collect()
        return str(rows[0]["value"]) if rows else ""


def move(spark: SparkSession, source: str, target: str) -> None:
    """Give a file or directory another name on the same file system. Raises LocalError.

    An object store copies and then removes: what has the name is a copy, maybe of a part, that a killed run left.
    """
    if not is_url(source):
        try:
            Path(source).replace(target)
        except OSError as exc:
            raise LocalError(f"{source}: {exc.strerror}") from exc
        return
    system, at = _reachable(spark, source)
    to = _reachable(spark, target)[1]
    with spark_errors(source):
        system.delete(to, True)
        if not system.rename(at, to):
            raise LocalError(f"{source}: cannot be renamed to {target}")


def make_directory(spark: SparkSession, path: str) -> None:
    """Make a directory and its parents, unless it is there. Raises LocalError."""
    if not is_url(path):
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise LocalError(f"{path}: {exc.strerror}") from exc
        return
    system, at = _reachable(spark, path)
    with spark_errors(path):
        system.mkdirs(at)


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a file, or replace it. Raises LocalError."""
    write_lines(spark, path, [text])


def write_lines(spark: SparkSession, path: str, lines: Iterable[str]) -> None:
    """As ``write_text``, for a text that need not be in memory as a whole. Raises LocalError."""
    _write(spark, path, map(str.encode, lines))


def write_bytes(spark: SparkSession, path: str, content: bytes) -> None:
    """Write a file, or replace it. Raises LocalError."""
    _write(spark, path, [content])


def _write(spark: SparkSession, path: str, content: Iterable[bytes]) -> None:
    """Write a file, or replace it: whatever happens, it is there whole, or as it was. Raises LocalError."""
    if not is_url(path):
        file = Path(path)
        partial = file.with_name(f".{file.name}.{os.getpid()}.part")  # another run has its own
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as binary:
                binary.writelines(content)
            partial.replace(file)
        except OSError as exc:
            with suppress(OSError):
                partial.unlink()  # the disk may be full
            raise LocalError(f"{path}: {exc.strerror}") from exc
        return
    system, at = _reachable(spark, path)
    # A stream of an object store makes the object when it is closed, also after an error in ``content``.
    with TemporaryFile() as whole, spark_errors(path):
        try:
            whole.writelines(content)
            whole.seek(0)
        except OSError as exc:
            raise LocalError(f"{gettempdir()}: {exc.strerror}; {path} was not written") from exc
        if system.getScheme() not in RENAMING:
            _copy(whole, system.create(at, True))
            return
        gateway = spark.sparkContext._gateway
        assert spark._jvm is not None and gateway is not None  # see _reachable
        java = spark._jvm.org.apache.hadoop.fs
        partial = java.Path(at.getParent(), f".{at.getName()}.{uuid4().hex}.part")
        _copy(whole, system.create(partial, True))
        kind = getattr(java, "Options$Rename")
        overwrite = gateway.new_array(kind, 1)
        overwrite[0] = kind.OVERWRITE
        java.FileContext.getFileContext(system.getUri(), system.getConf()).rename(partial, at, overwrite)


def _copy(file: IO[bytes], stream: Any) -> None:
    """Write the rest of ``file`` to a stream of Java, and close that."""
    try:
        while some := file.read(BLOCK_BYTES):
            stream.write(bytearray(some))
    finally:
        stream.close()


def read_bytes(spark: SparkSession, path: str) -> bytes:
    """The content of a file. Raises LocalError."""
    if not is_url(path):
        try:
            return Path(path).read_bytes()
        except OSError as exc:
            raise LocalError(f"{path}: {exc.strerror}") from exc
    system, at = _reachable(spark, path)
    with spark_errors(path):
        stream = system.open(at)
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()


def open_in_java(spark: SparkSession, path: str) -> tuple[Any, Any] | None:
    """Java's packages, and an input stream of a file; None over Spark Connect. Raises LocalError."""
    found = _file_system(spark, path)
    if found is None:
        return None
    system, at = found
    with spark_errors(path):
        return spark._jvm, system.open(at)


def local_path(path: str) -> Path:
    """The absolute path that Hadoop makes of ``path``: ``..`` is removed, links stay."""
    return Path(os.path.normpath(Path(path).absolute()))


def as_read(path: str) -> str:
    """``path`` as Spark's readers take it: the name of a file or directory of this machine is no pattern."""
    local = path.removeprefix("file://") if path.startswith("file://") else path.removeprefix("file:")
    if PATTERN.isdisjoint(path):
        return path
    try:
        Path(local).stat()
    except OSError:  # or a pattern that is longer than a name may be
        return path
    return "".join(f"\\{each}" if each in PATTERN else each for each in path)


def is_url(path: str) -> bool:
    """True if ``path`` is on a file system of Spark, rather than of this process."""
    return "://" in path or path.startswith("file:")


def is_here(spark: SparkSession) -> bool:
    """True if the driver is this process, so that its paths are those of this machine: not over Spark Connect."""
    return isinstance(spark, DeferredSession) or hasattr(spark, "_jvm")


def _reachable(spark: SparkSession, path: str) -> tuple[Any, Any]:
    found = _file_system(spark, path)
    if found is None:
        raise LocalError(f"{path}: cannot be written over Spark Connect; use a local directory")
    return found


def _file_system(spark: SparkSession, path: str) -> tuple[Any, Any] | None:
    """Hadoop's FileSystem and Path of a URL; None over Spark Connect. Raises LocalError."""
    context = getattr(spark, "_jsc", None) if hasattr(spark, "_jvm") else None
    if context is None:
        return None
    assert spark._jvm is not None  # there is one with a context
    with spark_errors(path):
        at = spark._jvm.org.apache.hadoop.fs.Path(path)
        return at.getFileSystem(context.hadoopConfiguration()), at


def local_files(spark: SparkSession, path: str) -> dict[str, int] | None:
    """The length of each file below ``path``, by its path as Spark writes it; None when that is not a directory of this machine.
    Raises LocalError for one that cannot be read: its events must not be missing without a word.

    Over Spark Connect the directory is one of the server.
    """
    if is_url(path) or not is_here(spark) or not Path(path).is_dir():
        return None
    return dict(_files_below(str(local_path(path)), set()))


def _files_below(directory: str, seen: set[str]) -> Iterator[tuple[str, int]]:
    """Those of links to directories, too: old days may be on another disk. ``seen``: where these have led, because one may lead back."""
    real = os.path.realpath(directory)
    if real in seen:
        return
    seen.add(real)
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                is_lost = entry.is_symlink() and not Path(entry.path).exists()
                if is_lost or entry.name.startswith(HIDDEN):
                    continue
                if entry.is_dir():
                    yield from _files_below(entry.path, seen)
                    continue
                with suppress(FileNotFoundError):  # the relay has removed it meanwhile
                    yield f"file:{entry.path}", entry.stat().st_size
    except FileNotFoundError:
        return  # so may the directory be
    except OSError as exc:
        raise LocalError(f"{directory}: {exc.strerror}") from exc


def local_size_bytes(spark: SparkSession, path: str) -> int | None:
    """The size of a file, or of the files below a directory; None when it is not on this machine."""
    if not is_url(path) and is_here(spark) and Path(path).is_file():
        return Path(path).stat().st_size
    files = local_files(spark, path)
    return None if files is None else sum(files.values())


# ---- Files compressed by zstd that end within a frame.

SUFFIX = ".zst"
READ_BYTES, DECOMPRESSED_BYTES = 1 << 20, 1 << 22  # at once


def check_zstd_files(spark: SparkSession, source: str) -> None:
    """Examine a file, or every such file below a directory. Raises LocalError, which names the one that is cut or damaged."""
    for path in _zstd_files(spark, source):
        found = open_in_java(spark, path)
        if found is None:
            return
        java, stream = found
        with spark_errors(path):
            try:
                is_whole = _is_whole(java, stream)
            finally:
                stream.close()
        if not is_whole:
            raise LocalError(f"{path}: the file ends within a frame of zstd: a part of it is missing")


def _zstd_files(spark: SparkSession, source: str) -> list[str]:
    if source.lower().endswith(SUFFIX):  # Hadoop knows the suffix in any case
        return [source]
    names = names_in(spark, source) or set()
    if not any(name.lower().endswith(SUFFIX) or "=" in name for name in names):
        return []
    listed = spark.read.format("binaryFile").options(
        pathGlobFilter="*.[zZ][sS][tT]", recursiveFileLookup="true"
    )
    with spark_errors(source):
        return sorted(row["path"] for row in listed.load(as_read(source)).select("path").collect())


def _is_whole(java: Any, stream: Any) -> bool:
    """True if an input stream of Java ends with the end of a frame; also when it is empty."""
    channel = java.java.nio.channels.Channels.newChannel(stream)
    compressed = java.java.nio.ByteBuffer.allocateDirect(READ_BYTES)
    decompressed = java.java.nio.ByteBuffer.allocateDirect(DECOMPRESSED_BYTES)
    context = java.com.github.luben.zstd.ZstdDecompressCtx()
    has_ended = True
    try:
        while channel.read(compressed) >= 0:
            compressed.flip()
            while compressed.hasRemaining() or not (has_ended or decompressed.hasRemaining()):
                decompressed.clear()
                has_ended = context.decompressDirectByteBufferStream(decompressed, compressed)
            compressed.clear()
    finally:
        context.close()
    return bool(has_ended)
