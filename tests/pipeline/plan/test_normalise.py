"""Normalised addresses, and the reasons of rejected ones."""

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.pipeline.plan.suppression import UNDECODED
from zonemta_py.smtp import address

pa = pytest.importorskip("pyarrow")
normalise = pytest.importorskip("zonemta_py.pipeline.plan.rows")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def columns_of(texts: list[str], problems: list[str | None] | None = None) -> list[list[str | None]]:
    """What is made of ``texts``."""
    others = None if problems is None else pa.array(problems, pa.string())
    return [
        column.to_pylist() for column in normalise.check_addresses(pa.array(texts, pa.string()), others)
    ]


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
    given_, addresses, folded, reasons = columns_of(texts)
    for row, text in enumerate(texts):
        try:
            expected = None if UNDECODED in text else address.normalise(text)
        except address.AddressError:
            expected = None
        assert addresses[row] == expected
        assert given_[row] == (None if text == expected else text)
        assert (reasons[row] is None) == (expected is not None)
        assert folded[row] == (expected.lower() if expected and not expected.isascii() else None)


def test_addresses() -> None:
    texts = ["a@GMAIL.com", "É@n.example", "wrong", "", "bad\ufffd@x.example", "x" * 2000]
    given, addresses, folded, reasons = columns_of(texts)
    assert addresses == ["a@gmail.com", "É@n.example", None, None, None, None]
    assert folded == [None, "é@n.example", None, None, None, None]
    assert given[:3] == ["a@GMAIL.com", None, "wrong"], "null where it is the address"
    assert len(given[5] or "") == normalise.CELL_MAX
    assert reasons[:2] == [None, None]
    assert reasons[3:5] == ["no address", "not valid UTF-8"]
    assert reasons[2]
    assert reasons[5]


def test_missing_merge_fields() -> None:
    """The reason of a bad address takes precedence."""
    columns = columns_of(["a@x.example", "wrong", "b@x.example"], ["no name", "no name", None])
    assert columns[1] == [None, None, "b@x.example"]
    assert columns[3][0] == "no name"
    assert "name" not in (columns[3][1] or "")


def test_rows_keep_their_position(spark: "SparkSession") -> None:
    rows = spark.createDataFrame(
        [(7, "\ufeff\u00a0 a@X.example\t", "A"), (8, None, "B")],
        "`#position` long, email string, name string",
    )
    found = rows.transform(normalise.normalise_rows("email", ["name"])).collect()
    assert [(row["position"], row["given"], row["address"]) for row in found] == [
        (7, "a@X.example", "a@x.example"),
        (8, "", None),
    ]
    assert [row["fields"] for row in found] == [{"name": "A"}, {"name": "B"}]


def test_a_field_with_a_default_needs_no_value(spark: "SparkSession") -> None:
    rows = spark.createDataFrame(
        [(1, "a@x.example", None, "x"), (2, "b@x.example", "B", None)],
        "`#position` long, email string, name string, code string",
    )
    check = normalise.normalise_rows("email", ["code", "name"], required=["code"])
    first, second = rows.transform(check).collect()
    assert (first["address"], first["fields"]) == ("a@x.example", {"code": "x", "name": None})
    assert (second["address"], second["reason"]) == (None, "no value for 'code'")
