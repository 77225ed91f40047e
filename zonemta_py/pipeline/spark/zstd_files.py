"""Whether files compressed by zstd end where a frame ends.

Spark's reader does not notice an end within any frame but the first: it takes what it has for the whole file. So such files are
decompressed once more before they are read. This is done in the driver, by the library and the file systems of Spark; over Spark
Connect there is neither, and nothing is examined.
"""

from typing import Any

from pyspark.sql import SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.exceptions import spark_errors
from zonemta_py.pipeline.spark.storage import as_read, names_in, open_in_java

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
    """Whether an input stream of Java ends with the end of a frame; also when it is empty."""
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
