"""Envelopes of blocks of rows."""

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.config.load import parse_config
from zonemta_py.routing import make_router

if TYPE_CHECKING:
    pass

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
envelopes = pytest.importorskip("zonemta_py.pipeline.plan.pack")

CONFIG = "zones: {default: {}, news: {}}\nrouting: [{recipient_domain: n.example, zone: news}]\n"
PACKING = envelopes.Packing(
    make_router(parse_config(CONFIG, Path("z.yaml"))), "example.com", 3, {"gmail.com": "google"}
)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 1)), max_size=120),
    st.integers(1, 4),
)
def test_groups(rows: list[tuple[int, int, int]], per_envelope: int) -> None:
    """Each row is in one envelope; an envelope has one zone and time, and one provider unless it is shared.

    Rows of a zone and time fill their envelopes, but for one of each large provider and a shared one.
    """
    groups = np.array([(zone << 32) + provider for zone, provider, _ in rows], dtype=np.int64)
    times = np.array([time for _, _, time in rows], dtype=np.int64)
    order, offsets, shared = envelopes.pack_groups(groups, per_envelope, times)
    assert sorted(order.tolist()) == list(range(len(rows)))
    partial: Counter[tuple[int, int, int | None]] = Counter()
    for number, is_shared in enumerate(shared.tolist()):
        members = [rows[at] for at in order[offsets[number] : offsets[number + 1]].tolist()]
        assert 1 <= len(members) <= per_envelope
        assert len({(zone, time) for zone, _, time in members}) == 1
        assert is_shared or len({provider for _, provider, _ in members}) == 1
        if len(members) < per_envelope:
            zone, provider, time = members[0]
            partial[(zone, time, None if is_shared else provider)] += 1
    assert all(count == 1 for count in partial.values())


def block_of(addresses: list[str], kinds: list[str] | None = None) -> Any:
    count = len(addresses)
    return pa.table(
        {
            "given": pa.nulls(count, pa.string()),
            "address": pa.array(addresses, pa.string()),
            "kind": pa.array(kinds or ["planned"] * count, pa.string()),
            "why": pa.array([None if kind == "planned" else "x" for kind in kinds or ["planned"] * count], pa.string()),
        }
    )  # fmt: skip


def packed(block: Any) -> list[dict[str, Any]]:
    from pyspark.sql.pandas.types import to_arrow_schema

    from zonemta_py.pipeline.plan.pack import PACKED

    packer = envelopes.BlockPacker(PACKING, to_arrow_schema(PACKED))
    return [row for batch in packer.pack(block) for row in batch.to_pylist()]


def members(row: dict[str, Any]) -> list[str]:
    return [each["address"] for each in row["recipients"]]


def test_small_providers_share_envelopes() -> None:
    """A provider with many envelopes has its own; the others fill shared ones; zones are apart."""
    large = [f"u{n}@gmail.com" for n in range(3 * envelopes.SMALL_ENVELOPES + 1)]
    small = [f"u{n}@d{n}.example" for n in range(4)]
    found = packed(block_of([*large, *small, "a@n.example", "wrong@x.example"], ["planned"] * (len(large) + 5) + ["suppressed"]))  # fmt: skip
    assert [
        (row["kind"], row["address"], row["reason"]) for row in found if row["kind"] != "planned"
    ] == [("suppressed", "wrong@x.example", "x")]
    planned = [row for row in found if row["kind"] == "planned"]
    google = [members(row) for row in planned if row["provider"] == "google"]
    assert sorted(chain.from_iterable(google)) == sorted(large)
    assert sorted(map(len, google)) == [1, *[3] * envelopes.SMALL_ENVELOPES]
    others = [(row["zone"], row["provider"], len(row["recipients"])) for row in planned if row["provider"] != "google"]  # fmt: skip
    assert sorted(others) == [("default", "", 1), ("default", "", 3), ("news", "", 1)]


def test_quoted_local_parts_have_a_domain() -> None:
    found = envelopes.domains_of(pa.array(['"a@b"@x.example', "c@y.example"]))
    assert found.to_pylist() == ["x.example", "y.example"]
