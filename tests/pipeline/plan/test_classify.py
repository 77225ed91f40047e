"""Kinds of the rows of a list."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.pipeline.plan.rows import Selection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
classify = pytest.importorskip("zonemta_py.pipeline.plan.rows")

ROWS = [
    (0, "a@x.example", None),
    (1, None, "no address"),
    (2, "A@x.example", None),
    (3, "b@x.example", None),
    (4, "c@gone.example", None),
    (5, None, "no address"),
    (6, "É@x.example", None),
    (7, "é@x.example", None),
]


def suppression_of(spark: "SparkSession", entries: list[tuple[str, str]] | None, held: bool) -> Any:
    """The entries as what each task gets, or as what Spark joins."""
    from pyspark.sql import functions as F

    from zonemta_py.pipeline.plan.suppression import Suppression

    if not entries:
        return None
    rows = spark.createDataFrame(entries, "entry string, reason string")
    joined = rows.select(F.xxhash64("entry").alias("digest"), "entry", "reason")
    return Suppression(
        rows.toArrow() if held else None, None if held else joined, len(entries), 0, 0, (), rows
    )


def kinds(
    spark: "SparkSession",
    entries: list[tuple[str, str]] | None,
    case_sensitive: bool = False,
    selection: Selection | None = None,
    held: bool = True,
) -> list[tuple[str, str | None]]:
    rows = spark.createDataFrame(
        [
            (position, f"row {position}", address, None if not address or address.isascii() else address.lower(), reason)
            for position, address, reason in ROWS
        ],
        "position long, given string, address string, folded string, reason string",
    )  # fmt: skip
    suppression = suppression_of(spark, entries, held)
    arranged = rows.transform(
        classify.arrange_rows(suppression, selection or Selection("june"), case_sensitive)
    )
    classifier = classify.Classifier(case_sensitive, suppression and suppression.held)
    kept = "position long, kind string, why string"

    def mark(batches: Any) -> Any:
        for block in classifier.blocks(batches):
            yield from block.select(["position", "kind", "why"]).to_batches()

    found = arranged.mapInArrow(mark, kept).orderBy("position").collect()
    return [(row["kind"], row["why"]) for row in found]


def test_the_first_row_of_an_address_is_planned(spark: "SparkSession") -> None:
    assert kinds(spark, None) == [
        ("planned", None),
        ("rejected", "no address"),
        ("duplicate", "earlier in the list"),
        ("planned", None),
        ("planned", None),
        ("rejected", "no address"),
        ("planned", None),
        ("duplicate", "earlier in the list"),
    ]


@pytest.mark.parametrize("held", [True, False])
def test_suppressed_by_address_and_by_domain(spark: "SparkSession", held: bool) -> None:
    """The reason of the address takes precedence; a duplicate is a duplicate."""
    entries = [
        ("a@x.example", "bounced"),
        ("x.example", "asked"),
        ("gone.example", "no such domain"),
        ("é@x.example", "left"),
    ]
    assert kinds(spark, entries, held=held) == [
        ("suppressed", "bounced"),
        ("rejected", "no address"),
        ("duplicate", "earlier in the list"),
        ("suppressed", "asked"),
        ("suppressed", "no such domain"),
        ("rejected", "no address"),
        ("suppressed", "left"),
        ("duplicate", "earlier in the list"),
    ]


def test_case_that_matters(spark: "SparkSession") -> None:
    """Two addresses in the list; an entry suppresses both."""
    assert kinds(spark, None, case_sensitive=True)[2] == ("planned", None)
    found = kinds(spark, [("a@x.example", "bounced")], case_sensitive=True)
    assert found[0] == found[2] == ("suppressed", "bounced")


def test_variants_and_samples(spark: "SparkSession") -> None:
    """Each address is in one variant; what is suppressed or repeated stays that."""
    variants = (("a", 0.5), ("b", 0.5))
    of = {
        name: kinds(spark, None, selection=Selection("june", variants=variants, variant=name))
        for name in ("a", "b")
    }
    for one, other in zip(of["a"], of["b"], strict=True):
        if one[0] in ("rejected", "duplicate"):
            assert one == other
        else:
            assert {one, other} in ({("planned", None), ("other_variant", "a")}, {("planned", None), ("other_variant", "b")})  # fmt: skip
    none = kinds(spark, None, selection=Selection("june", sample=1e-9))
    assert {kind for kind, _ in none} == {"rejected", "duplicate", "not_sampled"}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", "A", None])), max_size=30),
    st.integers(1, 5),
)
def test_repeats_across_blocks(rows: list[tuple[int, str | None]], size: int) -> None:
    """Rows are sorted by digest; different addresses may have one, and rows of one may be in several blocks."""
    rows = sorted(rows, key=lambda row: row[0])
    seen = classify._Seen()
    found: list[bool] = []
    for begin in range(0, len(rows), size):
        block = rows[begin : begin + size]
        digests = pa.array([digest for digest, _ in block], pa.int64()).to_numpy()
        keys = pa.array([key for _, key in block], pa.string())
        found += classify._duplicates(digests, keys, seen).tolist()
    expected = [key is not None and (digest, key) in rows[:at] for at, (digest, key) in enumerate(rows)]
    assert found == expected
    assert all(one[0] <= other[0] for one, other in pairwise(rows))
