"""Exceptions of Spark as one line."""

import pytest


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[X] first\nsecond", "first"),
        ("\n  \n[X_Y.Z] first. SQLSTATE: 42704", "first."),
        ("[PATH_NOT_FOUND] Path does not exist: file:/a/b.c d. SQLSTATE: 42K03", "/a/b.c d does not exist"),
        ("[PATH_NOT_FOUND] Path does not exist: s3a://a/b*. SQLSTATE: 42K03\nx", "s3a://a/b* does not exist"),
        ("", ""),
        ("Job aborted\n\tat x\nCaused by: java.io.IOException: disk full\n\tat y", "disk full"),
        ("An error occurred while calling o57.rename.\n: org.apache.hadoop.fs.FileAlreadyExistsException: Failed to rename x\n\tat y", "Failed to rename x"),
        ("An error occurred while calling o57.parquet.\n: java.io.IOException: x\nCaused by: java.net.SocketException: reset", "reset"),
        ("\n  An exception was thrown:\nTraceback\n  File x\nModuleNotFoundError: No module named 'pyarrow'\n", "ModuleNotFoundError: No module named 'pyarrow'"),
    ],
)  # fmt: skip
def test_the_most_specific_line(text: str, line: str) -> None:
    from zonemta_py.pipeline.spark.session import error_line

    assert error_line(text) == line
