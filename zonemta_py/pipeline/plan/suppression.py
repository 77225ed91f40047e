"""Suppression lists as a table: files, directories, tables and databases, however large, read and joined by Spark.

A text file is CSV with a header, or has an entry on each line. Anything else that ``read_list`` reads has the same columns: an entry,
and, if present, ``reason``, ``until`` and ``scope``.

An entry is an address, or a domain (``@example.org`` or ``example.org``). ``until`` is the last day on which it
applies, ``scope`` a name: the entry applies only to plans of that scope. Lines that begin with ``#`` are comments, if the first
cell is not quoted. Without a header line the text after the first comma or tab is the reason, which may end in ``until 2027-05-20``.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.pipeline.plan.list import (
    JDBC,
    is_compressed,
    kinds_of,
    only_kind,
    read_list,
    spans_lines,
)
from zonemta_py.pipeline.spark.files import TABLE, as_read, check_zstd_files
from zonemta_py.pipeline.spark.session import analysed, error_line, spark_errors
from zonemta_py.smtp.address import AddressError, normalise, normalise_domain
from zonemta_py.submit.recipients import ADDRESS_COLUMNS, BLANKS

HELD_MAX = 1_000_000  # entries that every task keeps in memory
BAD_ROWS_MAX = 20  # that are reported one by one
TABLES = ("parquet", "orc", "json", "jsonl", "ndjson")  # suffixes of what is not a text of lines
COLUMNS = ("entry", "reason", "until")  # that ``suppress`` and ``segment`` write
ENTRY_COLUMNS = ("entry", *ADDRESS_COLUMNS, "domain")  # the first of them in a header has the entries
OTHER_COLUMNS = ("reason", "until", "scope")
NO_REASON = "suppressed"
COMMENT = "#"
DAY = r"^\d{4}-\d\d-\d\d$"
_STRING = StringType()
_RAW = StructType([StructField(name, _STRING) for name in ("entry", *OTHER_COLUMNS)])
_KEYED = StructType([StructField(name, _STRING) for name in ("key", "problem", "entry", *OTHER_COLUMNS)])
_UNTIL = re.compile(r",?\s*until (\d{4}-\d\d-\d\d)$")
_QUOTED_LOCAL = re.compile(r'("(?:[^"\\]|\\.)*"@[^,\t]*)[,\t]?(.*)')
_COMMENT = re.compile(r"\s#.*")
# A normalised address already, if it has at most PLAIN_MAX characters: then its parts have not too many either.
_ATOM, _LABEL = r"[A-Za-z0-9_+=\-]+", r"[a-z0-9](?:[a-z0-9\-]*[a-z0-9])?"
PLAIN_DOMAIN = rf"{_LABEL}(?:\.{_LABEL})+"
PLAIN = rf"{_ATOM}(?:\.{_ATOM})*@{PLAIN_DOMAIN}"
PLAIN_MAX = 64
UNDECODED = "\ufffd"  # what a reader puts in place of bytes that are not UTF-8


class SuppressionHeader(NamedTuple):
    """The ``column`` of the entries, None when the line is no header; and what separates the columns."""

    column: str | None
    delimiter: str


@dataclass(frozen=True, slots=True)
class Suppression:
    """The entries that apply: each is a normalised address or domain in lower case, with its reason.

    ``held``: all of them as an Arrow table of ``entry`` and ``reason`` that each task gets, or None when they are too many: then
    ``rows`` has them, with their ``digest``, and Spark joins them. ``bad``: number of rows that are no entry; ``bad_rows``
    describes the first of them. ``expired``: rows whose last day is over.
    """

    held: pa.Table | None
    rows: DataFrame | None
    entries: int
    bad: int
    expired: int
    bad_rows: Sequence[str]
    _stored: DataFrame

    def release(self) -> None:
        """Remove what is stored for the joins."""
        self._stored.unpersist()


def read_suppression(
    spark: SparkSession,
    sources: Sequence[str],
    scopes: Sequence[str],
    today: date,
    options: Mapping[str, str] | None = None,
) -> Suppression | None:
    """The entries of all ``sources`` that apply ``today``; None without sources. Of equal entries one counts, the first source's if its reason differs.

    ``scopes``: an entry with another scope does not apply; one without a scope always does. ``options``: of Spark's reader, for sources that
    are no text. Raises LocalError and ConfigError.
    """
    if not sources:
        return None
    found: DataFrame | None = None
    for number, source in enumerate(sources):
        with spark_errors(source):
            rows = _read(spark, source, options or {}).select(
                F.lit(number).alias("source"), *_checked_columns(source, scopes, today)
            )
        found = rows if found is None else found.unionByName(rows)
    assert found is not None
    rows = found.persist(StorageLevel.DISK_ONLY)
    with spark_errors(", ".join(sources)):
        counts = rows.agg(
            F.count_if("applies").alias("entries"),
            F.count("problem").alias("bad"),
            F.count_if("expired").alias("expired"),
            *(each.alias(f"only_bad_{n}") for n, each in enumerate(map(_only_bad, range(len(sources))))),
        ).collect()[0]
        bad = rows.where("problem IS NOT NULL").limit(BAD_ROWS_MAX) if counts["bad"] else None
        problems = [row["problem"] for row in bad.collect()] if bad is not None else []
        _check_usable([source for n, source in enumerate(sources) if counts[f"only_bad_{n}"]], problems)
        applying = rows.where("applies").select("source", F.col("key").alias("entry"), "reason")
        held = counts["entries"] <= HELD_MAX
        found_held = _first_of_each(applying.toArrow()) if held else None
    joined = None if held else _distinct(applying)
    return Suppression(
        held=found_held,
        rows=joined,
        entries=counts["entries"],
        bad=counts["bad"],
        expired=counts["expired"],
        bad_rows=problems,
        _stored=rows,
    )


def _only_bad(number: int) -> Column:
    """True if source ``number`` has rows, and none of them is an entry: another column is meant, or another file."""
    is_bad = F.when(F.col("source") == number, F.col("problem").isNotNull())
    return F.coalesce(F.min(is_bad), F.lit(False))


def _check_usable(unusable: Sequence[str], problems: Sequence[str]) -> None:
    """Raises LocalError for a source in which nothing is an entry: mail would be sent to all that it was to keep."""
    for source in unusable:
        found = next((each for each in problems if each.startswith(f"{source}: ")), source)
        columns = ", ".join(ENTRY_COLUMNS)
        raise LocalError(f"{found}; no other line is an entry either: name the column one of {columns}")


def _first_of_each(entries: pa.Table) -> pa.Table:
    """``entry`` and ``reason``, each entry once."""
    ordered = entries.sort_by("source").combine_chunks()
    names = ordered.column("entry")
    codes = (names.chunk(0) if names.num_chunks else pa.array([], pa.string())).dictionary_encode()
    _, first = np.unique(codes.indices.to_numpy(), return_index=True)
    return ordered.select(["entry", "reason"]).take(pa.array(first))


def _distinct(entries: DataFrame) -> DataFrame:
    """``digest``, ``entry`` and ``reason``, each entry once; distributed by the digest, as the list is."""
    return (
        entries.select("*", F.xxhash64("entry").alias("digest"))
        .groupBy("digest", "entry")
        .agg(F.min_by("reason", "source").alias("reason"))
    )


def _checked_columns(source: str, scopes: Sequence[str], today: date) -> list[Column]:
    """``key``, ``reason``, ``problem``, ``expired`` and ``applies``."""
    until, scope = (F.btrim(F.coalesce(name, F.lit("")), F.lit(BLANKS)) for name in ("until", "scope"))
    reason = F.btrim(F.coalesce("reason", F.lit("")), F.lit(BLANKS))
    bad_day = (until != "") & (~until.rlike(DAY) | until.try_cast("date").isNull())
    problem = F.concat(
        F.lit(f"{source}: '"),
        F.coalesce(F.substring("entry", 1, 100), F.lit("")),
        F.lit("': "),
        F.coalesce("problem", F.when(bad_day, F.concat(F.lit("until '"), F.substring(until, 1, 100), F.lit("': expected a day such as 2027-05-20")))),
    )  # fmt: skip
    expired = problem.isNull() & (until != "") & (until < today.isoformat())
    in_scope = (scope == "") | scope.isin(*scopes) if scopes else scope == ""
    return [
        F.col("key"),
        F.when(reason == "", NO_REASON).otherwise(reason).alias("reason"),
        problem.alias("problem"),
        expired.alias("expired"),
        (problem.isNull() & ~expired & in_scope).alias("applies"),
    ]


def _read(spark: SparkSession, source: str, options: Mapping[str, str]) -> DataFrame:
    """Rows of _KEYED. Raises LocalError and ConfigError."""
    if source.startswith((TABLE, JDBC)) or _is_table(spark, source):
        columns = read_list(spark, source, options)
    else:
        check_zstd_files(spark, source)
        header = header_of(_first_line(spark, source))
        if header.column is None:
            lines = spark.read.text(as_read(source))
            return lines.mapInArrow(_map_lines, _KEYED)
        columns = _read_csv(spark, source, header)
    names = {name.strip(BLANKS).lower(): name for name in columns.columns}
    entry = next((names[name] for name in ENTRY_COLUMNS if name in names), None)
    if entry is None:
        raise ConfigError(
            f"{source}: no column {' or '.join(ENTRY_COLUMNS)}; columns: {', '.join(columns.columns)}"
        )
    raw = columns.select(
        F.col(f"`{entry}`").cast("string").alias("entry"),
        *(
            (F.col(f"`{names[name]}`") if name in names else F.lit(None)).cast("string").alias(name)
            for name in OTHER_COLUMNS
        ),
    )
    return raw.mapInArrow(_map_columns, _KEYED)


def _is_table(spark: SparkSession, source: str) -> bool:
    """True if these are files of TABLES. Raises ConfigError for a directory that has others besides."""
    kinds = kinds_of(spark, source)
    return not kinds.isdisjoint(TABLES) and only_kind(source, kinds) in TABLES


def _first_line(spark: SparkSession, source: str) -> str:
    """The first line with an entry or a header. Raises LocalError."""
    path = Path(source)
    if path.is_file() and not is_compressed(source):
        try:
            with path.open(encoding="utf-8-sig", errors="replace") as file:
                return next((line.rstrip("\n") for line in file if has_entry(line)), "")
        except OSError as exc:
            raise LocalError(f"{source}: {exc.strerror}") from exc
    text = F.btrim("value", F.lit(BLANKS))
    try:
        rows = analysed(spark.read.text(as_read(source))).where(
            (text != "") & ~F.startswith(text, F.lit("#"))
        )
    except AnalysisException as exc:
        raise LocalError(f"{source}: {error_line(str(exc))}") from exc
    first = rows.first()
    return str(first["value"]) if first else ""


def _read_csv(spark: SparkSession, source: str, header: SuppressionHeader) -> DataFrame:
    spans = spans_lines(spark, source, {"sep": header.delimiter, "comment": COMMENT})
    return spark.read.csv(
        as_read(source), header=True, sep=header.delimiter, comment=COMMENT, quote='"', escape='"',
        enforceSchema=False, multiLine=spans,
    )  # fmt: skip


def _map_columns(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keys, problems = entry_keys(batch.column("entry"))
        yield pa.RecordBatch.from_arrays([keys, problems, *batch.columns], names=_KEYED.names)


def _map_lines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Lines of a file without a header; those without an entry are left out."""
    for batch in batches:
        lines = _decoded(batch.column("value"))
        is_simple = pc.invert(pc.match_substring_regex(lines, r'[\s"#,\x{feff}\x{a0}]|^$'))
        simple = lines.filter(is_simple)
        others = [
            split_line(line)
            for line in lines.filter(pc.invert(is_simple)).to_pylist()
            if has_entry(line)
        ]
        nulls = pa.nulls(len(simple), pa.string())
        columns = [simple, nulls, nulls, nulls]
        if others:
            parts = [pa.array(values, pa.string()) for values in zip(*others, strict=True)]
            columns = [pa.concat_arrays([a, b]) for a, b in zip(columns, [*parts, pa.nulls(len(others), pa.string())], strict=True)]  # fmt: skip
        yield from _map_columns(iter([pa.RecordBatch.from_arrays(columns, names=_RAW.names)]))


def _decoded(lines: pa.StringArray) -> pa.Array:
    """``lines`` with UNDECODED in place of bytes that are not UTF-8, as Spark's reader of CSV has them."""
    try:
        lines.validate(full=True)
    except pa.ArrowInvalid:
        found = lines.cast(pa.binary()).to_pylist()
        return pa.array(
            [None if each is None else each.decode(errors="replace") for each in found], pa.string()
        )
    return lines


def entry_keys(entries: pa.StringArray) -> tuple[pa.Array, pa.Array]:
    """The normal form of each address or domain in lower case, or null; and why there is none, or null."""
    texts = pc.utf8_trim(entries.fill_null(""), BLANKS)
    is_short = pc.less_equal(pc.utf8_length(texts), PLAIN_MAX)
    is_plain = pc.and_(is_short, pc.match_substring_regex(texts, rf"\A(?:{PLAIN}|{PLAIN_DOMAIN})\z"))
    keys = pc.ascii_lower(texts)
    nulls = pa.nulls(len(keys), pa.string())
    if pc.all(is_plain, min_count=0).as_py():
        return keys, nulls
    is_other = pc.invert(is_plain)
    pairs = list(map(_key_or_problem, texts.filter(is_other).to_pylist()))
    found, problems = (pa.array([pair[part] for pair in pairs], pa.string()) for part in (0, 1))
    return pc.replace_with_mask(keys, is_other, found), pc.replace_with_mask(nulls, is_other, problems)


def _key_or_problem(text: str) -> tuple[str | None, str | None]:
    try:
        return entry_key(text), None
    except AddressError as exc:
        return None, str(exc)


# ---- Single addresses and lines. Pure.


def address_or_reason(text: str) -> tuple[str | None, str | None]:
    """The normalised address, or None and the reason why ``text`` is none."""
    if UNDECODED in text:
        return None, "not valid UTF-8"
    try:
        return normalise(text), None
    except AddressError as exc:
        return None, str(exc) if text else "no address"


def entry_key(text: str) -> str:
    """The normal form of an address or domain in lower case. Raises AddressError."""
    if UNDECODED in text:
        raise AddressError("not valid UTF-8")
    text = text.strip(BLANKS)
    bare = text.removeprefix("@")
    if "@" in bare:
        return normalise(text).lower()
    if bare == text and "." not in text:
        raise AddressError("neither an address nor a domain; a domain without a dot is written @name")
    return normalise_domain(bare)


def header_of(line: str) -> SuppressionHeader:
    """The header in ``line``, the first one of a file that is no comment."""
    delimiter = next((mark for mark in "\t;" if mark in line and "," not in line), ",")
    cells = next(csv.reader([line], delimiter=delimiter), [])
    names = [cell.strip(BLANKS).lower() for cell in cells]
    return SuppressionHeader(next((name for name in ENTRY_COLUMNS if name in names), None), delimiter)


def has_entry(line: str) -> bool:
    """True if a line is neither empty nor a comment."""
    text = line.strip(BLANKS)
    return bool(text) and not text.startswith("#")


def split_line(line: str) -> tuple[str, str, str]:
    """Entry, reason and last day of a line without a header; ``""`` for what it lacks."""
    entry, rest = _split(line.strip(BLANKS))
    until = _UNTIL.search(rest)
    return entry, _UNTIL.sub("", rest), until[1] if until else ""


def _split(line: str) -> tuple[str, str]:
    """Entry and the rest. The entry may be a quoted cell, or an address with a quoted local part."""
    quoted = _QUOTED_LOCAL.fullmatch(line)
    if quoted:
        return quoted[1], quoted[2]
    if line.startswith('"'):
        try:
            cells = next(csv.reader([line]))
        except csv.Error:  # a cell of more than 128 KiB
            return line, ""
        return cells[0], ",".join(cells[1:])
    entry, _, reason = line.replace("\t", ",").partition(",")
    return _COMMENT.sub("", entry), reason


def suppression_lines(comment: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a suppression file with the columns COLUMNS."""
    yield f"# {comment}\n"
    yield f"{','.join(COLUMNS)}\n"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)  # an entry may begin with #
    for row in rows:
        writer.writerow(row)
        yield text.getvalue()
        text.seek(0)
        text.truncate()
