"""Files of jobs, on paths and at URLs."""

from pathlib import Path
from tempfile import gettempdir
from typing import IO, TYPE_CHECKING, Any

import pytest

from zonemta_py.core.errors import LocalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

ROOTS = pytest.mark.parametrize("root", ["", "file://"])


@ROOTS
def test_a_file_is_replaced(spark: "SparkSession", tmp_path: Path, root: str) -> None:
    from zonemta_py.pipeline.spark.files import names_in, read_bytes, read_text, write_bytes, write_text

    directory = f"{root}{tmp_path}/a/b"
    for content in ("one\n", "", "é\n" * 700_000):
        write_text(spark, f"{directory}/t", content)
        assert read_text(spark, f"{directory}/t") == content
    write_bytes(spark, f"{directory}/t", b"\0\xff")
    assert read_bytes(spark, f"{directory}/t") == b"\0\xff"
    assert {each for each in names_in(spark, directory) or () if not each.endswith(".crc")} == {"t"}


@ROOTS
def test_a_file_that_cannot_be_made_whole_stays(
    spark: "SparkSession", tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines end with an error, or the job when a part is written: the file is as it was."""
    from zonemta_py.pipeline.spark import files

    path = f"{root}{tmp_path}/t"
    files.write_text(spark, path, "before")

    def lines() -> Any:
        yield "x" * 100_000
        raise OSError(28, "No space left on device")

    with pytest.raises(LocalError, match=rf"{gettempdir() if root else path}: No space left") as caught:
        files.write_lines(spark, path, lines())
    assert path in str(caught.value)
    assert {each.name for each in tmp_path.iterdir() if not each.name.endswith(".crc")} == {"t"}

    def killed(file: IO[bytes], stream: Any) -> None:
        stream.write(bytearray(file.read(10)))
        stream.close()
        raise KeyboardInterrupt

    if root:
        monkeypatch.setattr(files, "_copy", killed)
        with pytest.raises(KeyboardInterrupt):
            files.write_text(spark, path, "something longer")
    assert files.read_text(spark, path) == "before"
