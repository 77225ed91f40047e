"""Mail of one destination that leaves from several pools: none waits for the addresses of another."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.end_to_end.test_providers import ADDRESSES, BLOCKED, PROCESSES, fill, shaped
from tests.kit.deadlines import until
from tests.kit.relay import empty, logged_events, relaying, sound, staged
from zonemta_py.admin.metrics import shaping_series
from zonemta_py.admin.page.views import matrix
from zonemta_py.cli.main import main
from zonemta_py.core.model import USUAL_KEY, PoolKey
from zonemta_py.delivery.egress_operator import EgressOperator
from zonemta_py.delivery.worker import Worker
from zonemta_py.queue.upkeep.move import flush

OTHER = "127.0.0.33"
POOLS = {"default": [{"address": ADDRESSES[0]}], "other": [{"address": OTHER}]}
DEFERRED = BLOCKED.replace("554 5", "451 4")


def rules(directory: Path, *found: dict[str, Any]) -> dict[str, Any]:
    """The settings with these rules of shaping and no others."""
    (directory / "shaping.yaml").write_text(yaml.safe_dump({"rules": list(found)}))
    return {"file": "shaping.yaml", "shipped": False, "controller": {"enabled": False}}


@pytest.mark.parametrize("processes", PROCESSES)
async def test_the_fallback_pool_while_the_usual_one_is_suspended(
    directory: Path, processes: tuple[int, int]
) -> None:
    """A rule suspends the only address for an hour: what was blocked leaves from the fallback pool, the rest waits."""
    rule = {"name": "stop", "class": "blocked", "action": "suspend", "for": "1h"}
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"], block={"at": "mail"})
        big.block(ADDRESSES[0], DEFERRED)
        zone = {"fallback_pool": "other", "retry": {"delays": ["50ms"]}}
        config = shaped(
            stage, processes, {"big": {"sessions": 1}}, pools=POOLS, zones={"default": zone},
            shaping=rules(directory, rule),
        )  # fmt: skip
        async with relaying(config) as relay:
            await fill(relay, ["d.example"], 30)
            await until(lambda: big.account(OTHER).messages, "the one that was blocked")
            workers = relay._delivery.zones["default"]
            await until(lambda: (why := workers.why("d.example")) and why.name == "pause", "a reason")
            assert workers.why("d.example", PoolKey("other")) is None
            assert len(big.accepted) == 1
            big.unblock(ADDRESSES[0])
            control = EgressOperator(relay.queue, lambda: config, relay._delivery)
            await control.end_pace("big", ADDRESSES[0])
            await empty(relay)
            assert sound(relay)
        assert len(big.accepted) == 30
    attempts = sorted(each["attempt"] for each in logged_events(directory, "delivered"))
    assert attempts == [1] * 29 + [2]


@pytest.mark.parametrize("stopped", [ADDRESSES[0], OTHER])
@pytest.mark.parametrize("processes", PROCESSES)
async def test_a_tenant_with_a_pool_of_its_own(
    directory: Path, processes: tuple[int, int], stopped: str
) -> None:
    """Its mail leaves while the zone's address may not be used, and the others' while its own may not."""
    tenants = {
        "acme": {"users": ["ann"], "domains": ["acme.example"], "pool": "other"},
        "globex": {"users": ["bob"], "domains": ["globex.example"]},
    }
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"])
        config = shaped(stage, processes, {"big": {"sessions": 2}}, pools=POOLS, tenants=tenants)
        async with relaying(config) as relay:
            queue = relay.queue
            await queue.suspended.suspend(f"address:{stopped}", "test")
            for number in range(20):
                for user, tenant in ("ann", "acme"), ("bob", "globex"):
                    sender, rcpt = f"s@{tenant}.example", f"{user}{number}@d.example"
                    text = f"From: {sender}\r\n\r\nbody\r\n".encode()
                    await relay.enqueue(sender, [rcpt], text, user=user)
            await until(lambda: len(big.accepted) == 20, "the half that may be sent")
            assert not big.account(stopped).messages
            workers = relay._delivery.zones["default"]
            why = [workers.why("d.example", pool) for pool in (USUAL_KEY, PoolKey("other"))]
            assert [each and each.name for each in why] == (
                ["operator_suspension", None]
                if stopped == ADDRESSES[0]
                else [None, "operator_suspension"]
            )
            await queue.suspended.resume(f"address:{stopped}")
            relay._delivery.egress.changed()
            await empty(relay)
            assert sound(relay)
        assert big.account(OTHER).messages == big.account(ADDRESSES[0]).messages == 20
    delivered = logged_events(directory, "delivered")
    assert {(each["tenant"], each["source_ip"], each["attempt"]) for each in delivered} == {
        ("acme", OTHER, 1), ("globex", ADDRESSES[0], 1),
    }  # fmt: skip
    assert not logged_events(directory, "deferred"), "nothing was put off"


async def test_mail_for_a_limited_pool_is_not_put_off(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deferred mail whose fallback pool has a low rate waits for that at the wait list, and is not written again."""
    put_off: list[str] = []
    monkeypatch.setattr(
        Worker, "defer_unsent", lambda self, lease, reason, due_ms: put_off.append(reason)
    )
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"], block={"at": "mail"})
        big.block(ADDRESSES[0], DEFERRED)
        pools = {**POOLS, "other": [{"address": OTHER, "limits": {"sessions": 1, "rate": ["4/s"]}}]}
        zone = {"fallback_pool": "other", "retry": {"delays": ["50ms"]}}
        config = shaped(
            stage, (0, 0), {"big": {"sessions": 10}}, pools=pools, zones={"default": zone},
            shaping=rules(directory),
        )  # fmt: skip
        async with relaying(config) as relay:
            await fill(relay, ["d.example"], 12)
            await empty(relay)
        assert big.account(OTHER).messages == 12
    assert len(logged_events(directory, "deferred")) == 12, "each was blocked once"
    assert not put_off


@pytest.mark.parametrize("limits", [{"sessions_per_address": 1}, {"sessions": 8, "rate": ["50/s"]}])
@pytest.mark.parametrize("how", ["greylisted", "blocked"])
async def test_mail_for_one_address_is_not_put_off(
    directory: Path, monkeypatch: pytest.MonkeyPatch, how: str, limits: dict[str, Any]
) -> None:
    """Mail that wants the address that greylisted it, or not the one that blocked it, waits at a wait list until that has room."""
    put_off: list[str] = []
    real = Worker.defer_unsent

    async def counted(self: Worker, lease: Any, reason: str, due_ms: int) -> Any:
        put_off.append(reason)
        return await real(self, lease, reason, due_ms)

    monkeypatch.setattr(Worker, "defer_unsent", counted)
    async with staged(directory) as stage:
        if how == "greylisted":
            big = await stage.provider("big", ["d.example"], greylist="50ms")
        else:
            big = await stage.provider("big", ["d.example"], block={"at": "mail"})
            big.block(ADDRESSES[0], DEFERRED)
        config = shaped(
            stage, (0, 0), {"big": limits}, zones={"default": {"retry": {"delays": ["100ms"]}}},
            shaping=rules(directory),
        )  # fmt: skip
        async with relaying(config) as relay:
            await fill(relay, ["d.example"], 100)
            await empty(relay)
            assert sound(relay)
        assert len(big.accepted) == 100
    attempts: dict[str, list[str]] = {}
    for each in [*logged_events(directory, "deferred"), *logged_events(directory, "delivered")]:
        attempts.setdefault(each["recipient"], []).append(each["source_ip"])
    for first, *others in attempts.values():
        assert others in (([first],) if how == "greylisted" else ([], [ADDRESSES[1]]))
    assert not put_off


async def test_mail_for_one_address_has_turns(directory: Path) -> None:
    """Greylisted mail, whose time has come, does not wait for the end of a long mailing of the same provider."""
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d1.example", "d2.example"], greylist="50ms")
        zone = {"connections_per_domain": 2, "retry": {"delays": ["600s"]}}
        config = shaped(
            stage, (0, 0), {"big": {"sessions_per_address": 1}}, zones={"default": zone},
            shaping=rules(directory),
        )  # fmt: skip
        async with relaying(config) as relay:
            queue, egress = relay.queue, relay._delivery.egress
            await fill(relay, ["d2.example"], 10, "late")
            window = queue.windows.zone("default")
            await until(
                lambda: not window.waiting("d2.example") and not window.leased(), "the first attempts"
            )
            big.limits = replace(big.limits, greylist=None)
            await queue.suspended.suspend("provider:big", "test")
            egress.changed()
            await fill(relay, ["d1.example"], 1500)
            await queue.suspended.resume("provider:big")
            egress.changed()
            await until(lambda: big.accepted, "the mailing to begin")
            await flush(queue)
            await empty(relay)
        recipients = [each["recipient"] for each in logged_events(directory, "delivered")]
        places = [place for place, each in enumerate(recipients) if each.startswith("late")]
        assert len(places) == 10
        assert places[-1] < 1200, places


async def test_limits_of_an_address_are_seen(directory: Path) -> None:
    """Over two providers, whose mail waits for the address: one row in commands and metrics says how much is used."""
    pools = {"default": [{"address": OTHER, "limits": {"sessions": 3, "rate": ["2/h"]}}]}
    async with staged(directory) as stage:
        providers = [await stage.provider(name, [f"{name}.example"]) for name in ("one", "two")]
        config = shaped(stage, (0, 0), {"one": {}, "two": {}}, pools=pools)
        async with relaying(config) as relay:
            await fill(relay, ["one.example", "two.example"], 6)
            await until(lambda: sum(len(each.accepted) for each in providers) == 2, "the rate")
            workers = relay._delivery.zones["default"]
            names = ["one.example", "two.example"]
            await until(lambda: all(workers.why(name) for name in names), "both to wait")
            assert {str(why.name) for name in names if (why := workers.why(name))} == {"address_rate"}
            rows = await shown(config.path)
            assert [(row["address"], row["rates"], row["waiting"]) for row in rows] == [
                (OTHER, [{"rate": "2/h", "used": 2, "of": 2}], 2)
            ]
            families = {each.name: each.values for each in shaping_series(rows, [])}
            assert families["zonemta_provider_rate_used_ratio"] == [(("*", OTHER, "2/h"), 1.0)]
            page = matrix(rows)
            assert page["providers"][0]["sessions_max"] is None


async def shown(path: Path | str) -> list[dict[str, Any]]:
    """What ``zonemta shaping status`` shows of all providers together."""
    arguments = ["shaping", "status", "-c", str(path), "--provider", "*", "--json"]
    found = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert found.exit_code == 0, found.output
    return [json.loads(line) for line in found.output.splitlines()]
