"""The address column of a list, and quotes in files that Spark opens."""

import bz2
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard

from tests.pipeline.campaigns import write_list
from zonemta_py.core.errors import ConfigError, LocalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

lists = pytest.importorskip("zonemta_py.pipeline.plan.list")
spark_errors = pytest.importorskip("zonemta_py.pipeline.spark.session").spark_errors
lists_cells = pytest.importorskip("zonemta_py.pipeline.plan.csv")


@pytest.mark.parametrize(
    ("columns", "wanted", "found"),
    [
        (["name", "email"], None, "email"),
        (["address", "name"], None, "address"),
        (["e", "email"], "e", "e"),
        (["Email", "name"], None, "Email"),
        (["EMAIL", "email"], None, "email"),
        (["Address", "\ufeffE-Mail", " Recipient"], None, "Address"),
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
        (["name", "email1", "email2"], None, "the column email twice"),
        (["mail0", "name", "mail2"], "mail", "the column mail twice"),
        (["email1", "email2"], None, "no column email or"),
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
@pytest.mark.parametrize(
    "other", ["town,email,name\nBonn,b@x.example,B\n", "name,email\nC,c@x.example\n"]
)
def test_files_of_a_directory_with_other_columns(
    spark: "SparkSession", tmp_path: Path, scheme: str, other: str
) -> None:
    """No cell is read as that of another column: the error names the file, its columns, those of the others, and what to do."""
    directory = tmp_path / "lists"
    directory.mkdir()
    (directory / "1.csv").write_text("email,name,town\na@x.example,A,Ulm\n" * 3)
    (directory / "2.csv").write_text(other)
    rows = lists.read_list(spark, f"{scheme}{directory}", {})
    with pytest.raises(LocalError) as raised, spark_errors(str(directory)):
        rows.collect()
    texts = (
        "1.csv has the columns email, name, town, other files have town, email, name: give all",
        "2.csv has the columns town, email, name, other files have email, name, town: give all",
        "1.csv has 3 columns, other files have 2: give all files",
        "2.csv has 2 columns, other files have 3: give all files",
    )
    assert any(text in str(raised.value) for text in texts)


def test_a_list_is_split_unless_quotes_hold_line_ends(spark: "SparkSession", tmp_path: Path) -> None:
    path, size = tmp_path / "list.csv", spark.conf.get("spark.sql.files.maxPartitionBytes")
    many = "".join(f'{n}@x.example,"N {n}"\n' for n in range(50_000))
    spark.conf.set("spark.sql.files.maxPartitionBytes", "100000")
    try:
        path.write_text(f"email,name\n{many}")
        rows = lists.read_list(spark, str(path), {})
        assert rows.rdd.getNumPartitions() > 5
        assert rows.count() == 50_000
        path.write_text(SPANS + many)
        assert lists.read_list(spark, str(path), {}).count() == 50_002
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", str(size))


def test_a_compressed_file_that_is_cut(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "list.csv.gz"
    path.write_bytes(gzip.compress(GOOD.encode())[:-12])
    with pytest.raises(LocalError, match=r"list\.csv\.gz"):
        rows_of(spark, path)


@pytest.mark.parametrize(("escape", "separator"), [("\\", ","), ('"', "||"), ("\\", "\\t")])
def test_a_quote_that_is_not_closed_in_another_form(
    spark: "SparkSession", tmp_path: Path, escape: str, separator: str
) -> None:
    """Spark would take the rows behind it for a part of the cell."""
    path, between = tmp_path / "list.csv", separator.replace("\\t", "\t")
    rows = "".join(f"{n}@x.example{between}N\n" for n in range(3))
    options = {"escape": escape, "sep": separator}
    path.write_text(f'email{between}name\n{rows}q@x.example{between}"a {escape}" b"\n')
    assert lists.read_list(spark, str(path), options).count() == 4
    path.write_text(f'email{between}name\n{rows}q@x.example{between}"open\n{rows}')
    for source in (str(path), f"file://{path}"):
        with pytest.raises(LocalError, match=r"list\.csv: line 5: a quote is not closed"):
            lists.read_list(spark, source, options)


@pytest.mark.parametrize("where", ["file", "directory", "url"])
def test_a_zstd_file_that_is_cut(spark: "SparkSession", tmp_path: Path, where: str) -> None:
    """In any frame; Spark's reader says nothing, and has fewer rows. Whole files are read, with empty and skippable frames, too."""
    frames = [
        zstandard.compress(f"email,name\n{''.join(f'{n}-{part}@x.example,N' + chr(10) for n in range(3000))}".encode())
        if part == 0
        else zstandard.compress("".join(f"{n}-{part}@x.example,N\n" for n in range(3000)).encode())
        for part in range(3)
    ]  # fmt: skip
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    path = tmp_path / "my lists" / ("list.csv.zst" if where != "directory" else "LIST.CSV.ZST")
    path.parent.mkdir()
    source = {"file": str(path), "directory": str(path.parent), "url": f"file://{path}"}[where]
    for whole in (
        frames,
        [*frames, zstandard.compress(b"")],
        [frames[0], skippable, *frames[1:], skippable],
    ):
        path.write_bytes(b"".join(whole))
        assert lists.read_list(spark, source, {}).count() == 9000
    content = b"".join(frames)
    for cut in (len(frames[0]) - 1, len(frames[0]) + 3, len(frames[0]) + 300, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(
            LocalError, match=r"(?i)list\.csv\.zst: the file ends within a frame of zstd"
        ):
            lists.read_list(spark, source, {})


@pytest.mark.parametrize(
    "options", [{"charset": "latin-1", "quote": "«"}, {"Encoding": "utf-16"}, {"encoding": "latin-1"}]
)
def test_line_ends_in_quotes_of_another_encoding(
    spark: "SparkSession", tmp_path: Path, options: dict[str, str]
) -> None:
    path, quote = tmp_path / "list.csv", options.get("quote", '"')
    [encoding] = [value for name, value in options.items() if name != "quote"]
    rows = f"email,name\na@x.example,{quote}zwölf\nlines{quote}\nb@x.example,B\n"
    path.write_text(rows, encoding=encoding)
    assert lists.spans_lines(spark, str(path), options)
    assert lists.spans_lines(spark, f"file://{path}", options)


def test_an_option_of_the_reader(spark: "SparkSession", tmp_path: Path) -> None:
    """Those of the user go before our own."""
    path = tmp_path / "list.csv"
    path.write_text('email,name\na@x.example,"A \\" B"\n')
    [row] = lists.read_list(spark, str(path), {"escape": "\\"}).collect()
    assert row["name"] == 'A " B'


def test_tasks_of_a_list_with_line_ends_in_quotes(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task reads it; what follows has more of them only where the list is long."""
    path = write_list(tmp_path / "l.csv", [[f"{n}@x.example", "two\nlines"] for n in range(200)])
    assert lists.read_list(spark, str(path), {}).rdd.getNumPartitions() == 1
    monkeypatch.setattr("zonemta_py.pipeline.plan.list.PARTITION_BYTES", 1000)
    rows = lists.read_list(spark, str(path), {})
    assert rows.rdd.getNumPartitions() == path.stat().st_size // 1000
    assert rows.count() == 200


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (("envelopes/x", "manifest/y"), "lists: found a plan, expected a list"),
        ((), "lists: the directory is empty"),
        (("list",), "lists: found 'list', expected .csv"),
    ],
)
def test_a_directory_that_is_no_list(
    spark: "SparkSession", tmp_path: Path, files: tuple[str, ...], problem: str
) -> None:
    (tmp_path / "lists").mkdir()
    for each in files:
        path = tmp_path / "lists" / each
        path.parent.mkdir(exist_ok=True)
        path.write_text(GOOD)
    with pytest.raises(ConfigError, match=problem):
        lists.read_list(spark, str(tmp_path / "lists"), {})


def test_a_column_with_the_name_of_an_added_one(spark: "SparkSession", tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("email,#Position\na@x.example,1\n")
    with pytest.raises(LocalError, match="found a column '#position', which this job adds; rename it"):
        lists.read_list(spark, str(tmp_path / "list.csv"), {})
