"""Samples and variants of a list."""

import pytest

from zonemta_py.pipeline.plan.rows import Selection, parse_share, parse_variants


def test_shares() -> None:
    assert parse_share("5%") == parse_share(" 5 ") == 0.05
    assert parse_share("100 %") == 1
    assert parse_share("0.25%") == 0.0025
    for text in ("0", "101", "x", "", "-1", "1e3"):
        with pytest.raises(ValueError, match="per cent"):
            parse_share(text)


def test_variants() -> None:
    variants = parse_variants("a=45, b=45,holdout=10")
    assert variants == (("a", 0.45), ("b", 0.45), ("holdout", 0.1))
    ends = Selection("june", variants=variants).variant_ends()
    assert [name for name, _ in ends] == ["a", "b", "holdout"]
    assert [round(end, 9) for _, end in ends] == [0.45, 0.9, 1.0]
    assert parse_variants("a=33.3,b=33.3,c=33.4")
    for text, problem in (
        ("a=60,b=60", "at most 100 %"),
        ("a=10,a=10", "different names"),
        ("a", "per cent"),
        ("a b=5", "names with shares"),
        ("", "names with shares"),
    ):
        with pytest.raises(ValueError, match=problem):
            parse_variants(text)


def test_places_depend_on_the_campaign() -> None:
    june, july = Selection("june"), Selection("july")
    assert len({june.sample_salt, june.variant_salt, july.sample_salt, july.variant_salt}) == 4
