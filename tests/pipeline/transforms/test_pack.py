"""Envelopes: recipients, keys, slots and turns."""

from typing import TYPE_CHECKING, Any

from zonemta_py.pipeline.rules.submission_keys import submission_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def packed(spark: "SparkSession", rows: list[tuple[str, str]], per_envelope: int | None) -> list[Any]:
    """Envelopes of rows of address and provider, in two slots."""
    from zonemta_py.pipeline.transforms.pack import pack_envelopes

    planned = spark.createDataFrame(
        [(address, "default", provider, {"name": "x"}) for address, provider in rows],
        "address string, zone string, provider string, fields map<string,string>",
    )
    sizes = planned.groupBy("provider").count().withColumnRenamed("count", "size")
    return planned.transform(pack_envelopes("june", 2, per_envelope, sizes)).collect()


def test_one_envelope_for_each_recipient(spark: "SparkSession") -> None:
    found = packed(spark, [(f"u{n}@x.example", "x.example") for n in range(5)], None)
    assert sorted(row["recipients"][0]["address"] for row in found) == [
        f"u{n}@x.example" for n in range(5)
    ]
    assert all(row["recipients"][0]["fields"] == {"name": "x"} for row in found)
    assert all(row["key"] == submission_key("june", [row["recipients"][0]["address"]]) for row in found)


def test_small_providers_share_envelopes(spark: "SparkSession") -> None:
    """``SMALL_ENVELOPES`` envelopes of one provider are enough for envelopes of its own."""
    from zonemta_py.pipeline.transforms.pack import SHARED, SMALL_ENVELOPES, TURNS

    large = [(f"u{n}@big.example", "big.example") for n in range(2 * SMALL_ENVELOPES)]
    small = [(f"u@d{n}.example", f"d{n}.example") for n in range(2 * SMALL_ENVELOPES - 1)]
    found = packed(spark, large + small, 2)
    members = {"big.example": 0, SHARED: 0}
    for row in found:
        addresses = [each["address"] for each in row["recipients"]]
        assert 1 <= len(addresses) <= 2
        assert {address.endswith("@big.example") for address in addresses} == {
            row["provider"] == "big.example"
        }
        assert row["key"] == submission_key("june", addresses)
        assert row["slot"] in (0, 1)
        assert -TURNS <= row["turn"] < TURNS
        members[row["provider"]] += len(addresses)
    assert members == {"big.example": len(large), SHARED: len(small)}
