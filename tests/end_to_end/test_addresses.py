"""From which of our addresses mail leaves: by family, when one is disabled, greylisted or slow, and after a domain has moved."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.end_to_end.test_providers import (
    ADDRESSES,
    MANY,
    PERIOD,
    PROCESSES,
    SLACK,
    TEXT,
    fill,
    kept,
    shaped,
)
from tests.kit.deadlines import until
from tests.kit.relay import Stage, empty, logged_events, relaying, sound, staged
from zonemta_py.core import clock
from zonemta_py.delivery import dns, endpoints
from zonemta_py.egress import providers
from zonemta_py.queue.upkeep.inspect import recipient_rows
from zonemta_py.sink.server import Sink

BOTH = {"127.0.0.31", "::1"}
GREYLISTED = "451 4.7.1 Greylisted, please try again"


@asynccontextmanager
async def dual_stack(directory: Path) -> AsyncIterator[Stage]:
    """d.example has an MX host with an address of each family."""
    async with staged(directory) as stage:
        await stage.provider("big", ["d.example"])
        six = Sink(keep=True)
        await six.start("::1", stage.port)
        records: dict[str, Any] = dict(stage.names.records)
        records["mx.big.example"] |= {"AAAA": ["::1"]}
        stage.names.records = records
        try:
            yield stage
        finally:
            await six.close()


@pytest.mark.parametrize(
    ("family", "used"), [("ipv4", {"127.0.0.31"}), ("ipv6", {"::1"}), ("both", BOTH)]
)
@pytest.mark.parametrize("limits", [{"sessions": 20}, {}], ids=["limits", "free"])
@pytest.mark.parametrize("processes", PROCESSES)
async def test_the_family_of_a_provider(
    directory: Path, processes: tuple[int, int], limits: dict[str, int], family: str, used: set[str]
) -> None:
    """Hosts that have both are reached over the one that the provider's settings name, from an address of that family."""
    async with dual_stack(directory) as stage:
        own = {"big": {"mx": ["*.big.example"], "family": family, "limits": limits}}
        (directory / "providers.yaml").write_text(yaml.safe_dump({"providers": own}))
        config = stage.config(
            providers={"file": "providers.yaml", "shipped": False},
            pools={"default": [{"address": each} for each in sorted(BOTH)]},
            processes={"receivers": processes[0], "senders": processes[1]},
        )
        async with relaying(config) as relay:
            await fill(relay, ["d.example"], MANY)
            await empty(relay)
    delivered = logged_events(directory, "delivered")
    assert len(delivered) == MANY
    assert {each["source_ip"] for each in delivered} == used
    assert all((":" in each["source_ip"]) == (":" in each["mx_ip"]) for each in delivered)


@pytest.mark.parametrize("limits", [{"sessions": 20}, {}], ids=["limits", "free"])
@pytest.mark.parametrize("processes", PROCESSES)
async def test_an_address_that_is_disabled(
    directory: Path, processes: tuple[int, int], limits: dict[str, int]
) -> None:
    """The other one has all mail; a reload brings it back."""
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"])

        def config(disabled: str) -> Any:
            pool = [{"address": each, "disabled": each == disabled} for each in ADDRESSES]
            return shaped(stage, processes, {"big": limits}, pools={"default": pool})

        async with relaying(config(ADDRESSES[0])) as relay:
            await fill(relay, ["d.example"], 50)
            await empty(relay)
            assert set(big.clients) == {ADDRESSES[1]}
            await relay.reload(config(ADDRESSES[1]))
            await fill(relay, ["d.example"], 50, "n")
            await empty(relay)
        kept(big, 100)
    by_address: dict[str, int] = {}
    for each in logged_events(directory, "delivered"):
        by_address[each["source_ip"]] = by_address.get(each["source_ip"], 0) + 1
    assert by_address == {ADDRESSES[0]: 50, ADDRESSES[1]: 50}


@pytest.mark.parametrize("how", ["disabled", "suspended"])
async def test_a_greylisted_recipient_whose_address_may_not_be_used(directory: Path, how: str) -> None:
    """It leaves from the other one instead of waiting for its own, also when the suspension of that has no end."""
    rules = [{"at": "rcpt", "recipient": "*", "reply": GREYLISTED, "times": 1}]
    async with staged(directory) as stage:
        await stage.provider("big", ["d.example"], rules=rules)

        def config(disabled: str) -> Any:
            pool = [{"address": each, "disabled": each == disabled} for each in ADDRESSES]
            zones = {"default": {"retry": {"delays": ["1h"]}}}
            limits = {"big": {"sessions": 5}}
            return shaped(stage, (0, 0), limits, pools={"default": pool}, zones=zones)

        async with relaying(config(ADDRESSES[1])) as relay:
            await fill(relay, ["d.example"], 1)
            store = relay.queue.store
            await until(
                lambda: [row["state"] for row in recipient_rows(store, None)] == ["deferred"],
                "the first attempt",
            )
            await relay.reload(config(ADDRESSES[0] if how == "disabled" else ""))
            if how == "suspended":
                await relay.queue.suspended.suspend(f"address:{ADDRESSES[0]}", "test")
                relay._delivery.egress.changed()
            await relay.flush()
            await empty(relay)
    [deferred], [delivered] = (logged_events(directory, name) for name in ("deferred", "delivered"))
    assert (deferred["source_ip"], deferred["class"]) == (ADDRESSES[0], "greylisted")
    assert delivered["source_ip"] == ADDRESSES[1]


async def test_a_blocked_recipient_whose_other_address_is_suspended(directory: Path) -> None:
    """It goes back to its own instead of waiting until an operator resumes the other one."""
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"], block={"at": "mail"})
        big.block(ADDRESSES[0], "451 4.7.1 your IP is blocked for its bad reputation")
        changes: dict[str, Any] = {
            "shaping": {"shipped": False, "controller": {"enabled": False}},
            "zones": {"default": {"retry": {"delays": ["100ms"]}}},
        }
        async with relaying(shaped(stage, (0, 0), {"big": {"sessions": 5}}, **changes)) as relay:
            await relay.queue.suspended.suspend(f"address:{ADDRESSES[1]}", "test")
            relay._delivery.egress.changed()
            await fill(relay, ["d.example"], 1)
            account = big.account(ADDRESSES[0])
            await until(lambda: account.refused.total(), "the block")
            big.unblock(ADDRESSES[0])
            await empty(relay)
        assert account.messages == 1
        assert set(big.clients) == {ADDRESSES[0]}


@pytest.mark.parametrize("processes", PROCESSES)
async def test_slow_answers(directory: Path, processes: tuple[int, int]) -> None:
    """A receiver that takes a while for each answer gets no more than its rate and its sessions, and everything."""
    rules = [{"at": "dot", "stall": PERIOD}]
    limits: dict[str, Any] = {"rate": [f"10/{PERIOD}"], "sessions_per_address": 4}
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"], rules=rules, **limits, slack=SLACK)
        async with relaying(shaped(stage, processes, {"big": limits})) as relay:
            await fill(relay, ["d.example"], 30)
            await empty(relay)
        kept(big, 30)


async def test_a_domain_that_moves(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its MX hosts are asked for again by the deliveries: mail has the limits of its new provider from the next one on."""
    monkeypatch.setattr(providers, "FRESH_S", 0.0)  # an hour
    monkeypatch.setattr(dns, "TTL_MIN_S", 0.0)
    monkeypatch.setattr(endpoints, "SOLE_ENDPOINT_S", 0.0)  # five seconds, as the next
    async with staged(directory) as stage:
        stage.names.ttl_s = 0
        old = await stage.provider("old", ["d.example"])
        # One more than its limit: the session of the mail that found the new MX host stays open for a while.
        new = await stage.provider("new", ["other.example"], sessions=2)
        config = shaped(stage, (0, 0), {"old": {"sessions": 5}, "new": {"sessions": 1}})
        async with relaying(config) as relay:
            await fill(relay, ["d.example"], 1)
            await empty(relay)
            records: dict[str, Any] = dict(stage.names.records)
            records["d.example"] = {"MX": ["10 mx.new.example."]}
            stage.names.records = records
            await fill(relay, ["d.example"], 1, "between")
            await empty(relay)
            await fill(relay, ["d.example"], 40, "later")
            await empty(relay)
        assert len(old.accepted) + len(new.accepted) == 42
        assert len(new.accepted) >= 40
        assert new.violations == []
    last = logged_events(directory, "delivered")[-1]
    assert (last["provider"], last["mx"]) == ("new", "mx.new.example")


@pytest.mark.parametrize("store", ["leveldb", "filesystem"])
async def test_what_is_known_of_addresses_and_providers_survives_in_every_local_store(
    directory: Path, store: str
) -> None:
    """Keys with and without a provider: limits and warm-ups of an address for all mail, and for one provider."""
    (directory / "providers.yaml").write_text(
        "providers: {big: {mx: ['*.big.example'], limits: {rate: 1000/h}}}\n"
    )
    today = clock.utc(clock.now_ms()).date().isoformat()
    entries = [{"address": "127.0.0.31", "begins": today, "daily": [100]}]
    entries.append({**entries[0], "provider": "big"})
    (directory / "warmup.yaml").write_text(yaml.safe_dump(entries))
    async with staged(directory) as stage:
        provider = await stage.provider("big", ["d.example"])
        config = stage.config(
            queue={"directory": "queue", "min_free_disk": "1MiB", "store": store},
            providers={"file": "providers.yaml", "shipped": False},
            warmup={"file": "warmup.yaml"},
            pools={"default": [{"address": "127.0.0.31", "limits": {"rate": "1000/h"}}]},
        )
        for run in range(3):
            async with relaying(config) as relay:
                await relay.enqueue("s@sender.example", [f"x{run}@d.example"], TEXT)
                await empty(relay)
                assert len(provider.accepted) == run + 1
                assert [each.state.sent for each in relay._delivery.egress.warmup.all()] == [run + 1] * 2
                assert sound(relay)
