"""Suppression lists from files, directories and tables."""

import bz2
import csv
import gzip
import io
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.pipeline.plan.suppression import COLUMNS, NO_REASON, entry_key
from zonemta_py.smtp.address import AddressError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pa = pytest.importorskip("pyarrow")

TODAY = date(2026, 11, 21)


def read(
    spark: "SparkSession", *sources: Path | str, scopes: tuple[str, ...] = (), **options: str
) -> tuple[dict[str, str], Any]:
    """The reasons of the entries of ``sources``, and all that was found."""
    from zonemta_py.pipeline.plan.suppression import read_suppression

    found = read_suppression(spark, [str(each) for each in sources], scopes, TODAY, options)
    assert found is not None
    if found.held is not None:
        held = found.held.to_pylist()
    else:
        assert found.rows is not None
        held = found.rows.collect()
    found.release()
    rows = {row["entry"]: row["reason"] for row in held}
    assert len(rows) == len(held)
    return rows, found


def test_a_file_without_a_header(spark: "SparkSession", tmp_path: Path) -> None:
    """Addresses and domains are normalised; bad lines are counted and ignored."""
    path = tmp_path / "s.txt"
    path.write_text(
        "# comment\n\nA@EXAMPLE.org, bounced\n@Spam.example\nbücher.example\tasked\nnot an address\nplain@x.example\n"
        'user#tag@x.example\nb@x.example # note\n"a,b"@x.example, both\nlocalhost\n@localhost\n'
        "old@x.example, until 2026-11-20\nlast@x.example, until 2026-11-21\n"
    )
    rows, found = read(spark, path)
    assert rows == {
        "a@example.org": "bounced",
        "spam.example": NO_REASON,
        "xn--bcher-kva.example": "asked",
        "plain@x.example": NO_REASON,
        "user#tag@x.example": NO_REASON,
        "b@x.example": NO_REASON,
        '"a,b"@x.example': "both",
        "localhost": NO_REASON,
        "last@x.example": NO_REASON,
    }
    assert (found.bad, found.expired, found.entries) == (2, 1, 9)
    assert any(f"{path}: 'not an address'" in row for row in found.bad_rows)


def test_a_file_with_a_header(spark: "SparkSession", tmp_path: Path) -> None:
    """The header is no entry; cells may be quoted; the last day has a column of its own."""
    path = tmp_path / "s.csv"
    path.write_text(
        '\ufeff# made by hand\n Entry ,reason,until\n#no,entry,\n"#User@x.example","one, two",\n'
        '"""a,b""@x.example",quoted,2999-01-01\nold@x.example,,2020-01-01\nbad@x.example,,soon\nbad@x.example,,2999-02-30\n\n'
        "\u00a0b@x.example\t\n"
    )
    rows, found = read(spark, path)
    assert rows == {"#user@x.example": "one, two", '"a,b"@x.example': "quoted", "b@x.example": NO_REASON}
    assert (found.bad, found.expired) == (2, 1)
    for each, row in zip(("2999-02-30", "soon"), sorted(found.bad_rows), strict=True):
        assert f"until '{each}': expected a day such as 2027-05-20" in row


@pytest.mark.parametrize("header", ["", "entry,reason\n"])
def test_a_file_in_another_encoding(spark: "SparkSession", tmp_path: Path, header: str) -> None:
    """Its entries would protect other addresses than those that are meant: they are bad."""
    path = tmp_path / "s.csv"
    path.write_bytes(header.encode() + b"j\xf6rg@x.example,left\nann@x.example,left\n")
    rows, found = read(spark, path)
    assert (rows, found.bad) == ({"ann@x.example": "left"}, 1)
    assert "not valid UTF-8" in found.bad_rows[0]


def test_a_source_without_an_entry(spark: "SparkSession", tmp_path: Path) -> None:
    """An error, beside others that have some; an empty one, or one whose entries have expired, is none."""
    good, other = tmp_path / "good.csv", tmp_path / "other.csv"
    good.write_text("entry,until\na@x.example,2026-01-01\nnobody\n")
    other.write_text("date,contact\n2026-01-01,b@x.example\n")
    with pytest.raises(
        LocalError, match=r"other.csv: .*no other line is an entry either: name the column one of entry"
    ):
        read(spark, good, other)
    other.write_text("entry,reason\n")
    _, found = read(spark, good, other)
    assert (found.entries, found.expired, found.bad) == (0, 1, 1)


@pytest.mark.parametrize(
    ("suffix", "scheme"), [("gz", ""), ("bz2", ""), ("zst", ""), ("zst", "file://")]
)
def test_a_compressed_file(spark: "SparkSession", tmp_path: Path, suffix: str, scheme: str) -> None:
    """Its header is seen, so that columns and last days count; one that is cut is an error."""
    compressions: dict[str, Callable[[bytes], bytes]]
    compressions = {"gz": gzip.compress, "bz2": bz2.compress, "zst": zstandard.compress}
    compress = compressions[suffix]
    path = tmp_path / f"s.csv.{suffix}"
    parts = [f"id,email,reason,until\n1,a@x.example,{'why ' * 100},\n", "2,b@x.example,,2020-01-01\n"]
    path.write_bytes(b"".join(compress(part.encode()) for part in parts))
    rows, found = read(spark, f"{scheme}{path}")
    assert (set(rows), found.bad, found.expired) == ({"a@x.example"}, 0, 1)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(LocalError, match=rf"s\.csv\.{suffix}"):
        read(spark, f"{scheme}{path}")


@pytest.mark.parametrize("held_max", [0, 10])
def test_the_first_source_counts(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_max: int
) -> None:
    """Also where Spark joins the entries, because they are many."""
    monkeypatch.setattr("zonemta_py.pipeline.plan.suppression.HELD_MAX", held_max)
    (tmp_path / "1.txt").write_text("a@x.example, first\na@x.example, first\n")
    (tmp_path / "2.txt").write_text("A@x.example, second\nb@x.example\n")
    rows, _ = read(spark, tmp_path / "1.txt", tmp_path / "2.txt")
    assert rows == {"a@x.example": "first", "b@x.example": NO_REASON}


def test_tables_with_scopes(spark: "SparkSession", tmp_path: Path) -> None:
    """An entry with a scope applies to plans of that scope; columns that are not known are ignored."""
    rows = [
        ("A@x.example", "asked", "news", 1),
        ("b@x.example", None, None, 2),
        ("c@x.example", "", "other", 3),
    ]
    table = spark.createDataFrame(rows, "email string, reason string, scope string, id int")
    table.write.parquet(str(tmp_path / "s.parquet"))
    table.createOrReplaceTempView("unsubscribed")
    for source in (tmp_path / "s.parquet", "table:unsubscribed"):
        assert set(read(spark, source)[0]) == {"b@x.example"}
        assert set(read(spark, source, scopes=("news", "shop"))[0]) == {"a@x.example", "b@x.example"}


def test_reasons_of_several_lines(spark: "SparkSession", tmp_path: Path) -> None:
    """An export of another system; each entry is found, and nothing of a reason is one. A quote that is not closed is an error."""
    rows = [("entry", "reason"), ("a@x.example", "asked\nb@x.example, too"), ("c@x.example", 'a "word"')]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    path = tmp_path / "s.csv"
    path.write_text(f'# the "best\n{text.getvalue()}')
    for source in (str(path), f"file://{path}"):
        found, whole = read(spark, source)
        assert found == dict(rows[1:])
        assert whole.bad == 0
    path.write_text('entry,reason\na@x.example,"asked\nb@x.example,bounced\n')
    for source in (str(path), f"file://{path}"):
        with pytest.raises(LocalError, match="line 2: a quote is not closed"):
            read(spark, source)


def test_a_directory(spark: "SparkSession", tmp_path: Path) -> None:
    for name, text in (("1", "a@x.example\n"), ("2", "b@x.example\n")):
        (tmp_path / name).write_text(text)
    assert set(read(spark, tmp_path)[0]) == {"a@x.example", "b@x.example"}


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_directory_of_a_table(spark: "SparkSession", tmp_path: Path, scheme: str) -> None:
    """As LIST: what its files are counts, not its name."""
    table = spark.createDataFrame([("a@x.example",)], "email string")
    table.write.parquet(str(tmp_path / "unsubscribed"))
    table.write.parquet(str(tmp_path / "s.parquet"))
    table.write.json(str(tmp_path / "lines"))
    for name in ("unsubscribed", "unsubscribed/", "s.parquet/", "lines"):
        assert set(read(spark, f"{scheme}{tmp_path}/{name}")[0]) == {"a@x.example"}, name
    (tmp_path / "lines" / "more.csv").write_text("b@x.example\n")
    with pytest.raises(ConfigError, match="contains files of several kinds: csv, json"):
        read(spark, f"{scheme}{tmp_path}/lines")


def test_a_database(spark: "SparkSession", tmp_path: Path) -> None:
    url = f"jdbc:derby:{tmp_path}/db;create=true"
    rows = spark.createDataFrame([("A@x.example", "asked"), ("@y.example", None)], "email string, reason string")  # fmt: skip
    rows.write.format("jdbc").options(url=url, dbtable="unsubscribed").save()
    url = url.removesuffix(";create=true")
    (tmp_path / "s.txt").write_text("b@x.example, bounced\n")
    found, _ = read(spark, url, tmp_path / "s.txt", dbtable="unsubscribed")
    assert found == {"a@x.example": "asked", "y.example": NO_REASON, "b@x.example": "bounced"}
    asked = """SELECT * FROM unsubscribed WHERE CAST("reason" AS VARCHAR(99)) = 'asked'"""
    assert set(read(spark, url, query=asked)[0]) == {"a@x.example"}
    with pytest.raises(ConfigError, match=r"dbtable=NAME .*--suppress-option"):
        read(spark, url)
    with pytest.raises(LocalError, match="jdbc:missing:here"):
        read(spark, "jdbc:missing:here", dbtable="x")


def test_sources_that_cannot_be_read(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="nothing-here"):
        read(spark, tmp_path / "nothing-here")
    spark.createDataFrame([(1,)], "id int").createOrReplaceTempView("numbers")
    with pytest.raises(ConfigError, match=r"no column entry or email .*; columns: id"):
        read(spark, "table:numbers")
    assert read(spark, *[_empty(tmp_path)])[0] == {}


def _empty(directory: Path) -> Path:
    path = directory / "empty.txt"
    path.write_text("")
    return path


ENTRIES = st.one_of(
    st.sampled_from(["a@x.example", "#a@x.example", '"a,b"@x.example', "X.example", "@y.example", "é'@x.example", "wrong"]),
    st.emails(),
    st.text("ab.@-0A", max_size=8),
)  # fmt: skip


@given(st.lists(ENTRIES, max_size=6))
def test_keys_are_those_of_the_rule(entries: list[str]) -> None:
    """What Arrow recognises has the same key as the rule says."""
    from zonemta_py.pipeline.plan.suppression import entry_keys

    keys, problems = (column.to_pylist() for column in entry_keys(pa.array(entries, pa.string())))
    for entry, key, problem in zip(entries, keys, problems, strict=True):
        try:
            assert (key, problem) == (entry_key(entry), None)
        except AddressError as exc:
            assert (key, problem) == (None, str(exc))


def test_what_suppress_writes_is_read(spark: "SparkSession", tmp_path: Path) -> None:
    """Commas, quotes and number signs in entries and reasons."""
    rows = [
        ["#a@x.example", "one, two", ""],
        ['"a,b"@x.example', 'with "quotes"', ""],
        ["é'@x.example", "# no", ""],
    ]
    text = io.StringIO()
    csv.writer(text).writerow(COLUMNS)
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(rows)
    (tmp_path / "s.csv").write_text(f"# made by zonemta\n{text.getvalue()}")
    assert read(spark, tmp_path / "s.csv")[0] == {entry: reason for entry, reason, _ in rows}
