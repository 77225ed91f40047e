"""Normalised addresses, and the reasons of rejected ones."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zonemta_py.config.load import parse_config
from zonemta_py.routing import make_router

normalise = pytest.importorskip("zonemta_py.pipeline.transforms.normalise")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = "zones: {default: {}, news: {}}\nrouting: [{recipient_domain: n.example, zone: news}]\n"
ROUTER = make_router(parse_config(CONFIG, Path("z.yaml")))


def test_addresses() -> None:
    checker = normalise.AddressChecker(ROUTER, "example.com")
    given, addresses, providers, zones, reasons = checker.check(
        ["a@GMAIL.com", "b@n.example", "wrong", "", "bad\ufffd@x.example", "x" * 2000]
    )
    assert addresses == ["a@gmail.com", "b@n.example", None, None, None, None]
    assert providers == ["google", "n.example", None, None, None, None]
    assert zones == ["default", "news", None, None, None, None]
    assert given[:3] == ["a@GMAIL.com", None, "wrong"], "null where it is the address"
    assert len(given[5]) == normalise.CELL_MAX
    assert reasons[:2] == [None, None]
    assert reasons[3:5] == ["no address", "not valid UTF-8"]
    assert reasons[2]
    assert reasons[5]


def test_missing_merge_fields() -> None:
    """The reason of a bad address takes precedence."""
    checker = normalise.AddressChecker(ROUTER, "example.com")
    columns = checker.check(["a@x.example", "wrong", "b@x.example"], ["name", "name", None])
    assert columns[1] == [None, None, "b@x.example"]
    assert columns[4][0] == "no value for 'name'"
    assert "name" not in columns[4][1]


def test_rows_keep_their_position(spark: "SparkSession") -> None:
    rows = spark.createDataFrame(
        [(7, " a@X.example ", "A"), (8, None, "B")], "`#position` long, email string, name string"
    )
    found = rows.transform(normalise.normalise_rows("email", ["name"], ROUTER, "")).collect()
    assert [(row["position"], row["given"], row["address"]) for row in found] == [
        (7, "a@X.example", "a@x.example"),
        (8, "", None),
    ]
    assert [row["fields"] for row in found] == [{"name": "A"}, {"name": "B"}]
