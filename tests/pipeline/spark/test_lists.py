"""The address column of a list."""

import pytest

from zonemta_py.core.errors import LocalError

lists = pytest.importorskip("zonemta_py.pipeline.spark.lists")


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
