"""The address column of a list, and quotes in files that Spark opens."""

import bz2
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard

from zonemta_py.core.errors import LocalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

lists = pytest.importorskip("zonemta_py.pipeline.spark.lists")
lists_cells = pytest.importorskip("zonemta_py.pipeline.spark.cells")


@pytest.mark.parametrize(
    ("columns", "wanted", "found"),
    [
        (["name", "email"], None, "email"),
        (["address", "name"], None, "address"),
        (["e", "email"], "e", "e"),
    ],
)
def test_address_column(columns: list[str], wanted: str | None, found: str) -> None:
    assert lists.address_column(columns, wanted, "l.csv") == found


@pytest.mark.parametrize(
    ("columns", "wanted", "problem"),
    [
        ([], None, "l.csv: the list is empty"),
        (["mail"], None, "no column email or address or recipient; columns: mail"),
        (["email"], "mail", "no column mail; columns: email"),
    ],
)
def test_no_address_column(columns: list[str], wanted: str | None, problem: str) -> None:
    with pytest.raises(LocalError, match=problem):
        lists.address_column(columns, wanted, "l.csv")


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "csv.gz": gzip.compress,
    "csv.bz2": bz2.compress,
    "csv.zst": zstandard.ZstdCompressor().compress,
    "tsv.gz": gzip.compress,
    "CSV.GZ": gzip.compress,
}
GOOD = 'email,name\na@x.example,"A, a"\nb@x.example,B\n'
SPANS = 'email,name\na@x.example,"A\na"\nb@x.example,B\n'
UNCLOSED = 'email,name\na@x.example,"A"\nb@x.example,"B\nc@x.example,C\n'


def rows_of(spark: "SparkSession", source: Path) -> list[tuple[str, str]]:
    rows = lists.read_list(spark, str(source), {}).select("email", "name").collect()
    return sorted(map(tuple, rows))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_quote_that_is_not_closed(spark: "SparkSession", tmp_path: Path, suffix: str) -> None:
    """The error names file and line; rows behind the quote would be its cell otherwise."""
    path = tmp_path / f"list.{suffix}"
    separator = "\t" if suffix.startswith("tsv") else ","
    for text, name in ((GOOD, "A, a"), (SPANS, "A\na")):
        swapped = text.replace(", ", "; ").replace(",", separator).replace("; ", ", ")
        path.write_bytes(COMPRESS[suffix](swapped.encode()))
        assert rows_of(spark, path) == [("a@x.example", name), ("b@x.example", "B")]
    path.write_bytes(COMPRESS[suffix](UNCLOSED.replace(",", separator).encode()))
    with pytest.raises(LocalError, match=rf"/list\.{suffix}: line 3: a quote is not closed$"):
        rows_of(spark, path)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_directory_with_quotes(spark: "SparkSession", tmp_path: Path, scheme: str) -> None:
    """Every file is examined as a whole, also a larger one than a task usually reads; each with such a quote is named."""
    directory = tmp_path / "my lists"
    directory.mkdir()
    (directory / "1.csv").write_text(GOOD)
    (directory / "2.csv.gz").write_bytes(gzip.compress(SPANS.encode()))
    many = "".join(f'{n}@x.example,"N {n}"\n' for n in range(50_000))
    (directory / "3.csv").write_text(f"email,name\n{many}")
    source = f"{scheme}{directory}"
    splits = {name: spark.conf.get(name) for name in lists_cells.SPLITS}
    spark.conf.set("spark.sql.files.maxPartitionBytes", "100000")
    try:
        assert lists.read_list(spark, source, {}).count() == 50_004
        (directory / "3.csv").write_text(f'email,name\n{many}c@x.example,"C\nd@x.example,D\n')
        (directory / "4.csv").write_text(UNCLOSED)
        with pytest.raises(LocalError) as raised:
            lists.read_list(spark, source, {})
        assert spark.conf.get("spark.sql.files.maxPartitionBytes") == "100000"
    finally:
        for name, value in splits.items():
            spark.conf.set(name, str(value))
    assert str(raised.value) == (
        f"{directory}/3.csv: line 50002: a quote is not closed; {directory}/4.csv: line 3: a quote is not closed"
    )


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_the_files_of_a_directory_are_read_by_name(
    spark: "SparkSession", tmp_path: Path, scheme: str
) -> None:
    """Columns may be in another order; a file that lacks one of them has no value there, and is not read by place."""
    directory = tmp_path / "lists"
    directory.mkdir()
    (directory / "1.csv").write_text("email,name,town\na@x.example,A,Ulm\n")
    (directory / "2.csv").write_text("town,email,name\nBonn,b@x.example,B\n")
    (directory / "3.csv").write_text("name,email\nC,c@x.example\n")
    rows = lists.read_list(spark, f"{scheme}{directory}", {}).select("email", "name", "town").collect()
    assert sorted((row.email, row.name, row.town or "") for row in rows) == [
        ("a@x.example", "A", "Ulm"), ("b@x.example", "B", "Bonn"), ("c@x.example", "C", ""),
    ]  # fmt: skip


def test_a_list_is_split_unless_quotes_hold_line_ends(spark: "SparkSession", tmp_path: Path) -> None:
    path, size = tmp_path / "list.csv", spark.conf.get("spark.sql.files.maxPartitionBytes")
    many = "".join(f'{n}@x.example,"N {n}"\n' for n in range(50_000))
    parts = {}
    spark.conf.set("spark.sql.files.maxPartitionBytes", "100000")
    try:
        for name, text in (("lines", f"email,name\n{many}"), ("spans", SPANS + many)):
            path.write_text(text)
            rows = lists.read_list(spark, str(path), {})
            parts[name] = rows.rdd.getNumPartitions()
            assert rows.count() == 50_000 + 2 * (name == "spans")
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", str(size))
    assert parts["lines"] > 5
    assert parts["spans"] == 1


def test_a_compressed_file_that_is_cut(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "list.csv.gz"
    path.write_bytes(gzip.compress(GOOD.encode())[:-12])
    with pytest.raises(LocalError, match=r"list\.csv\.gz"):
        rows_of(spark, path)
