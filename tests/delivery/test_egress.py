"""What is known of sending: it is forgotten when it no longer counts, and a part of it is shown when it is much."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.queue import opened
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config
from zonemta_py.core.counters import SlidingWindow
from zonemta_py.delivery.egress import Egress
from zonemta_py.delivery.egress_operator import path_rows
from zonemta_py.delivery.shaper import delete_old, use_puts
from zonemta_py.egress import limits as permits
from zonemta_py.egress.limits import Permit
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.upkeep.cleanup import AT_ONCE

A, B = "192.0.2.1", "192.0.2.2"
HOUR_MS = 3_600_000


def configured(directory: Path, limits: dict[str, Any]) -> Config:
    """Every provider has these limits."""
    (directory / "providers.yaml").write_text(
        yaml.safe_dump({"providers": {"default": {"limits": limits}}})
    )
    values = {
        "providers": {"file": "providers.yaml", "shipped": False},
        "pools": {"default": [{"address": A}, {"address": B}]},
        "shaping": {"shipped": False},
    }
    return parse_config(yaml.safe_dump(values), directory / "z.yaml")


def send(egress: Egress, provider: str, address: str) -> None:
    permit = egress.permits.take(provider, address, egress.now_ms())
    assert isinstance(permit, Permit)
    egress.permits.begin(permit, egress.now_ms(), 1)
    egress.permits.end(permit, egress.now_ms())
    egress.permits.release(permit)


async def test_uses_that_count_no_more_are_deleted(directory: Path) -> None:
    """However many there are; those of a window that has not ended stay."""
    async with opened(directory) as queue:
        now_ms = 1_800_000_000_000
        slot = now_ms // SlidingWindow(0, HOUR_MS).slot_ms
        old = [("messages", f"p{n}.example", A, HOUR_MS, slot - 100, 5) for n in range(2 * AT_ONCE + 7)]
        new = [("messages", f"q{n}.example", A, HOUR_MS, slot - 10, 5) for n in range(3)]
        batch = WriteBatch()
        batch.put_latest(use_puts([*old, *new]))
        await queue.commits.submit(batch)
        await delete_old(queue, now_ms)
        left = queue.store.keys(keys.META_SENDING, keys.end_of(keys.META_SENDING))
        assert [keys.parse_sending(key)[4] for key in left] == ["q0.example", "q1.example", "q2.example"]


async def test_providers_without_number(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that get no mail any more are forgotten; of many, the rows that operators see are those that need them."""
    monkeypatch.setattr(permits, "FORGET_AT_ONCE", 10)
    async with opened(directory) as queue:
        egress = Egress(queue, configured(directory, {"sessions": 5, "rate": ["10/s"]}))
        try:
            for number in range(300):
                send(egress, f"p{number}.example", A)
            egress.permits.path("p7.example", A).ceiling.paused_ms = egress.now_ms() + HOUR_MS
            held = egress.permits.take("p8.example", B, egress.now_ms())
            assert isinstance(held, Permit)
            names = [(row["provider"], row["address"]) for row in path_rows(egress, most=2)]
            assert names == [("p7.example", A), ("p8.example", B)]
            assert len(path_rows(egress)) == 300
            assert [row["address"] for row in path_rows(egress, "p8.example")] == [A, B]
            assert [row["provider"] for row in path_rows(egress, address=B)] == ["p8.example"]
            later_ms = egress.now_ms() + 60_000
            monkeypatch.setattr(egress, "now_ms", lambda: later_ms)
            await egress.forget_old()
            left = {(path.provider, path.address) for path in egress.permits.paths() if path.provider}
            assert left == {("p7.example", A), ("p8.example", B), ("p8.example", "")}
            egress.permits.release(held)
        finally:
            egress.close()


async def test_what_is_suspended_is_shown_before_any_mail_uses_it(directory: Path) -> None:
    """For alerts, after a restart."""
    async with opened(directory) as queue:
        egress = Egress(queue, configured(directory, {}))
        try:
            await queue.suspended.suspend("provider:google", "ticket 7")
            await queue.suspended.suspend(f"address:{B}", "")
            rows = path_rows(egress)
            assert {(row["provider"], row["address"]) for row in rows} == {
                ("google", A),
                ("google", B),
                ("*", B),
            }
            assert all(row["suspended"] for row in rows)
        finally:
            egress.close()
