"""Many destinations in one wait list are served together, within the connections of their zone."""

from pathlib import Path

import pytest
import yaml

from tests.kit.deadlines import until
from tests.kit.relay import empty, relaying, sound, staged
from zonemta_py.delivery.zone_workers import ZoneWorkers
from zonemta_py.egress.waiting import WaitLists
from zonemta_py.queue.upkeep.inspect import recipient_rows

TEXT = b"Subject: hi\r\n\r\nbody\r\n"
DOMAINS = 400


async def test_a_pause_ends_for_all(directory: Path) -> None:
    """The turn passes from one to the next without recursion, and no more of them start than the zone has connections."""
    domains = [f"d{n}.example" for n in range(DOMAINS)]
    async with staged(directory) as stage:
        big = await stage.provider("big", domains)
        (directory / "providers.yaml").write_text("providers: {big: {mx: ['*.big.example']}}\n")
        config = stage.config(
            providers={"file": "providers.yaml", "shipped": False},
            pools={"default": [{"address": "127.0.0.31"}]},
            zones={"default": {"connections": 6}},
            processes={"receivers": 0, "senders": 0},
        )
        async with relaying(config) as relay:
            workers = relay._delivery.views["default"]
            assert isinstance(workers, ZoneWorkers)
            await relay.enqueue("s@sender.example", ["first@d0.example"], TEXT)
            await until(lambda: len(big.accepted) == 1, "the first message")
            egress = relay._delivery.egress
            egress.shaper.controller.pause(
                ("big", "127.0.0.31"), egress.now_ms() + 1_000_000, egress.now_ms(), "test"
            )
            egress.follow(("big", "127.0.0.31"))
            egress.changed()
            for domain in domains:
                await relay.enqueue("s@sender.example", [f"x@{domain}"], TEXT)
            await until(
                lambda: sum(len(wait_list.waiting) for wait_list in egress.wait_lists.all()) == DOMAINS,
                "all to wait",
            )
            assert sum(1 for _ in recipient_rows(relay.queue.store)) == DOMAINS
            egress.shaper.controller.end(("big", "127.0.0.31"), egress.now_ms(), "test")
            egress.follow(("big", "127.0.0.31"))
            egress.changed()
            most = 0

            def is_done() -> bool:
                nonlocal most
                most = max(most, workers.scheduler.active)
                return len(big.accepted) == DOMAINS + 1

            is_done()
            await until(is_done, "everything to be sent")
            await empty(relay)
            assert sound(relay)
        assert 1 < most <= 6
        assert big.most_sessions <= 6


async def test_a_change_at_one_provider_wakes_no_other(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever waits: a provider that refuses mail makes no work for the mail of others."""
    names = [f"p{n}" for n in range(12)]
    own = {name: {"mx": [f"*.{name}.example"], "limits": {"rate": ["1/h"]}} for name in names}
    (directory / "providers.yaml").write_text(yaml.safe_dump({"providers": own}))
    async with staged(directory) as stage:
        for name in names:
            await stage.provider(name, [f"{name}-d.example"])
        config = stage.config(
            providers={"file": "providers.yaml", "shipped": False},
            pools={"default": [{"address": "127.0.0.31"}]},
            processes={"receivers": 0, "senders": 0},
        )
        async with relaying(config) as relay:
            for name in names * 3:
                await relay.enqueue("s@sender.example", [f"x@{name}-d.example"], TEXT)
            egress = relay._delivery.egress
            await until(lambda: len(egress.wait_lists.all()) == len(names), "all providers to wait")
            woken: list[str] = []
            wake = WaitLists.capacity_at_provider

            def capacity_at_provider(wait_lists: WaitLists, provider: str) -> None:
                woken.append(provider)
                wake(wait_lists, provider)

            monkeypatch.setattr(WaitLists, "capacity_at_provider", capacity_at_provider)
            now_ms = egress.now_ms()
            changes = egress.shaper.controller.attempt(("p7", "127.0.0.31"), "blocked", now_ms)
            egress.shaper.write(*egress.shaper.apply(changes))
            assert woken == ["p7"]
            assert sound(relay)
