"""How numbers are written."""

import pytest

from zonemta_py.pipeline.report import charts


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "-"), (0.0, "0.0 %"), (0.000_01, "< 0.1 %"), (0.123, "12.3 %"), (0.999_9, "> 99.9 %"), (1.0, "100.0 %"),
    ],
)  # fmt: skip
def test_shares(share: float | None, text: str) -> None:
    """A rate that is not zero is not written as zero."""
    assert charts.percent(share) == text


def test_numbers_and_times() -> None:
    assert (charts.number(1_234_567), charts.number(None)) == ("1,234,567", "-")
    assert (charts.rounded(9_999_999), charts.rounded(12_345_678)) == ("9,999,999", "12.3M")
    assert (charts.per_thousand(3, 2000), charts.per_thousand(3, 0)) == ("1.50", "-")
    assert charts.per_thousand(3, None) == "-"
    assert [charts.duration(ms) for ms in (None, 12, 1500, 90_000, 5_400_000, 172_800_000)] == [
        "-", "12 ms", "1.5 s", "1.5 min", "1.5 h", "2.0 d",
    ]  # fmt: skip
