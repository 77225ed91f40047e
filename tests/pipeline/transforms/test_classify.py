"""Classification of the rows of a list."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = [
    (0, "a@x.example", None),
    (1, None, "no address"),
    (2, "A@x.example", None),
    (3, "b@x.example", None),
    (4, "c@gone.example", None),
    (5, None, "no address"),
]


def kinds(
    spark: "SparkSession", entries: list[tuple[str, str]] | None, case_sensitive: bool = False
) -> list[tuple[str, str | None]]:
    from zonemta_py.pipeline.transforms.classify import classify_rows

    rows = spark.createDataFrame(
        [(position, f"row {position}", address, reason) for position, address, reason in ROWS],
        "position long, given string, address string, reason string",
    )
    suppression = entries and spark.createDataFrame(entries, "entry string, reason string")
    found = rows.transform(classify_rows(suppression or None, case_sensitive)).orderBy("given").collect()
    return [(row["kind"], row["why"]) for row in found]


def test_the_first_row_of_an_address_is_planned(spark: "SparkSession") -> None:
    assert kinds(spark, None) == [
        ("planned", None),
        ("rejected", "no address"),
        ("duplicate", "earlier in the list"),
        ("planned", None),
        ("planned", None),
        ("rejected", "no address"),
    ]


def test_suppressed_by_address_and_by_domain(spark: "SparkSession") -> None:
    """The reason of the address takes precedence; a duplicate is a duplicate."""
    entries = [("a@x.example", "bounced"), ("x.example", "asked"), ("gone.example", "no such domain")]
    assert kinds(spark, entries) == [
        ("suppressed", "bounced"),
        ("rejected", "no address"),
        ("duplicate", "earlier in the list"),
        ("suppressed", "asked"),
        ("suppressed", "no such domain"),
        ("rejected", "no address"),
    ]


def test_case_that_matters(spark: "SparkSession") -> None:
    """Two addresses in the list; an entry suppresses both."""
    assert kinds(spark, None, case_sensitive=True)[2] == ("planned", None)
    assert kinds(spark, [("a@x.example", "bounced")], case_sensitive=True)[2] == (
        "suppressed",
        "bounced",
    )
