"""Normalised addresses, and the reasons of rejected ones."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.config.load import parse_config
from zonemta_py.pipeline.rules.provider import provider_of
from zonemta_py.routing import make_router
from zonemta_py.smtp import address

pa = pytest.importorskip("pyarrow")
normalise = pytest.importorskip("zonemta_py.pipeline.transforms.normalise")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = "zones: {default: {}, news: {}}\nrouting: [{recipient_domain: n.example, zone: news}]\n"
ROUTER = make_router(parse_config(CONFIG, Path("z.yaml")))


def columns_of(
    checker: Any, texts: list[str], missing: list[str | None] | None = None
) -> list[list[str | None]]:
    """The columns that ``checker`` makes of ``texts``."""
    names = None if missing is None else pa.array(missing, pa.string())
    return [column.to_pylist() for column in checker.check(pa.array(texts, pa.string()), names)]


LABELS = st.text("ab0-.A", max_size=6)
TEXTS = st.one_of(
    st.builds("{}@{}".format, st.text("ab.+-_=A#\" \n", max_size=6) | st.just("l" * 64), LABELS | st.just("d" * 63 + ".e")),
    st.text(max_size=10),
    st.emails(),
)  # fmt: skip


@given(st.lists(TEXTS, max_size=8))
def test_the_rule_is_that_of_the_relay(texts: list[str]) -> None:
    """What Arrow recognises as an address, ``smtp.address`` does too, and it is its own normal form."""
    texts = [text.encode(errors="replace").decode() for text in texts]  # Spark has no lone surrogates
    given_, addresses, providers, zones, reasons = columns_of(
        normalise.AddressChecker(ROUTER, "example.com"), texts
    )
    for row, text in enumerate(texts):
        try:
            expected = None if normalise.UNDECODED in text else address.normalise(text)
        except address.AddressError:
            expected = None
        assert addresses[row] == expected
        assert given_[row] == (None if text == expected else text)
        assert (reasons[row] is None) == (expected is not None)
        assert providers[row] == (expected and provider_of(address.domain_of(expected)))
        assert zones[row] == (expected and ("news" if expected.endswith("@n.example") else "default"))


def test_addresses() -> None:
    checker = normalise.AddressChecker(ROUTER, "example.com")
    given, addresses, providers, zones, reasons = columns_of(
        checker, ["a@GMAIL.com", "b@n.example", "wrong", "", "bad\ufffd@x.example", "x" * 2000]
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
    columns = columns_of(checker, ["a@x.example", "wrong", "b@x.example"], ["name", "name", None])
    assert columns[1] == [None, None, "b@x.example"]
    assert columns[4][0] == "no value for 'name'"
    assert "name" not in columns[4][1]


def test_rows_keep_their_position(spark: "SparkSession") -> None:
    rows = spark.createDataFrame(
        [(7, "\ufeff\u00a0 a@X.example\t", "A"), (8, None, "B")],
        "`#position` long, email string, name string",
    )
    found = rows.transform(normalise.normalise_rows("email", ["name"], ROUTER, "")).collect()
    assert [(row["position"], row["given"], row["address"]) for row in found] == [
        (7, "a@X.example", "a@x.example"),
        (8, "", None),
    ]
    assert [row["fields"] for row in found] == [{"name": "A"}, {"name": "B"}]
